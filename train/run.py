"""One training from its configuration to its outcome: everything made, proven, and set going."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from train.checkpoint import provenance, resume
from train.checkpoint.save import Checkpoints, Progress
from train.checkpoint.schedule import Schedule
from train.config.batch_size import batch_size
from train.data import dataset, hub
from train.data.batches import Batches, Position
from train.distributed.preparation import Preparation
from train.distributed.process_group import Ranks, open_store
from train.errors import ConfigError
from train.lifecycle.signals import StopListener
from train.model import layout
from train.model.load import survey
from train.model.model import build
from train.model.optimizer import Optimizer
from train.observe import flops
from train.observe.banner import banner
from train.observe.metrics import Meter
from train.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Callable

    from train.checkpoint.resume import Choice
    from train.config.batch_size import BatchSize
    from train.config.config import Config
    from train.data.dataset import Corpus, TokenSet
    from train.data.token_store import Ints
    from train.distributed.env import RankEnv
    from train.lifecycle.signals import EarlySignals
    from train.lifecycle.status import Status
    from train.model.model import Model
    from train.trainer import Outcome


NOISE = (
    ".*is_gradient_checkpointing.* is deprecated",  # peft asks transformers for it
    "fan_in_fan_out is set to False but the target module is `Conv1D`",  # peft sets it itself
    "The PEFT config's `base_model_name_or_path` was renamed",  # ours is written down in the end
    "torch.distributed is disabled, unavailable or uninitialized",  # the export reads alone
)
"""Warnings of libraries about each other, which nobody who trains can act on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """All that nodes must know of each other's samples."""

    lengths: Ints
    targets: Ints

    @classmethod
    def of(cls, samples: TokenSet) -> Lengths:
        """Take them from a node's samples."""
        return cls(lengths=samples.lengths, targets=samples.targets)


def run(
    config: Config,
    env: RankEnv,
    status: Status,
    early_signals: EarlySignals,
    *,
    rendezvous: str | None = None,
) -> Outcome:
    """Train, on every rank.

    Args:
        config: The same on every rank.
        env: This process among them.
        status: Told of every step and of the end.
        early_signals: Takes the signals until the ranks have met.
        rendezvous: Where ranks meet, as a torch init method; the environment says it if None.
    """
    for words in NOISE:
        warnings.filterwarnings("ignore", message=words)
    if config.deterministic:
        # cuBLAS reads it when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(mode=True)
    # At once: an hour of tokenising or loading must not end in arithmetic.
    size = batch_size(config, env.world_size)
    output = Path(config.output_dir)
    timeout = config.start_timeout
    store = open_store(env, timeout=timeout, rendezvous=rendezvous)
    # Before any group exists: no collective may wait, and time out, on a slow node's tokenizer.
    with Preparation(store, env, patience=timeout) as preparation:
        base = hub.model_folder(config)
        corpus = dataset.prepare(config, env)
        early_signals.meet()
        preparation.wait()
    ranks = Ranks.join(env, timeout=timeout, traces=output / "nccl", store=store)
    stop_listener = StopListener(ranks, output)
    stop_listener.listen(early_signals)
    unwatch = ranks.first_failure.watch(lambda cause: status.set("failed", cause))
    try:
        return _together(config, ranks, stop_listener, base, corpus, size, status, unwatch)
    except BaseException as error:
        if theirs := ranks.first_failure.behind(error):
            raise theirs from error
        raise


