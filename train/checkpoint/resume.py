"""Resuming from a checkpoint: verified, the same on every node, loaded on any world size."""

from __future__ import annotations

import base64
import contextlib
import json
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader

from train.checkpoint import manifest
from train.checkpoint.differences import differences
from train.checkpoint.manifest import CorruptCheckpoint
from train.checkpoint.node_sync import copy_to_nodes
from train.checkpoint.provenance import SCHEMA, versions
from train.checkpoint.save import STATE, Checkpoints, Progress, trained_state
from train.data.batches import Position
from train.distributed.process_group import Ranks
from train.errors import CheckpointError, counted
from train.files import Entry, measure
from train.model.loss_scale import LossScale
from train.model.model import Model
from train.model.optimizer import Optimizer

LATEST = "latest"
NEEDED = frozenset(
    {"base", "code", "config", "corpus", "owes_evaluation", "position", "step", "world_size"}
)
"""What state.json must hold to resume from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The checkpoint that all ranks agreed on."""

    folder: Path
    step: int
    refused: tuple[str, ...]
    """Newer ones that were skipped, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one node has."""

    folder: Path | None
    step: int
    seal: str
    refused: tuple[str, ...]


def choose(checkpoints: Checkpoints, ranks: Ranks, wanted: str | None) -> Choice | None:
    """Agree on the checkpoint to resume from, `latest` or a path, and copy it to every node.

    Returns:
        The checkpoint; None if none is wanted, or if `latest` is and there is none yet.

    Raises:
        CheckpointError: The path is not whole, or nothing is; on every rank.
    """
    if not wanted:
        return None
    found = Found(folder=None, step=-1, seal="", refused=())
    if checkpoints.writes:
        found = newest(checkpoints.output) if wanted == LATEST else _exactly(Path(wanted))
    rows = ranks.gather(found, ranks.storage)
    best = max(rows, key=lambda row: row.step)
    refused = tuple(
        f"{ranks.hosts[rank]}: {text}" for rank, row in enumerate(rows) for text in row.refused
    )
    if best.folder is None:
        if not refused:
            return None
        message = "resume_from_checkpoint: expected a whole checkpoint, found none\n"
        raise CheckpointError(message + "\n".join(refused) + _hint(checkpoints, ranks, wanted))
    if not checkpoints.shared:
        _copy_where_lacking(ranks, best, rows)
    _same_seal(ranks, best)
    return Choice(folder=best.folder, step=best.step, refused=refused)


def newest(output: Path) -> Found:
    """Return the newest whole checkpoint of a folder, and why newer ones are not."""
    refused: list[str] = []
    for folder in manifest.candidates(output):
        try:
            seal = manifest.verify(folder)
        except CorruptCheckpoint as damage:
            refused.append(f"{folder}: {damage}")
            continue
        step = manifest.step_of(folder) or 0
        return Found(folder=folder, step=step, seal=seal, refused=tuple(refused))
    return Found(folder=None, step=-1, seal="", refused=tuple(refused))


def _exactly(folder: Path) -> Found:
    try:
        seal = manifest.verify(folder)
        step = _state(folder)["step"]
    except (CorruptCheckpoint, CheckpointError) as error:
        return Found(folder=None, step=-1, seal="", refused=(f"{folder}: {error}",))
    return Found(folder=folder, step=step, seal=seal, refused=())


def _hint(checkpoints: Checkpoints, ranks: Ranks, wanted: str) -> str:
    """Name the newest whole checkpoint: of the wanted folder if it is a run's, or of this run."""
    if wanted == LATEST:
        return "\nhint: choose another output_dir to start at step 0"
    here = None
    if checkpoints.writes:
        here = newest(Path(wanted))
        here = here if here.folder else newest(checkpoints.output)
    names = [str(row.folder) for row in ranks.gather(here, ranks.storage) if row and row.folder]
    if names:
        own = Path(names[0]).parent == checkpoints.output
        word = " (as `latest` is)" if own else ""
        return (
            f"\nhint: --resume-from-checkpoint {shlex.quote(names[0])}, the newest whole one{word}"
        )
    return "\nhint: --resume-from-checkpoint latest takes the newest in output_dir, if there is one"


