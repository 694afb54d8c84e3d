"""What a sync did on each node, and what the nodes have by it."""

from collections.abc import Callable
from typing import Any, Literal

from clusterctl.errors import LargeCopy
from clusterctl.values import dataclass
from clusterctl.wire import plain

SyncState = Literal["unchanged", "updated", "shared", "source", "failed", "unreachable"]

HINTS = {
    "busy": "wait for that run to end, or stop it",
    "silent": "its file server hangs, or its mount: try `ls` there",
    "running": "stop that run, wait for its end, or use another folder: --workdir DIR",
    "in-the-way": "move it away on that node, or choose another workdir",
    "squatted": "remove it on that node, or choose another workdir",
    "workdir": "make the folder there, or correct `workdir` in the inventory",
}
"""What to do about an error of `node.mirror.mirror` or `node.mirror.sync_diff`, by its kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSync:
    """What the sync did on one node."""

    node: str
    state: SyncState
    """shared: another node on the same filesystem was given the files; source: its workdir is
    the folder that is synced."""
    workdir: str
    sent: int = 0
    """Files that differed."""
    sent_paths: tuple[str, ...] = ()
    """The first of them."""
    deleted: int = 0
    deleted_paths: tuple[str, ...] = ()
    """The first of them."""
    set_aside: tuple[str, ...] = ()
    """The user's files that had to make way, now in .clusterctl/replaced/ there."""
    words: str = ""
    hint: str = ""

    @property
    def ok(self) -> bool:
        """The node has the tree."""
        return self.state not in {"failed", "unreachable"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncOptions:
    """How a folder is mirrored."""

    delete: bool = False
    """Delete also what the command names, or most of what was placed."""
    command: tuple[str, ...] = ()
    """The words of the command that is launched then: files that they name are wanted there."""
    launching: bool = False
    """A launch or a resume wants it, and could do without."""
    tree: str = ""
    """The hash that the folder must have; empty: any."""
    may_copy: Callable[[LargeCopy], bool] = lambda _: False
    """Says whether a copy may be so large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """What the nodes have now."""

    schema: int = 1
    cluster: str
    source: str
    tree: str
    """The hash that was verified on every node that is ok."""
    files: int
    bytes: int
    commit: str | None
    dirty: bool
    diff: str
    """The uncommitted changes, as a patch."""
    nodes: tuple[NodeSync, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Every node has the tree."""
        return all(node.ok for node in self.nodes)

    @property
    def exit_code(self) -> int:
        """0, 1 where a node could not be brought to it, 3 where only answers are missing."""
        if self.ok:
            return 0
        failed = any(node.state == "failed" for node in self.nodes)
        return 1 if failed else 3

    def document(self) -> dict[str, Any]:
        """Return it as JSON; the patch is left to the run's record, it can be megabytes."""
        document: dict[str, Any] = plain(self)
        del document["diff"]
        return document
