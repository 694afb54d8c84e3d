"""Which nodes see the same folder, and whose live run keeps it as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What one node sees in its workdir."""

    node: str
    tokens: tuple[str, ...]
    """Those of the nodes' tokens that lie there, in one order for all nodes."""
    run: Mapping[str, Any] | None
    """Who runs in that folder on this node; None: nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """One folder, and the nodes that share it."""

    token: str
    """The first that all its nodes see."""
    nodes: tuple[str, ...]
    user: Sight | None
    """A node where a run works in it, asked for or not; None: nobody uses it."""


def folders(sights: Iterable[Sight]) -> list[Folder]:
    """Return the folders that nodes see, each with the nodes that see it."""
    nodes: dict[str, list[str]] = {}
    users: dict[str, Sight] = {}
    for sight in sights:
        if not sight.tokens:
            continue  # a folder of its own, that none of the nodes asked for shares
        nodes.setdefault(sight.tokens[0], []).append(sight.node)
        if sight.run is not None:
            users.setdefault(sight.tokens[0], sight)
    return [
        Folder(token=token, nodes=tuple(names), user=users.get(token))
        for token, names in nodes.items()
    ]


def busy(node: str, user: Sight) -> str:
    """Say which run keeps a node's folder from being changed."""
    run = user.run or {}
    words = f"{run.get('run', 'an unknown run')} of {run.get('user', 'someone')} is running"
    if user.node == node:
        return f"{words} here with other files"
    return f"{words} on {user.node}, which shares this folder, with other files"