def _copy_where_lacking(ranks: Ranks, best: Found, rows: list[Found]) -> None:
    """Copy the chosen checkpoint to the nodes that have none like it."""
    assert best.folder is not None
    lacking = [rank for rank in ranks.leaders if rows[rank].seal != best.seal]
    if not lacking:
        return
    source = next(rank for rank, row in enumerate(rows) if row.seal == best.seal)
    names = [manifest.MANIFEST, manifest.COMPLETE]
    listed: dict[str, Entry] = {}
    if ranks.env.rank == source:
        _, files = manifest.sealed(best.folder)
        listed = files | {name: measure(best.folder / name) for name in names}
    listed = ranks.broadcast(listed, source)
    folder = best.folder.with_name(f"{best.folder.name}.tmp-brought")
    if ranks.env.rank in lacking:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # reported below: every node takes part in the exchange
            folder.mkdir(parents=True)
    here = best.folder if ranks.env.rank not in lacking else folder
    problem = ""
    try:
        copy_to_nodes(ranks, here, listed, dict.fromkeys(listed, source))
        if ranks.env.rank in lacking:
            manifest.publish(folder, best.folder)
    except OSError as error:
        problem = str(error)
    if problems := ranks.problems(problem):
        message = f"{best.folder}: expected it copied to every node, found {problems}"
        raise CheckpointError(message)
    if ranks.is_first:
        where = ", ".join(ranks.hosts[rank] for rank in lacking)
        print(f"{best.folder}: copied from {ranks.hosts[source]} to {where}", file=sys.stderr)


def _same_seal(ranks: Ranks, best: Found) -> None:
    """Verify that every node sees the same checkpoint, also if storage is shared."""
    assert best.folder is not None
    problem = ""
    if ranks.is_leader:
        try:
            seal, _ = manifest.sealed(best.folder)
            problem = "" if seal == best.seal else f"sealed {seal[:12]}, not {best.seal[:12]}"
        except CorruptCheckpoint as damage:
            problem = str(damage)
    rows = ranks.gather(problem, ranks.storage)
    wrong = [f"{ranks.hosts[rank]}: {text}" for rank, text in enumerate(rows) if text]
    if wrong:
        message = f"{best.folder}: expected the same checkpoint on every node, found\n"
        raise CheckpointError(message + "\n".join(wrong))


def start(
    choice: Choice | None,
    checkpoints: Checkpoints,
    model: Model,
    optimizer: Optimizer,
    ranks: Ranks,
) -> tuple[Progress, tuple[str, ...]]:
    """Resume from a checkpoint, or start at step 0; return the progress and remarks on it."""
    about = checkpoints.about
    # From here on ranks differ: each has its own dropout.
    torch.manual_seed(seed_of(about["config"]["seed"], 0, ranks.env.rank))
    if choice is None:
        remarks = checkpoints.set_aside(after=0)
        checkpoints.settled = True
        if about["config"]["resume_from_checkpoint"]:
            none = f"resume: no checkpoint in {checkpoints.output} yet, starting at step 0"
            remarks = (none, *remarks)
        return Progress(step=0, position=Position()), remarks
    progress, changes = load(choice, model, optimizer, ranks, about)
    checkpoints.resumed = (choice.step, choice.folder)
    # Every rank must decide alike: one may see the folder by another name.
    is_own = choice.folder.resolve() == checkpoints.folder(choice.step).resolve()
    if ranks.broadcast(is_own):
        checkpoints.last_step = progress.step
    # Whatever is here of a training that was resumed from elsewhere is none of its own.
    set_aside = checkpoints.set_aside(after=progress.step if checkpoints.last_step else 0)
    checkpoints.settled = True
    return progress, (
        *(f"resume: skipped {text}" for text in choice.refused),
        f"resume: from {choice.folder}, step {progress.step}",
        *(f"resume: {text}" for text in changes),
        *set_aside,
    )


