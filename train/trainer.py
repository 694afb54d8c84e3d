"""The training itself: steps, evaluations, checkpoints, and the end that all ranks agree on."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from train.checkpoint import room
from train.checkpoint.save import Checkpoints, Progress
from train.checkpoint.schedule import Schedule
from train.config.config import Config
from train.data.batches import Batches, Step
from train.data.collate import Batch
from train.distributed.process_group import Ranks
from train.errors import CheckpointError, NonFinite, StreamError, explain_oom
from train.lifecycle import garbage
from train.lifecycle.signals import StopDecision, StopListener
from train.lifecycle.status import Status
from train.model.model import Loss, Model
from train.model.optimizer import Optimizer, learning_rate
from train.observe.metrics import Meter


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a training ended."""

    state: Literal["done", "preempted"]
    step: int
    reason: str
    checkpoint: Path | None
    """That of the step; None at step 0."""
    exported: Path | None = None

    def __str__(self) -> str:
        """Say all of it in one line."""
        text = f"{self.state} at step {self.step}: {self.reason}"
        text += f"; checkpoint in {self.checkpoint}" if self.checkpoint else ""
        return text + (f", exported to {self.exported}" if self.exported else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """All that a training works with; `run` is the training."""

    config: Config
    ranks: Ranks
    model: Model
    optimizer: Optimizer
    batches: Batches
    checkpoints: Checkpoints
    schedule: Schedule
    stop_listener: StopListener
    meter: Meter
    status: Status
    steps: int
    """Of the whole training."""
    evaluates: bool
    """Whether there is anything to evaluate on."""

    def run(self, progress: Progress) -> Outcome:
        """Train from the start, or from where a checkpoint was, to the end or to a stop."""
        decision = self.stop_listener.agree()
        # A new training is evaluated before its first step too, to show where it began.
        asked = self.config.eval_steps or self.config.eval_epochs
        begins = progress.step == 0 and self.evaluates and asked is not None
        if (begins or progress.owes_evaluation) and not decision.stop:
            decision |= self.evaluate(progress.step)
        first = progress.step + 1
        self.stop_listener.doing = "stopping after this step, with a checkpoint"
        if progress.step < self.steps and not decision.stop:
            if self.rehearses:
                self.rehearse()
            try:
                for number, step in enumerate(
                    self.meter.timed("data", self.batches.train(progress.position)), first
                ):
                    decision |= self.update(number, step)
                    if number == first:
                        self.ranks.shorten_timeouts(self.config.step_timeout, self.model.mesh)
                    epochs = step.position.epoch if step.epoch_end else None
                    owes = self.evaluates_at(number, finished_epochs=epochs)
                    if owes and not decision.stop:
                        decision |= self.evaluate(number)
                        owes = decision.stop
                    progress = Progress(
                        step=number,
                        position=step.position,
                        owes_evaluation=owes,
                        loss_scale=self.optimizer.loss_scale,
                    )
                    if decision.save or self.schedule.follows(number, finished_epochs=epochs):
                        self.save(progress)
                        decision = replace(decision, save=False)
                    garbage.collect_young(number)
                    if decision.stop or number == self.steps:
                        break
            except (NonFinite, StreamError):  # on all ranks, and before the weights were changed
                self.ensure_saved_before_error(progress)
                raise
        return self.end(progress)

    @property
    def rehearses(self) -> bool:
        """Whether memory is tried first: on CPUs it is no number of its own, and steps are slow."""
        return self.ranks.device.type == "cuda"

    def rehearse(self) -> None:
        """Compute the largest micro-batch and forget it, to run out of memory now or never.

        Left to its place in the data, it may come after hours.
        """
        devices = [self.ranks.device] if self.ranks.device.type == "cuda" else []
        batch = self.batches.largest()
        self.meter.forget_peak()
        with (
            self.meter.time("rehearsal"),
            torch.random.fork_rng(devices),
            explain_oom("the largest micro-batch"),
        ):
            self.optimizer.state()  # made now: the first update would
            # With accumulation, the gradients of earlier micro-batches are in memory too.
            for last in (False, True) if self.batches.accumulates else (True,):
                with self.model.only_last_synchronizes(last=last):
                    (self.forward(batch).total * 0).backward()  # type: ignore[no-untyped-call]
            self.optimizer.forget()
        self.meter.largest(*batch.input_ids.shape)

    def update(self, number: int, step: Step) -> StopDecision:
        """Do one step: gradients of all micro-batches, one sum over the ranks, one update.

        In float16 losses are multiplied by a scale; gradients that are too large for it then only
        lower the scale.
        """
        scale, counted = self.optimizer.loss_scale, max(1, step.pairs or step.valid)
        # A mean over the step, as torch's GradScaler has it: sums would be too large.
        factor = scale.factor / counted if scale else 1.0
        # The loss; of pairs also how many are won, and both rewards.
        total = torch.zeros(4, dtype=torch.float64, device=self.ranks.device)
        for number_in_step, batch in enumerate(step.micro_batches, 1):
            last = number_in_step == len(step.micro_batches)
            with explain_oom("the batch"), self.model.only_last_synchronizes(last=last):
                total += self.forward_backward(batch, factor)
        with self.meter.time("optimizer"), explain_oom("the optimizer"):
            # All that ranks exchange about a step, in one small sum.
            squared_norm = self.optimizer.squared_norm_here().to(total.device)
            # The one moment of a step in which the CPU waits for a GPU.
            mine = torch.cat((total, squared_norm.view(1))).tolist()
            stop, save = self.stop_listener.vote()
            sums = self.ranks.sum([*mine, stop, save, self.schedule.vote()])
            mean = self.model.gradient_factor / counted / factor
            loss_mean, norm = sums[0] / counted, math.sqrt(sums[4]) * mean
            finite = math.isfinite(norm)
            if not math.isfinite(loss_mean) or not (finite or (scale and scale.factor > 1)):
                raise NonFinite(self.who_is_not_finite(number, mine[0], mine[4]))
            rate = learning_rate(self.config, number, self.steps)
            if finite:
                self.optimizer.step(scale=mean, norm=norm, rate=rate)
            else:
                self.optimizer.forget()
            self.optimizer.loss_scale = scale and scale.after(finite=finite)
        self.status.step = number
        self.meter.step(
            step=number,
            total=self.steps,
            epoch=step.position.epoch,
            consumed=step.position.consumed,
            epoch_rows=self.batches.epoch_rows,
            loss=loss_mean,
            rewards=[total / counted for total in sums[1:4]] if step.pairs else None,
            norm=norm,
            lr=rate,
            scale=self.optimizer.loss_scale,
            valid=step.valid,
            tokens=step.tokens,
            padded_tokens=sum(int(batch.input_ids.size) for batch in step.micro_batches)
            // self.config.context_parallel,
        )
        decision = self.stop_listener.decide(sums[5:7])
        return decision | StopDecision(save=sums[7] > 0)

    def forward_backward(self, batch: Batch, factor: float) -> Tensor:
        """Add a micro-batch's gradients times a factor to those before it, and return its sums.

        Nothing of its graph may outlive this: on CPUs what is left of one lies among the blocks
        that the next micro-batch could use, and a tenth more memory is taken.
        """
        with self.meter.time("forward"):
            loss = self.forward(batch)
        with self.meter.time("backward"):
            (loss.total * factor).backward()  # type: ignore[no-untyped-call]
        return loss.sums()

    def forward(self, batch: Batch) -> Loss:
        """Run the model over one batch of this rank."""
        positions = None if batch.position_ids is None else torch.from_numpy(batch.position_ids)
        return self.model.loss(
            torch.from_numpy(batch.input_ids),
            torch.from_numpy(batch.labels),
            positions,
            batch.vision,
        )

    def who_is_not_finite(self, step: int, loss: float, squared_norm: float) -> str:
        """Name the ranks with a loss that is not finite, or else those with such a gradient."""
        losses, norms = zip(*self.ranks.gather((loss, squared_norm)), strict=True)
        what, values = ("loss", losses)
        if all(map(math.isfinite, losses)):
            what, values = ("gradient", norms)
        who = ", ".join(
            f"{self.ranks.name(rank)} has {value}"
            for rank, value in enumerate(values)
            if not math.isfinite(value)
        )
        return (
            f"step {step}: expected a finite {what}, found: {who}; the weights are still those of "
            f"step {step - 1}\nhint: lower learning_rate or max_grad_norm, or look at the samples "
            "of this step"
        )

    @torch.no_grad()
    def evaluate(self, step: int) -> StopDecision:
        """Measure the loss over the whole evaluation set, or leave off if a stop is asked for."""
        self.model.network.eval()
        decision = StopDecision()
        sums = torch.zeros(5, dtype=torch.float64, device=self.ranks.device)
        with self.meter.time("eval"), explain_oom("a batch of the evaluation"):
            garbage.collect_all()
            for number, batch in enumerate(self.batches.evaluate(), 1):
                loss = self.forward(batch)
                sums[:4] += loss.sums()
                sums[4] += batch.pairs or loss.counted
                garbage.collect_young(number)
                decision = self.stop_listener.agree() | decision
                if decision.stop:
                    break
            *found, count = self.ranks.sum(sums.tolist())
            loss_mean, *rewards = (total / max(1, count) for total in found)
        self.model.network.train()
        if not decision.stop:
            self.meter.evaluated(
                step=step,
                total=self.steps,
                loss=loss_mean,
                accuracy=rewards[0],
                tokens=int(count),
                rewards=rewards if self.config.in_pairs else None,
            )
        return decision

    def evaluates_at(self, step: int, *, finished_epochs: int | None) -> bool:
        """Return whether an evaluation follows a step: every so many, and at the end.

        `finished_epochs` is how many are done, if the step ended one.
        """
        steps, epochs = self.config.eval_steps, self.config.eval_epochs
        due = bool(steps and step % steps == 0)
        due |= bool(epochs and finished_epochs and finished_epochs % epochs == 0)
        return self.evaluates and (due or step == self.steps)

    def save(self, progress: Progress) -> None:
        """Write a checkpoint, or start to."""
        with self.meter.time("save"):
            garbage.collect_all()
            self.checkpoints.save(progress, self.model, self.optimizer)
        self.schedule.saved()
        self.status.set("running")

    def ensure_saved(self, progress: Progress) -> str:
        """Make sure that what was learned is on disk; return what is lost."""
        self.checkpoints.wait()
        if not progress.step or self.save_unless_saved(progress):
            return ""
        return room.export_or_wait(
            progress.step,
            self.model,
            self.checkpoints,
            self.ranks,
            self.stop_listener,
            self.status,
            lambda: self.save_unless_saved(progress),
        )

    def ensure_saved_before_error(self, progress: Progress) -> None:
        """Keep what was learned before another error, and report what is lost."""
        if (lost := self.ensure_saved(progress)) and self.ranks.is_first:
            print(f"error: {lost}", file=sys.stderr)

    def save_unless_saved(self, progress: Progress) -> bool:
        """Return whether the step's checkpoint is on disk; write it if it is not."""
        if self.checkpoints.last_step != progress.step:
            self.save(progress)
            self.checkpoints.wait()
        return self.checkpoints.last_step == progress.step

    def end(self, progress: Progress) -> Outcome:
        """Save what was learned, and return how it ended."""
        self.stop_listener.doing = "the training is ending, and saves what was learned"
        if lost := self.ensure_saved(progress):
            raise CheckpointError(lost)
        step = progress.step
        checkpoint = self.checkpoints.folder(step) if step else None
        if step < self.steps:
            reason = self.stop_listener.reason
            return Outcome(state="preempted", step=step, reason=reason, checkpoint=checkpoint)
        # More steps than these, if it resumed from a later one.
        return Outcome(
            state="done",
            step=step,
            reason="all steps are done",
            checkpoint=checkpoint,
            exported=self.checkpoints.export(step),
        )
