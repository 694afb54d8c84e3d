"""What the record of a run must have in order to be used."""

from __future__ import annotations

from clusterctl.model.from_json import Count, ExitCode, Port, Rank, Seconds, Signal
from clusterctl.model.quarantine import Quarantined
from clusterctl.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedNode:
    """Of a plan, a node."""

    node: str
    node_rank: Rank | None = None
    device: str = ""
    interface: str = ""
    procs: Rank | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPlan:
    """The keys of a plan that are read; that of a rebuilt record has fewer, of a join all."""

    world_size: Rank | None = None
    master_port: Port | None = None
    nodes: tuple[RecordedNode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCause:
    """A first cause; an earlier version may have written less."""

    node: str = ""
    rank: Rank | None = None
    time: float | None = None
    """By a node's clock and its offset: any number."""
    kind: str = ""
    exit_code: ExitCode | None = None
    signal: Signal | None = None
    message: str = ""
    remedy: str = ""
    lines: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PastEnd:
    """How a run seemed to have ended before more was known."""

    state: str = ""
    ended_by: str = ""
    first_cause: RecordedCause | None = None
    exit_code: ExitCode | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """What showed later that a run had ended in another way."""

    time: Seconds
    why: str
    was: PastEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How a run ended, as this machine saw it."""

    run: str = ""
    state: str = ""
    exit_code: ExitCode | None = None
    ended_by: str = ""
    ended: Seconds | None = None
    message: str = ""
    """Why it did not start."""
    first_cause: RecordedCause | None = None
    false_alarms: Count = 0
    """How often it was hung, and then ran again."""
    quarantined: tuple[Quarantined, ...] = ()
    """Those of its nodes that were in quarantine when it had ended."""
    corrected: Correction | None = None
