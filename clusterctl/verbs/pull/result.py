"""What a pull was asked for, and what it brought from each node."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from clusterctl.values import dataclass
from clusterctl.wire import SCHEMA, plain

PullState = Literal["pulled", "unchanged", "same", "absent", "failed", "unreachable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOptions:
    """What to pull, and to where."""

    paths: tuple[str, ...]
    """Relative ones start at workdir."""
    to: Path
    """The folder here."""
    overwrite: bool = False
    """Replace files there that have other contents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePull:
    """What became of one path of one node."""

    node: str
    state: PullState
    """same: another node has the same contents, and was asked; absent: it does not have the path;
    unchanged: it was here already."""
    path: str
    """On the node."""
    to: str = ""
    """Where it is here."""
    bytes: int = 0
    files: int = 0
    received: int = 0
    """Bytes that came over the network."""
    left_out: tuple[str, ...] = ()
    """The first paths in it that are no files, or links to folders outside of it."""
    words: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPull:
    """What became of one path."""

    path: str
    nodes: tuple[NodePull, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PullResult:
    """What is here now."""

    schema: int = SCHEMA
    cluster: str
    to: str
    paths: tuple[PathPull, ...]
    seconds: float

    @property
    def exit_code(self) -> int:
        """0; 1 if a path could not be pulled, or no node has it; 3 if only answers are missing."""
        per_path = [{node.state for node in path.nodes} for path in self.paths]
        if any("failed" in states or states == {"absent"} for states in per_path):
            return 1
        return 3 if any("unreachable" in states for states in per_path) else 0

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        document: dict[str, Any] = plain(self)
        return document