def load(
    choice: Choice, model: Model, optimizer: Optimizer, ranks: Ranks, now: Mapping[str, Any]
) -> tuple[Progress, tuple[str, ...]]:
    """Load a checkpoint's weights, moments and random numbers; all ranks must call this.

    Weights that cannot be loaded are a CheckpointError on every rank; a file that only this rank
    cannot read is an error on this one.

    Returns:
        The progress, and remarks on what has changed since: `now` is what state.json would hold.
    """
    then = _state(choice.folder)
    remarks = differences(then, now)
    state = trained_state(model, optimizer)
    reader = FileSystemReader(choice.folder)
    refuse_missing(choice.folder, then, reader, state)
    try:
        state_dict_loader.load(state, storage_reader=reader, process_group=ranks.storage)
    except CheckpointException as error:  # on every rank, wherever it went wrong
        found = "; ".join(
            f"{ranks.name(rank)}: {type(cause).__name__}: {cause}"
            for rank, (cause, _) in error.failures.items()
        )
        raise CheckpointError(f"{choice.folder}: cannot be loaded: {found}") from None
    if then["world_size"] == ranks.env.world_size:
        _set_random_state(choice.folder / f"rng-{ranks.env.rank:05d}.json", ranks.device)
    else:
        # Another stream than any that was used.
        torch.manual_seed(seed_of(now["config"]["seed"], then["step"], ranks.env.rank))
        ranks_then, ranks_now = then["world_size"], ranks.env.world_size
        words = "the same samples and mathematics, new random numbers for dropout"
        remarks += (f"{counted(ranks_then, 'rank')} wrote it, {ranks_now} resume: {words}",)
    progress = Progress(
        step=then["step"],
        position=Position(**then["position"]),
        owes_evaluation=then["owes_evaluation"],
        loss_scale=LossScale(**scale) if (scale := then.get("loss_scale")) else None,
    )
    optimizer.set_step(progress.updates)
    optimizer.loss_scale = optimizer.loss_scale and (progress.loss_scale or optimizer.loss_scale)
    return progress, remarks


def refuse_missing(
    folder: Path, then: Mapping[str, Any], reader: FileSystemReader, state: Mapping[str, Any]
) -> None:
    """Refuse a checkpoint that this torch or Python cannot read.

    Refuse one from before buffers were saved, too: they would stay as the base has them.
    """
    try:
        stored = reader.read_metadata().state_dict_metadata
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        # Torch before 2.15 cannot read what 2.15 writes, nor other Pythons the paths of 3.13.
        known = then.get("versions", {})
        wrote, reads = (
            f"torch {each.get('torch')} on Python {each.get('python')}"
            for each in (known, versions())
        )
        message = (
            f"{folder / '.metadata'}: expected one that {reads} can read, found one of {wrote}: "
            f"{error}\nhint: resume with the versions that wrote it, or with later ones"
        )
        raise CheckpointError(message) from error
    lacking = sorted(state.keys() - stored.keys())
    if lacking:
        more = f" (and {len(lacking) - 1} others)" if len(lacking) > 1 else ""
        message = (
            f"{folder}: expected {lacking[0]}{more} in the checkpoint, found it missing\n"
            "hint: an earlier version of train/ wrote it: resume with that, or choose another "
            "output_dir"
        )
        raise CheckpointError(message)


def _state(folder: Path) -> dict[str, Any]:
    """Return a checkpoint's state.json; refuse that of another program, or of a later version."""
    try:
        found: dict[str, Any] = json.loads((folder / STATE).read_text())
        schema, lacking = found.get("schema"), NEEDED - found.keys()
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder / STATE}: cannot be read: {error}") from error
    if schema != SCHEMA or lacking:
        what = f"one without {', '.join(sorted(lacking))}" if schema == SCHEMA else f"{schema}"
        message = (
            f"{folder / STATE}: expected schema {SCHEMA}, found {what}"
            "\nhint: resume with the version of train/ that wrote it, or choose another output_dir"
        )
        raise CheckpointError(message)
    return found


def seed_of(*numbers: int) -> int:
    """Return a seed for a run's seed, a step and a rank: another one for each, in 64 bits."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def _set_random_state(path: Path, device: torch.device) -> None:
    for name, text in json.loads(path.read_text()).items():
        state = torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
        if name == "cpu":
            torch.set_rng_state(state)
        elif device.type == "cuda":
            torch.cuda.set_rng_state(state, device)
