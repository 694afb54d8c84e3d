"""How `top` shows a run, which keys change, and what its lines stand for."""

from __future__ import annotations

from clusterctl.values import dataclass

SORTS = ("worst", "name", "use", "memory")
"""The orders of nodes, in which the key s turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How it is shown; keys change that."""

    width: int
    height: int | None = None
    """None: as many lines as it takes."""
    sort: str = SORTS[0]
    fold: bool | None = None
    """None: if there are many nodes."""
    open: frozenset[str] = frozenset()
    """Nodes whose ranks are shown."""
    all_open: bool | None = None
    """None: if all lines have room."""
    selected: int = 0
    help: str = ""
    """What keys do; empty: there are none."""
    blocks: bool = True
    """The terminal can show Unicode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a line stands for."""

    nodes: tuple[str, ...]
    ranks: tuple[int, ...] = ()
    """Empty: all of the node."""
