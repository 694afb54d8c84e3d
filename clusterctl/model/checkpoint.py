"""What one node says of the checkpoints that it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from clusterctl.model.from_json import Bounds, Count, Rank, Seconds, Whole
from clusterctl.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFiles:
    """The files of some ranks."""

    ranks: Annotated[tuple[Rank, ...], Bounds(1)]
    metadata: bool
    """With the file of rank 0 that describes all."""
    steps: tuple[Whole, ...]
    """Those that the files name."""
    saved: Annotated[tuple[Seconds, ...], Bounds(1)]
    """When they were written."""
    world_size: Rank | None = None
    """As the files name it."""
    supposed: Rank | None = None
    """As the run had it."""
    whole: bool = False
    """All ranks' files are here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCheckpoint:
    """A checkpoint as one node sees it."""

    name: str
    path: str
    complete: bool
    why: str
    """Why it is not complete."""
    hash: str
    """Equal where the checkpoint is, as far as it was read."""
    time: Seconds
    """When it was written, by the node's clock."""
    format: str
    step: Whole | None = None
    epoch: Whole | None = None
    date: Whole | None = None
    real: tuple[str, ...] = ()
    """Where its links lead."""
    run: str = ""
    """The run that wrote it; empty: unknown."""
    older: bool = False
    """It was written before the run began."""
    recorded: bool = False
    """The checkpoint itself names its run."""
    beside: tuple[str, ...] = ()
    """Other runs that may have written it."""
    files: Mapping[str, str] | None = None
    """Name → digest."""
    doubts: tuple[str, ...] = ()
    mixed: str = ""
    """Why it may be of two saves."""
    bytes: Count = 0
    part: RankFiles | None = None
    """If it has the files of some ranks only."""


def absent(why: str) -> NodeCheckpoint:
    """Return what there is to say of a checkpoint that a node does not have: it has no name."""
    return NodeCheckpoint(name="", path="", complete=False, why=why, hash="", time=0.0, format="")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointsAnswer:
    """`checkpoints`."""

    candidates: tuple[NodeCheckpoint, ...]
    knows: bool = False
    """The run was on the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneCheckpointAnswer(CheckpointsAnswer):
    """`checkpoints` of a named one."""

    candidates: Annotated[tuple[NodeCheckpoint, ...], Bounds(1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The newest checkpoint that looks complete."""

    path: str
    step: int | None
    time: float
    format: str
    run: str = ""
    """The run that wrote it, this one or one that it resumes; empty if unknown."""
    missing_on: str = ""
    """A node that lacks it or has another: neither a resume nor a restart takes it; empty: none is known."""
