"""The events of a use case: frozen values that `report` prints and the API returns.

A use case is a function that takes `emit`, calls it with each event, and returns its result:
`def check(..., *, emit: Emit) -> CheckResult`. What `emit` raises is raised there: Ctrl-C while an
event is shown too, so the use case can still end what it has begun.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, Literal, Self

from clusterctl.values import dataclass

Level = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something happened that a user or a program may want to know."""

    kind: ClassVar[str] = ""
    """Its `kind` in `launch --json`; empty if it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice(Event):
    """A sentence for the person, about one node or about all."""

    kind = "message"

    text: str
    level: Level = "info"
    node: str | None = None
    hint: str = ""
    """What to type or to do next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Event):
    """A phase is so far: `done` of `total` nodes; shown as a bar or a line."""

    phase: str
    done: int
    total: int
    waiting_for: tuple[str, ...] = ()

    @classmethod
    def of_nodes(cls, phase: str, names: Iterable[str], done: Collection[str]) -> Self:
        """Return how far a phase is: which of the nodes are done."""
        total = tuple(names)
        waiting = tuple(name for name in total if name not in done)
        return cls(
            phase=phase, done=len(total) - len(waiting), total=len(total), waiting_for=waiting
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyProgress(Event):
    """How far files are on their way: bytes of all nodes together."""

    kind = "copy"

    path: str
    phase: Literal["hashing", "comparing", "sending", "verifying"]
    done: int
    total: int
    nodes: int
    """Nodes that have it, of `total_nodes`."""
    total_nodes: int
    rate: float = 0.0
    """Bytes a second, of all nodes together."""

    @property
    def seconds_left(self) -> float | None:
        """At this rate; None: nothing moves yet."""
        return (self.total - self.done) / self.rate if self.rate else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvent(Event):
    """A line of a node's events.jsonl: a rank started, joined or ended, a stop was ordered, ..."""

    kind = "event"

    node: str
    event: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Event):
    """The launch waits for nodes that others use; told again only when that changes."""

    kind = "waiting"

    nodes: Mapping[str, str]
    """By node, who uses it; none: all are free now, and the launch begins."""
    waited_s: float
    """So far."""
    limit_s: float
    """The longest that it waits."""


Emit = Callable[[Event], object]
"""Hears the events of a use case; what it raises ends the use case."""


def ignore(event: Event) -> None:
    """Hear an event for which there is no listener."""