def _together(
    config: Config,
    ranks: Ranks,
    stop_listener: StopListener,
    base: Path,
    corpus: Corpus,
    size: BatchSize,
    status: Status,
    unwatch: Callable[[], None],
) -> Outcome:
    """Train, now that all ranks are there."""
    env = ranks.env
    about = provenance.about(config, base, corpus.key, env.world_size)
    about["ranks_of_nodes"] = list(ranks.on_nodes().values())
    ranks.same_everywhere(
        {
            "the code in train/": about["code"],
            f"the base model {base}": about["base"],
            "the tokenised data": corpus.key,
        }
        | {f"the installed {name}": text for name, text in provenance.must_match(about).items()}
        | {f"the configuration's {key}": str(value) for key, value in about["config"].items()}
    )
    pythons = _pythons(ranks, about["versions"]["python"])
    # Without any weights: what cannot be trained is refused before 200 GB are read.
    laid = layout.choose(config, ranks, base, survey(config, base))
    config = replace(config, reshard_after_forward=laid.reshards)
    checkpoints = Checkpoints(config, ranks, base, about)
    wanted = config.resume_from_checkpoint
    # Before the model is loaded: a checkpoint that is no good should be said at once.
    choice = resume.choose(checkpoints, ranks, wanted) if wanted else None
    torch.manual_seed(config.seed)
    model = build(config, ranks, base, laid.name)
    checkpoints.adapter = model.adapter
    _refuse_foreign_tokens(config, ranks, model, corpus)
    optimizer = Optimizer(config, model)
    # From here on ranks differ: each drops out other parts of its own samples.
    torch.manual_seed(resume.seed_of(config.seed, 0, env.rank))
    progress, remarks = _start(choice, checkpoints, model, optimizer, ranks)
    if wanted and choice is None:
        remarks = (f"resume: no checkpoint in {checkpoints.output} yet, starting anew", *remarks)
    batches = _batches(config, ranks, corpus, size)
    if progress.position.consumed >= batches.epoch_rows:
        # The data has shrunk since: there is nothing left of this epoch.
        position = Position(epoch=progress.position.epoch + 1)
        remark = (
            f"resume: expected sample {progress.position.consumed} of epoch "
            f"{progress.position.epoch}, found {batches.epoch_rows}: the next epoch begins"
        )
        remarks = (*remarks, remark)
        progress = replace(progress, position=position)
    steps = config.max_steps or _steps(config, batches, size, progress)
    work = flops.per_token(model.network, flops.typical(corpus.train.lengths))
    meter = Meter(config, ranks, flops_per_token=work)
    meter.resumed(progress.step)
    status.step = progress.step
    status.set("running")
    if ranks.is_first:
        lines = banner(config, ranks, model, size, batches, steps=steps, step=progress.step)
        remarks = (*pythons, *laid.remarks, *model.remarks, *corpus.notes, *remarks)
        print("\n".join((*lines, *remarks)), flush=True)
    trainer = Trainer(
        config=config,
        ranks=ranks,
        model=model,
        optimizer=optimizer,
        batches=batches,
        checkpoints=checkpoints,
        schedule=Schedule(config, is_clock=ranks.is_first),
        stop_listener=stop_listener,
        meter=meter,
        status=status,
        steps=steps,
        evaluates=corpus.eval is not None,
    )
    outcome = trainer.run(progress)
    meter.close()
    checkpoints.close()
    unwatch()
    status.set(outcome.state, outcome.reason)
    if ranks.is_first:
        print(f"{outcome.state} at step {outcome.step}: {outcome.reason}", flush=True)
    # The others leave when the outcome is written: a launcher may look as soon as one has ended.
    ranks.barrier()
    ranks.leave()
    return outcome


def _refuse_foreign_tokens(config: Config, ranks: Ranks, model: Model, corpus: Corpus) -> None:
    """Refuse a tokenizer that is another model's, on all ranks.

    The embeddings would be read beyond their end; a GPU says that an assertion failed.

    Raises:
        ConfigError: There is a token without an embedding.
    """
    # All of a node's tokens are read for it, so once a node.
    largest = max(ranks.gather(corpus.largest_token if ranks.is_leader else 0))
    if largest >= model.vocabulary:
        wanted = f"{config.name_or_path}: expected an embedding for token {largest} of the data"
        raise ConfigError(
            (f"{wanted}, found {model.vocabulary} embeddings",),
            hint="the tokenizer beside the model is another one's: put the model's own there",
        )


def _pythons(ranks: Ranks, version: str) -> tuple[str, ...]:
    """Say where nodes have other patch levels of Python: that changes no numbers."""
    found = ranks.gather(version)
    who = [f"{text} on rank {(r := found.index(text))} on {ranks.hosts[r]}" for text in set(found)]
    return (f"Python differs: {', '.join(sorted(who))}",) if len(who) > 1 else ()


def _batches(config: Config, ranks: Ranks, corpus: Corpus, size: BatchSize) -> Batches:
    """Return this rank's batches; nodes with samples of their own first tell each other theirs."""
    if config.node_data == "whole" or len(ranks.leaders) == 1:
        return Batches(corpus.train, corpus.eval, config, size, rank=ranks.env.rank)
    mine = (Lengths.of(corpus.train), Lengths.of(corpus.eval) if corpus.eval else None)
    rows = ranks.gather(mine if ranks.is_leader else None)
    theirs = [row for row in rows if row is not None]
    return Batches(
        corpus.train,
        corpus.eval,
        config,
        size,
        rank=ranks.env.rank,
        pools=[train for train, _ in theirs],
        evaluation_pools=[held_out for _, held_out in theirs if held_out],
        ranks_of_pools=tuple(ranks.on_nodes().values()),
    )


def _steps(config: Config, batches: Batches, size: BatchSize, progress: Progress) -> int:
    """Return all steps of the epochs: those done, with whatever batch and data, and those left."""
    position = progress.position
    here = -(-(batches.epoch_rows - position.consumed) // size.total)
    whole = config.num_train_epochs - position.epoch - 1
    return progress.step + max(0, here + whole * batches.steps_per_epoch)


def _start(
    choice: Choice | None,
    checkpoints: Checkpoints,
    model: Model,
    optimizer: Optimizer,
    ranks: Ranks,
) -> tuple[Progress, tuple[str, ...]]:
    """Go on from a checkpoint, or from nothing; return what a person must know as well."""
    if choice is None:
        return Progress(step=0, position=Position()), checkpoints.set_aside(after=0)
    progress, differences = resume.load(choice, model, optimizer, ranks, checkpoints.about)
    if choice.folder.resolve().parent == checkpoints.output.resolve():
        checkpoints.last_step = progress.step
    return progress, (
        *(f"resume: passed over {text}" for text in choice.refused),
        f"resume: from {choice.folder}, step {progress.step}",
        *(f"resume: {text}" for text in differences),
        *checkpoints.set_aside(after=progress.step),
    )
