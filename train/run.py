"""One training from its configuration to its outcome; `build_and_train` lists the steps."""

from __future__ import annotations

import math
import os
import platform
import secrets
import warnings
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from train import versions
from train.checkpoint import provenance, remote, resume
from train.checkpoint.save import Checkpoints, Progress
from train.checkpoint.schedule import Schedule
from train.checkpoint.uploads import Uploads
from train.config.batch_size import BatchSize, batch_size
from train.config.config import Config
from train.data import dataset, hub
from train.data.batches import Batches, Position
from train.data.dataset import Corpus
from train.data.progress import Phase, Reporter
from train.data.stream import batches as stream
from train.data.stream.batches import Stream, StreamCorpus
from train.distributed.env import RankEnv
from train.distributed.preparation import Preparation
from train.distributed.process_group import Ranks, open_store
from train.errors import ConfigError, explain_oom
from train.lifecycle import garbage
from train.lifecycle.signals import EarlySignals, StopListener
from train.lifecycle.status import Status
from train.model import kinds, layout, lora_targets, memory
from train.model.layout import Layout
from train.model.load import compute_dtype, make_on_meta, settle_dtype
from train.model.model import Model, build
from train.model.optimizer import Optimizer
from train.object_store import is_url
from train.observe import flops
from train.observe.banner import banner
from train.observe.metrics import Meter
from train.observe.records import NAME, Records
from train.observe.trackers import Trackers
from train.trainer import Outcome, Trainer

NOISE = (
    ".*is_gradient_checkpointing.* is deprecated",  # peft asks transformers for it
    "fan_in_fan_out is set to False but the target module is `Conv1D`",  # peft sets it itself
    "The PEFT config's `base_model_name_or_path` was renamed",  # the export writes its own
    "find_unused_parameters=True was specified",  # DDP, of a model that uses all its weights
    "torch.distributed is disabled, unavailable or uninitialized",  # the export reads alone
)
"""Warnings of libraries about each other, which a user cannot act on."""
ALLOCATOR_SETTINGS = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"}
"""Variables that torch reads its memory settings from; before 2.11 it may overlook the first."""


def run(
    config: Config,
    env: RankEnv,
    status: Status,
    early_signals: EarlySignals,
    *,
    rendezvous: str | None = None,
) -> Outcome:
    """Train, on every rank.

    `early_signals` handles the signals until the ranks have joined. They meet at `rendezvous`, a
    torch init method, or where the environment says.
    """
    set_up_libraries(config)
    # First: an hour of tokenizing or loading must not end in an arithmetic error.
    batch_size(config, env.world_size)
    output, timeout = Path(config.output_dir), config.start_timeout
    store = open_store(env, timeout=timeout, rendezvous=rendezvous)
    # Before any group exists: no collective may time out on a slow node's tokenizer.
    with Preparation(store, env, patience=timeout) as preparation:
        base = hub.model_folder(config)
        report = partial(report_phase, status) if env.rank == 0 else None
        wanted = stored_checkpoint(config, env, Reporter(dataset="the checkpoint", report=report))
        attempt = preparation.agree(secrets.token_hex(4))
        prepare = partial(stream.prepare, attempt=attempt) if config.stream else dataset.prepare
        corpus = prepare(config, env, check=preparation.check, report=report)
        early_signals.meet()
        preparation.wait()
    ranks = Ranks.join(env, timeout=timeout, traces=output / "nccl", store=store)
    stop_listener = StopListener(ranks, output, lambda reason: status.set("failed", reason))
    stop_listener.listen(early_signals)
    unwatch = ranks.first_failure.watch(lambda cause: status.set("failed", cause))
    # Last of all: a tracker may take its time when the outcome is written.
    with ExitStack() as cleanup:
        cleanup.callback(stop_listener.close)
        try:
            outcome = build_and_train(
                config, ranks, base, corpus, wanted, stop_listener, status, cleanup
            )
            unwatch()
            status.set(outcome.state, outcome.reason)
            if ranks.is_first:
                print(outcome, flush=True)
            # The outcome is written before any rank exits: a launcher may look once one has exited.
            ranks.barrier()
            ranks.leave()
            stop_listener.listen_again("giving up what is left to do")
        except BaseException as error:
            if theirs := ranks.first_failure.cause_of(error):
                raise theirs from error
            raise
        return outcome


def report_phase(status: Status, phase: Phase) -> None:
    """Say how far the preparation is, in the log and in status.json."""
    print(phase.words(), flush=True)
    status.set("starting", phase=phase.about())


