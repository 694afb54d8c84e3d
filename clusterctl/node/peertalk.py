"""What the supervisors of a run say to each other, and what each wants to hear."""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple

Message = Dict[str, Any]


class Said(NamedTuple):
    """What a supervisor wants to hear from the link."""

    ending: Callable[[Message], None]
    """Another node's part is ending, and why."""
    lost: Callable[[str, str], None]
    """A node (its name) has been silent too long, with the last words of its connection."""
    joined: Callable[[str], None]
    """A node's supervisor is there for the first time."""
    clock: Callable[[float, float], None]
    """This node's clock minus the master's, and by how much that may be wrong."""


def beat_seconds(lost_after: float) -> float:
    """Return how often to be heard, so that a few lost beats are no silence."""
    return min(2.0, lost_after / 5)
