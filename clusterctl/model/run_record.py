"""What the record of a run must have in order to be used."""

from __future__ import annotations

from clusterctl.model.bounds import Port, Rank, Seconds
from clusterctl.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedNode:
    """Of a plan, a node."""

    node: str
    node_rank: Rank | None = None
    device: str = ""
    procs: Rank | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPlan:
    """The keys of a plan that are read; that of a rebuilt record has fewer, of a join all."""

    world_size: Rank | None = None
    master_port: Port | None = None
    nodes: tuple[RecordedNode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCause:
    """The keys of a first cause that are always read."""

    node: str = ""
    rank: Rank | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEnd:
    """The keys of an end that are read."""

    state: str = ""
    ended_by: str = ""
    ended: Seconds | None = None
    message: str = ""
    first_cause: RecordedCause | None = None