def stored_checkpoint(config: Config, env: RankEnv, reporter: Reporter) -> str | None:
    """Return the checkpoint to resume from; one in an object store is downloaded, once a node."""
    if config.upload_to and env.rank == 0:
        remote.probe(config.upload_to, tell)
    wanted = config.resume_from_checkpoint
    if wanted and is_url(wanted) and env.local_rank == 0:
        return str(remote.bring(wanted, Path(config.output_dir), tell=tell, reporter=reporter))
    return wanted


def tell(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def build_and_train(
    config: Config,
    ranks: Ranks,
    base: Path,
    corpus: Corpus,
    wanted: str | None,
    stop_listener: StopListener,
    status: Status,
    cleanup: ExitStack,
) -> Outcome:
    """Agree, lay out, build the model, resume, distribute the data, train."""
    if isinstance(corpus, StreamCorpus) and ranks.env.local_rank == 0:
        cleanup.callback(corpus.source.close)
    config, dtype_remarks = settle_dtype(lora_targets.continued(config), ranks.device)
    about, version_remarks = agree(config, ranks, base, corpus)
    # On the meta device: a model that cannot be trained is refused before 200 GB are read.
    network = make_on_meta(config, base, compute_dtype(config, ranks.device))
    laid = layout.choose(config, ranks, base, kinds.count(network))
    config = replace(config, reshard_after_forward=laid.reshards)
    checkpoints = Checkpoints(config, ranks, base, about)
    stop_listener.newest = checkpoints.newest
    # Before the model is loaded: a damaged checkpoint is reported at once.
    choice = resume.choose(checkpoints, ranks, wanted)
    model = build_model(config, ranks, base, laid, network, corpus)
    checkpoints.adapter = model.adapter
    with explain_oom("the optimizer's state"):
        optimizer = Optimizer(config, model)
        progress, resume_remarks = resume.start(choice, checkpoints, model, optimizer, ranks)
    size = batch_size(config, ranks.env.world_size)
    batches = make_batches(config, ranks, corpus, size, model.vocabulary)
    if isinstance(batches, Stream):
        cleanup.enter_context(batches.making(progress.position))
    progress, data_remarks = skip_finished_epoch(progress, batches.epoch_rows)
    steps = config.max_steps or count_steps(config, batches, size, progress)
    length = flops.typical(corpus.train) / (1 + config.in_pairs)
    work = flops.per_token(model.network, length, referenced=config.objective == "dpo")
    status.step = progress.step
    status.set("running")
    if ranks.is_first:
        remarks = (
            *versions.remarks(), *version_remarks, *dtype_remarks, *laid.remarks, *model.remarks,
            *checkpoints.remarks(model), *corpus.notes,
            *memory.position_remarks(network, int(corpus.train.lengths.max())),
            *resume_remarks, *data_remarks,
        )  # fmt: skip
        lines = banner(config, ranks, model, size, batches, steps=steps, step=progress.step)
        print("\n".join((*lines, *remarks)), flush=True)
    reports = config.report_to if ranks.is_first else ()
    if config.upload_to and ranks.is_first:
        checkpoints.uploads = cleanup.enter_context(uploads_of(config, status, stop_listener))
        if checkpoints.last_step:  # an earlier run may have been killed before it was uploaded
            checkpoints.uploads.add(checkpoints.folder(checkpoints.last_step))
    trackers = cleanup.enter_context(Trackers(config, reports, step=progress.step))
    meter = Meter(config, ranks, flops_per_token=work, trackers=trackers)
    meter.resumed(progress.step)
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
    with garbage.collected_by_steps():
        outcome = trainer.run(progress)
    meter.close()
    checkpoints.close()
    return outcome


def uploads_of(config: Config, status: Status, stop_listener: StopListener) -> Uploads:
    """Return what copies checkpoints to `upload_to`; a signal gives up the wait at the end."""
    assert config.upload_to
    return Uploads(
        config.upload_to,
        status,
        Records(Path(config.output_dir) / NAME).add,
        patience=config.upload_timeout,
        gives_up=lambda: stop_listener.vote()[0] > 0,
    )


def set_up_libraries(config: Config) -> None:
    """Silence warnings that cannot be acted on; set what torch reads when a GPU starts."""
    for words in NOISE:
        warnings.filterwarnings("ignore", message=words)
    # Each micro-batch has its own width: fixed segments would split the GPU's memory into pieces.
    # The old names win over the new one in some parts of torch, so none is added to them.
    # WSL's driver has no virtual memory management: pytorch#192330.
    if not os.environ.keys() & ALLOCATOR_SETTINGS and "microsoft" not in platform.release():
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    if config.deterministic:
        # cuBLAS reads it when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(mode=True)


def agree(
    config: Config, ranks: Ranks, base: Path, corpus: Corpus
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Refuse nodes with different code, models, data, packages or configurations.

    Returns:
        What checkpoints record of this run, and remarks on Python's versions and the adapter.
    """
    about = provenance.about(config, base, corpus, ranks.env.world_size)
    about["ranks_of_nodes"] = list(ranks.on_nodes().values())
    ranks.same_everywhere(
        {
            "the code in train/": about["code"],
            f"the base model {base}": about["base"],
            "the tokenized data": corpus.key,
            f"the adapter {config.lora_init_from}": provenance.base(
                Path(config.lora_init_from or base)
            ),
        }
        | {f"the installed {name}": text for name, text in provenance.must_match(about).items()}
        | {f"the configuration's {key}": str(value) for key, value in about["config"].items()}
    )
    # Another patch level of Python changes no numbers: a remark is enough.
    found = ranks.gather(about["versions"]["python"])
    who = [f"{text} on rank {(r := found.index(text))} on {ranks.hosts[r]}" for text in set(found)]
    remarks = [f"Python differs: {', '.join(sorted(who))}"] if len(who) > 1 else []
    adapter = config.lora_init_from
    if adapter and provenance.is_of_another(Path(adapter), about["base"]):
        remarks.append(f"{adapter} was trained on other files of the base than {base} has")
    return about, tuple(remarks)


def build_model(
    config: Config, ranks: Ranks, base: Path, laid: Layout, network: nn.Module, corpus: Corpus
) -> Model:
    """Shard and fill the model; refuse data with tokens that it has no embeddings for.

    An embedding would be read past its end; on a GPU that is a failed assertion without a name.
    """
    torch.manual_seed(config.seed)
    model = build(config, ranks, base, laid, network)
    largest = max(ranks.gather(corpus.largest_token))
    if largest >= model.vocabulary:
        wanted = f"{config.name_or_path}: expected an embedding for token {largest} of the data"
        raise ConfigError(
            f"{wanted}, found {model.vocabulary} embeddings",
            hint="the tokenizer in the model's folder is another model's: put its own there",
        )
    return model


def make_batches(
    config: Config, ranks: Ranks, corpus: Corpus, size: BatchSize, vocabulary: int
) -> Batches:
    """Return this rank's batches; nodes with samples of their own first exchange the lengths."""
    rank, vision = ranks.env.rank // size.context, corpus.vision
    if isinstance(corpus, StreamCorpus):
        return Stream(corpus, config, size, rank=rank, env=ranks.env, vocabulary=vocabulary)
    batches = partial(Batches, corpus.train, corpus.eval, config, size, rank=rank, vision=vision)
    if config.node_data == "whole" or len(ranks.leaders) == 1:
        return batches()
    if any(count % size.context for count in ranks.on_nodes().values()):
        raise ConfigError(
            "node_data: expected whole where ranks of several nodes share rows (context_parallel: "
            f"{size.context}), found strided"
        )
    mine = (corpus.train.sizes, corpus.eval.sizes if corpus.eval else None)
    rows = ranks.gather(mine if ranks.is_leader else None)
    theirs = [row for row in rows if row is not None]
    return batches(
        pools=[train for train, _ in theirs],
        evaluation_pools=[held_out for _, held_out in theirs if held_out],
        ranks_of_pools=tuple(count // size.context for count in ranks.on_nodes().values()),
    )


def skip_finished_epoch(progress: Progress, epoch_rows: int) -> tuple[Progress, tuple[str, ...]]:
    """Begin the next epoch if the data has shrunk to less than what this one has consumed."""
    position = progress.position
    if position.consumed < epoch_rows:
        return progress, ()
    remark = (
        f"resume: expected sample {position.consumed} of epoch {position.epoch}, found "
        f"{epoch_rows}: the next epoch begins"
    )
    return replace(progress, position=Position(epoch=position.epoch + 1)), (remark,)


def count_steps(config: Config, batches: Batches, size: BatchSize, progress: Progress) -> int:
    """Return all steps of the epochs: those done, with whatever batch and data, and those left."""
    position = progress.position
    here = -(-(batches.epoch_rows - position.consumed) // size.total)
    an_epoch = batches.steps_per_epoch
    later = math.ceil(config.num_train_epochs * an_epoch) - (position.epoch + 1) * an_epoch
    return progress.step + max(0, here + later)
