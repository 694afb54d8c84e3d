"""The events of a use case: frozen values that `report` prints and the API returns.

A use-case is a generator of these that returns its result:
`def check(...) -> Generator[Event, None, CheckResult]`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from typing import Any, ClassVar, Literal, TypeVar

from clusterctl.values import dataclass

Level = Literal["info", "warning", "error"]

Result = TypeVar("Result")
Outer = TypeVar("Outer")


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
    def of_nodes(cls, phase: str, names: Iterable[str], done: Collection[str]) -> Progress:
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


def drive(
    events: Generator[Event, None, Result], show: Callable[[Event], object] | None = None
) -> Result:
    """Run a use-case to its end, showing its events; return its result.

    What goes wrong while an event is shown, Ctrl-C too, is raised in the use-case: there it can
    still end what it has begun.
    """
    raised: BaseException | None = None
    while True:
        try:
            event = next(events) if raised is None else events.throw(raised)
        except StopIteration as end:
            result: Result = end.value
            return result
        raised = None
        try:
            if show is not None:
                show(event)
        except BaseException as error:  # noqa: BLE001  (raised again, where it can be dealt with)
            raised = error


def map_events(
    events: Generator[Event, None, Result],
    each: Callable[[Event], Generator[Outer, None, None]],
) -> Generator[Outer, None, Result]:
    """Run a use-case within another one: yield what `each` makes of its events.

    Args:
        events: the use-case within.
        each: called with every event of it; yields the event and what belongs around it.

    Returns:
        The result of the use-case within.
    """
    # Closed at once when this one is left: a traceback would keep it, and its sessions, for long.
    with contextlib.closing(events):
        while True:
            try:
                event = next(events)
            except StopIteration as end:
                result: Result = end.value
                return result
            yield from each(event)
