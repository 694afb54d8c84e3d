"""What a push was asked for, and what it did on each node."""

import errno
import os
from collections.abc import Mapping
from typing import Any, Literal

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Cluster, Node, Ssh
from clusterctl.values import dataclass
from clusterctl.wire import SCHEMA, plain

HERE = "this machine"
"""The name of the controller among the sources."""


def this_machine(cluster: Cluster) -> Cluster:
    """Return this machine as the only node of a cluster: it may be the source of a push."""
    node = Node(host="localhost", name=HERE, ssh=Ssh(), local=True)
    return Cluster(name=cluster.name, nodes=(node,))


PushState = Literal[
    "unchanged", "updated", "shared", "source", "would-update", "failed", "unreachable"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """What to push, and how."""

    paths: tuple[str, ...] = ()
    """`PATH` or `LOCAL:REMOTE`; none: the inventory's `job.needs`."""
    source: str | None = None
    """The node that has them; None: this machine if it has, else a node that has all."""
    to: str | None = None
    """The folder on the nodes that gets them, relative to workdir; None: each at its own path."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedPath:
    """One path to push."""

    shown: str
    here: str | None
    """Where it would be on this machine; None: nowhere, its place depends on the node."""
    sources: Mapping[str, str]
    """By node, where it is if that node has it."""
    targets: Mapping[str, str]
    """By node, where it is to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePush:
    """What became of one path on one node."""

    node: str
    state: PushState
    """shared: another node on the same filesystem was given the blocks."""
    path: str
    received: int = 0
    """Bytes that came over the network."""
    words: str = ""
    hint: str = ""

    @property
    def ok(self) -> bool:
        """The node has the path, equal to the source's."""
        return self.state not in {"failed", "unreachable"}


_DENIED = (os.strerror(errno.EACCES), os.strerror(errno.EROFS))
ELSEWHERE = "put it where your user may write: --to DIR"


def failure(error: NodeError, denied: str = "") -> dict[str, Any]:
    """Return the fields of an outcome that tell why a node failed.

    `denied`: the hint for a node that refuses its user the path.
    """
    state = "failed" if error.answered else "unreachable"
    hint = error.hint or (denied if str(error).endswith(_DENIED) else "")
    return {"state": state, "words": str(error), "hint": hint}


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPush:
    """What became of one path."""

    path: str
    source: str
    """The node that it came from, or `this machine`."""
    source_path: str
    bytes: int
    files: int
    nodes: tuple[NodePush, ...]
    seconds: float = 0.0

    @property
    def received(self) -> int:
        """Bytes that all nodes received."""
        return sum(node.received for node in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushResult:
    """What the nodes have now."""

    schema: int = SCHEMA
    cluster: str
    paths: tuple[PathPush, ...]
    dry_run: bool
    seconds: float

    @property
    def exit_code(self) -> int:
        """0; 1 if a node does not have a path; 3 if only answers are missing."""
        states = {node.state for path in self.paths for node in path.nodes}
        if "failed" in states:
            return 1
        return 3 if "unreachable" in states else 0

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        document: dict[str, Any] = plain(self)
        return document
