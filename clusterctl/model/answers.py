"""What nodes answer to an operation; `node_run` and `checkpoint` have the larger values of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from clusterctl.model.dump import NodeDump
from clusterctl.model.from_json import Bounds, Count, Pid, Port, Rank, Seconds
from clusterctl.model.node_run import NodeRun
from clusterctl.model.samples import Samples
from clusterctl.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Of any operation: it did not do what was asked."""

    kind: str
    message: str
    hint: str = ""
    holder: Mapping[str, Any] | None = None
    """Who has what was asked for: `run`, `user`, `pid`, `uid`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusAnswer:
    """`status`; the last message of `tail`."""

    node: NodeRun


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsAnswer:
    """`metrics`; the lines are its body."""

    file: str
    """Empty: there is none."""
    every: Count = 1
    """The lines are every so many-th."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesAnswer:
    """`samples`."""

    samples: Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchAnswer:
    """`watch`."""

    node: NodeRun
    samples: Samples
    """Those that are new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpAnswer:
    """`dump`."""

    dump: NodeDump | None = None
    """Null: the run is over here, and kept none."""
    state: str = ""
    """Of the run on the node."""
    note: str = ""
    """What was not as it should be."""
    nodes: tuple[str, ...] = ()
    """On the master, all nodes of the run."""
    needs_tool: bool = False
    """It has not got py-spy yet: the call is to be made again, with the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What became of a message to a receiver."""

    receiver: str
    """`webhook` with the name of its variable, or `command` with its program."""
    ok: bool
    """It was taken."""
    answer: str
    """What the server answered, or how the command ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedAnswer:
    """`note-runs`: whether the node has the run."""

    noted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderWriter:
    """A live run that has a note about a folder of checkpoints."""

    run: str
    name: str
    cluster: str
    user: str
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WritersAnswer:
    """`checkpoint-writers`."""

    writers: tuple[FolderWriter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyAnswer:
    """`notify-test`."""

    told: tuple[Told, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsAnswer:
    """`runs`."""

    runs: tuple[NodeRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneAnswer:
    """`prune`."""

    kept: Mapping[str, str]
    """Run → why it stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAnswer:
    """`start`."""

    pid: Pid
    """The supervisor's."""
    link_port: Port


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinTerms:
    """`join` with `asks` or `withdraws`."""

    job: Mapping[str, Any] | None = None
    """The master's own; null if it was not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """`join`: the master lets a node in."""

    job: Mapping[str, Any]
    node_rank: Rank
    nodes: tuple[str, ...]
    link_port: Port


@dataclass(frozen=True, slots=True, kw_only=True)
class PortHolder:
    """A process that has the master port."""

    pid: Count | None = None
    """Its process id."""
    cmd: str = ""
    """Its command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftProcess:
    """A process that is still there."""

    pid: Count | None = None
    """Its process id; 0: it is a container."""
    cmd: str = ""
    """Its command."""
    why: str = ""
    """Why it is still there, or what it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAnswer:
    """`stop`; null: the node could not see it."""

    gone: bool = False
    left: tuple[LeftProcess, ...] = ()
    strangers: tuple[LeftProcess, ...] = ()
    port_free: bool | None = None
    port_holder: PortHolder | None = None
    gpu_free: bool | None = True
    """An earlier version had no such word."""
    nodes: tuple[str, ...] = ()
    """All nodes of the run, as the master knows them."""
    left_out: tuple[str, ...] = ()
    """Those without which it continued, as the node knows them."""
    elsewhere: tuple[str, ...] = ()
    ended: str = ""
    had_run: bool | None = None
    """Null: an earlier version has no such word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecAnswer:
    """`exec`."""

    exit_code: Annotated[int, Bounds(0, 255)]
    timed_out: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VenvAnswer:
    """`make-venv`."""

    state: Literal["created", "updated", "unchanged"]
    version: str
    packages: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformAnswer:
    """`platform`: which wheels fit."""

    python: str
    arch: str
    glibc: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeAnswer:
    """`sync-compare`: whether the workdir has the files of a listing."""

    equal: bool
    placed: bool = False
    """A sync placed files there before."""
    different: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenAnswer:
    """`share-look`: which nodes' tokens are in the workdir, and who runs there."""

    seen: tuple[str, ...]
    busy: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortAnswer:
    """`sync-apply`, if not all nodes could be changed."""

    aborted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceAnswer:
    """`sync-apply`: what a sync changed."""

    need: Count
    deleted: Count
    set_aside: tuple[str, ...]
    equal: bool
    different: tuple[str, ...]
    sent_paths: tuple[str, ...] = ()
    deleted_paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockAnswer:
    """Of a conversation about facts: the node's time."""

    time: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAnswer:
    """Of `checkpoints` that reads every byte: how many it has read."""

    read: Count
