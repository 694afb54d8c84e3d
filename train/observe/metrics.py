"""The numbers of a run: lines on the screen, records on disk, who keeps the others waiting."""

from __future__ import annotations

import contextlib
import math
import resource
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar, cast

from train.config.config import Config
from train.data.progress import duration
from train.errors import counted
from train.model.loss_scale import LossScale
from train.observe.flops import peak
from train.observe.gpu_times import GpuTimes
from train.observe.records import NAME, Records
from train.observe.stragglers import Watch, Window
from train.observe.trackers import Trackers

if TYPE_CHECKING:
    from train.distributed.process_group import Ranks

T = TypeVar("T")
WINDOW = 10
"""Steps between two looks at all ranks: a look is a collective of its own."""
RECENT = 50
"""Steps whose median time the forecast is made of."""
STEP_PARTS = ("forward", "backward", "optimizer")
APART = ("eval", "save", "rehearsal")
"""What happens between steps, and is no part of their time."""


class Meter:
    """Measures on every rank; speaks and writes on rank 0."""

    def __init__(
        self,
        config: Config,
        ranks: Ranks,
        *,
        flops_per_token: float | None = None,
        trackers: Trackers | None = None,
    ) -> None:
        """Begin to measure; without `flops_per_token` there is no MFU."""
        import torch

        from train.observe.collective_clock import CollectiveClock

        self._config = config
        self._ranks = ranks
        self._is_first = ranks.env.rank == 0
        self._records = Records(Path(config.output_dir) / NAME)
        self._trackers = trackers
        self._flops = flops_per_token
        gpu = ranks.device.type == "cuda"
        self._peak = peak(torch.cuda.get_device_name(ranks.device)) if gpu else None
        self._clock = CollectiveClock()
        self._gpu = GpuTimes() if gpu else None
        self._watch = Watch(config.slow_ratio)
        self._named: set[int] = set()
        self._parts: defaultdict[str, float] = defaultdict(float)
        self._window: defaultdict[str, float] = defaultdict(float)
        self._window_steps = self._window_padded_tokens = 0
        self._since = time.perf_counter()
        self._last: deque[float] = deque(maxlen=RECENT)
        self._log_tokens = self._log_seconds = 0.0
        self._resumed_from: int | None = None

    @contextlib.contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Measure a part of a step: data, forward, backward, optimizer, eval, save."""
        of_step = name in STEP_PARTS
        before, self._clock.counting = self._clock.counting, of_step
        began = time.perf_counter()
        try:
            with self._gpu.time(name) if self._gpu and of_step else contextlib.nullcontext():
                yield
        finally:
            self._clock.counting = before
            if not (self._gpu and of_step):
                self._parts[name] += time.perf_counter() - began

    def timed(self, name: str, items: Iterable[T]) -> Iterator[T]:
        """Measure how long the items are waited for."""
        walk, end = iter(items), object()
        while True:
            with self.time(name):
                item = next(walk, end)
            if item is end:
                return
            yield cast("T", item)

    def resumed(self, step: int) -> None:
        """Forget what was recorded after this step, which is done again."""
        self._resumed_from = step or None
        if self._is_first and step:
            self._records.cut(step)

    def step(
        self,
        *,
        step: int,
        total: int,
        epoch: int,
        consumed: int,
        epoch_rows: int,
        loss: float,
        rewards: Sequence[float] | None = None,
        norm: float,
        lr: float,
        scale: LossScale | None = None,
        valid: int,
        tokens: int,
        padded_tokens: int,
    ) -> None:
        """Tell of a step, on every rank.

        Loss, valid and tokens are those of all ranks, padded_tokens (padding counted) those of this
        one; epoch, consumed and epoch_rows tell where the data is after the step; norm is that of
        the gradient before clipping; rewards are those of pairs, as _of_pairs takes them; `scale`
        is that of the next step's loss, in float16.
        """
        now = time.perf_counter()
        for name, taken in (self._gpu.take() if self._gpu else {}).items():
            self._parts[name] += taken
        apart = {name: self._parts.pop(name, 0.0) for name in APART}
        seconds = max(1e-9, now - self._since - sum(apart.values()))
        self._since = now
        self._last.append(seconds)
        self._log_tokens += tokens
        self._log_seconds += seconds
        self._window_steps += 1
        self._window_padded_tokens += padded_tokens
        for name, value in (("wall", seconds), *self._parts.items()):
            self._window[name] += value
        record: dict[str, Any] = {
            "kind": "step",
            "time": time.time(),
            "step": step,
            "total": total,
            "epoch": epoch,
            "consumed": consumed,
            "loss": _number(loss),
            "grad_norm": _number(norm),
            "lr": lr,
            "tokens_valid": valid,
            "tokens": tokens,
            "step_s": seconds,
            "tok_s": tokens / seconds,
            "world_size": self._ranks.env.world_size,
            "resumed_from": self._resumed_from,
        } | _of_pairs(rewards)
        if scale:
            record |= {"loss_scale": scale.factor, "skipped_steps": scale.skipped}
        record |= {f"{name}_s": value for name, value in (self._parts | apart).items() if value}
        self._parts.clear()
        if self._window_steps >= WINDOW:
            record |= self._compare_ranks(step)
        if step % self._config.logging_steps == 0 or step == total:
            self._print_step(record, total - step, epochs=epoch + consumed / epoch_rows)
        if self._is_first:
            self._record(record)

    def forget_peak(self) -> None:
        """Let the most memory used so far not count, such as that of loading."""
        if self._ranks.device.type == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats(self._ranks.device)

    def largest(self, rows: int, width: int) -> None:
        """Tell what the largest micro-batch took, on every rank."""
        shape = f"{rows} x {counted(width, 'token')}"
        taken, shape = max(self._ranks.gather((_memory(self._ranks.device), shape)))
        if self._is_first:
            print(f"Memory:     {taken / 2**30:.2f} GiB for the largest micro-batch, {shape}")

    def evaluated(
        self,
        *,
        step: int,
        total: int,
        loss: float,
        accuracy: float,
        tokens: int,
        rewards: Sequence[float] | None = None,
    ) -> None:
        """Tell of an evaluation, on every rank; `tokens` are all that counted, or all pairs."""
        if not self._is_first:
            return
        of_pairs, noun = _of_pairs(rewards), "pair" if rewards else "token"
        perplexity = math.exp(min(loss, 700.0))
        said = _in_words(of_pairs) if rewards else f"Perplexity: {perplexity:.2f} | "
        seconds = self._parts.get("eval", 0.0)
        print(
            f"Step {step}/{total} | Eval Loss: {loss:.4f} | {said}"
            f"Accuracy: {accuracy:.1%} | {counted(tokens, noun)} | {seconds:.2f}s",
            flush=True,
        )
        self._record({
            "kind": "eval",
            "time": time.time(),
            "step": step,
            "total": total,
            "eval_loss": _number(loss),
            "eval_accuracy": accuracy,
            f"eval_{noun}s": tokens,
            "eval_s": seconds,
            **({} if rewards else {"eval_perplexity": _number(perplexity)}),
            **{f"eval_{name}": value for name, value in of_pairs.items()},
        })  # fmt: skip

    def close(self) -> None:
        """End measuring."""
        self._clock.close()

    def _compare_ranks(self, step: int) -> dict[str, Any]:
        """Compare all ranks over the window, name who is slow, and return what to record."""
        waited = self._clock.take()
        mine = Window(
            steps=self._window_steps,
            wall=self._window["wall"],
            data=self._window["data"],
            forward=self._window["forward"],
            # DDP's collectives happen inside its backward, and cannot be seen.
            waited=waited if waited > 0 and self._config.parallel != "ddp" else None,
            padded_tokens=self._window_padded_tokens,
        )
        rows: list[tuple[Window, int]] = self._ranks.gather((mine, _memory(self._ranks.device)))
        self._window.clear()
        self._window_steps = self._window_padded_tokens = 0
        windows = [window for window, _ in rows]
        slow, hosts = self._watch.see(windows), self._ranks.hosts
        if self._is_first:
            lines = [
                f"Slow: rank {one.rank} on {hosts[one.rank]} takes {one.ratio:.1f}x the median "
                f"({one.cause}) up to step {step}"
                for one in slow
            ]
            healed = sorted(self._named - {one.rank for one in slow})
            lines += [f"Slow: rank {rank} on {hosts[rank]} no longer" for rank in healed]
            for line in lines:
                print(line, flush=True)
            self._named = {one.rank for one in slow}
        data = [window.data / window.steps for window in windows]
        forward = [window.forward / window.steps for window in windows]
        padded_tokens = sum(window.padded_tokens for window in windows)
        return {
            "window": WINDOW,
            "data_s_max": max(data),
            "data_s_median": median(data),
            "forward_s_max": max(forward),
            "forward_s_median": median(forward),
            "padded_tokens": padded_tokens,
            "places": padded_tokens,  # the old name, for one version
            "memory_max": max(memory for _, memory in rows),
            "slow": [
                {"host": hosts[one.rank]} | asdict(one) | {"ratio": round(one.ratio, 3)}
                for one in slow
            ],
        }

    def _print_step(self, record: dict[str, Any], left: int, *, epochs: float) -> None:
        """Print the step line; the speed is that since the last one."""
        rate = self._log_tokens / self._log_seconds
        self._log_tokens = self._log_seconds = 0.0
        memory = _memory(self._ranks.device)
        skipped = "" if math.isfinite(float(record["grad_norm"])) else " (no update)"
        line = (
            f"Step {record['step']}/{record['total']} | Epoch: {epochs:.2f} | "
            f"Loss: {float(record['loss']):.4f} | {_in_words(record)}"
            f"Norm: {float(record['grad_norm']):.2f}{skipped} | LR: {record['lr']:.2e} | "
            f"{record['step_s']:.2f}s | {rate:.0f} tok/s"
        )
        if self._flops and self._peak:
            record["mfu"] = rate * self._flops / (self._peak * self._ranks.env.world_size)
            line += f" | MFU: {record['mfu']:.1%}"
        record["memory"] = memory
        if self._is_first:
            eta = duration(left * median(self._last))
            print(f"{line} | Mem: {memory / 2**30:.2f} GiB | ETA: {eta}", flush=True)

    def _record(self, record: dict[str, Any]) -> None:
        self._records.add(record)
        if self._trackers:
            self._trackers.log(record)


def _of_pairs(rewards: Sequence[float] | None) -> dict[str, float]:
    """Return the means of pairs under TRL's names, of the share won and both texts' rewards."""
    if rewards is None:
        return {}
    won, chosen, rejected = rewards
    means = {"accuracies": won, "chosen": chosen, "rejected": rejected}
    return {f"rewards/{key}": n for key, n in (means | {"margins": chosen - rejected}).items()}


def _in_words(record: dict[str, Any]) -> str:
    """Say how far the chosen texts are ahead, and how often; nothing without pairs."""
    if "rewards/margins" not in record:
        return ""
    return f"Margin: {record['rewards/margins']:.4f} ({record['rewards/accuracies']:.0%} won) | "


def _number(value: float) -> float | str:
    """Return a number as JSON can have it: one that is not finite as text."""
    return value if math.isfinite(value) else str(value)


def _memory(device: Any) -> int:
    """Return the most bytes that this rank has used: of its GPU, or of the machine's memory."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
