"""How many nodes may begin something at once: a window for each way there, as TCP has for packets.

A login or the start of an agent costs the other side a tenth of a second of its CPU; a thousand at
once on a busy machine are all late. So each waits for its turn. A window grows while answers come
quickly, halves when they come late, and stays as it is while this machine's CPU is busy.
"""

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from clusterctl.errors import CouldNotTell, NodeError
from clusterctl.transport.interface import Timeouts
from clusterctl.transport.local_limits import start_thread

T = TypeVar("T")
Kind = Literal["call", "login", "retry"]
"""Those that are logged in go first, and those that were late last."""

FIRST_WINDOW = 16.0
"""Turns at once before the first answer."""
LEAST_WINDOW = 8
"""Turns at once however late answers come; the rate at which late nodes are tried again."""
LOGINS_AT_ONCE = 8
"""Logins at once at one server: sshd drops more than ten (MaxStartups 10:30:100)."""
SLOW_SECONDS = 1.0
"""An answer that took this long, and `SLOW_FACTOR` times the quickest one, is late."""
SLOW_FACTOR = 4.0
SLOW_SHARE = 1 / 3
"""So is one that took this share of the time that a node has, for the quickest may be slow too."""
SILENT_SECONDS = 0.3
"""A node that has not even accepted the connection by then leaves its place to others."""
OVERTAKEN = 8
"""A node that so many later ones overtook, none of them late, leaves its place to others."""
BUSY = 0.9
"""Share of a core: Python uses one, and more turns would only wait for it."""
CPU_SECONDS = 0.5
"""For how long the share is measured."""
TICK_SECONDS = 0.2


@dataclass(eq=False, slots=True)
class Turn:
    """One node's turn to begin something."""

    kind: Kind
    server: str
    ready: threading.Event = field(default_factory=threading.Event)
    began: float = 0.0
    accepted: bool = False
    """The node has accepted the connection."""
    overtaken: int = 0
    """How many turns that began later have been answered."""
    beside: int = 0
    """The most turns that there were during this one."""
    quick: int = 0
    """How many others were answered quickly during this one."""
    late: int = 0
    """How many others were answered late during this one."""

    @property
    def seconds(self) -> float:
        """How long it has lasted; the time before it counts for nothing."""
        return time.monotonic() - self.began

    @property
    def silent(self) -> bool:
        """Others need not wait for it."""
        waits = not self.accepted and self.seconds > SILENT_SECONDS
        return waits or (self.overtaken >= OVERTAKEN and not self.late)

    @property
    def crowded(self) -> bool:
        """Whether a node that was late may have been so for the load, and not by itself."""
        overloaded = self.late > 0 or (self.accepted and not self.quick)
        return overloaded and self.beside > LEAST_WINDOW


@dataclass(eq=False, slots=True)
class _Lane:
    """One way to nodes: their network, or a jump host."""

    window: float = FIRST_WINDOW
    starting: bool = True
    """Nothing was late yet: the window doubles with each round of answers."""
    shrunk_at: float = 0.0
    quickest: dict[str, float] = field(default_factory=dict)
    """By kind, the seconds of the quickest answer."""
    running: set[Turn] = field(default_factory=set)
    waiting: dict[Kind, deque[Turn]] = field(
        default_factory=lambda: {"call": deque(), "login": deque(), "retry": deque()}
    )

    def next(self) -> Turn | None:
        """Take the next turn that may begin now from those that wait."""
        if not any(self.waiting.values()):
            return None
        counted = [turn for turn in self.running if not turn.silent]
        logins = Counter(turn.server for turn in counted if turn.kind != "call")
        for kind, queue in self.waiting.items():
            if len(counted) >= (LEAST_WINDOW if kind == "retry" else int(self.window)):
                continue
            for turn in queue:
                if kind == "call" or logins[turn.server] < LOGINS_AT_ONCE:
                    queue.remove(turn)
                    return turn
        return None


class ConcurrencyLimit:
    """Lets turns begin, in the order in which they were asked for; safe from several threads."""

    def __init__(self, timeouts: Timeouts, most: int | None = None) -> None:
        """Allow `most` turns at once; None: as many as answers allow."""
        self._timeouts = timeouts
        self._most = most
        self._lock = threading.Lock()
        self._lanes: dict[str, _Lane] = {}
        self._running = 0
        self._ticking = False
        self._closed = False
        self._cpu = (time.monotonic(), time.process_time())
        self._busy = False

    def login(self, lane: str, server: str, work: Callable[[Turn], T]) -> T:
        """Log in when the turn has come; if it was late for the load, once more at a low rate.

        Args:
            lane: the way to the server; empty: directly.
            server: where the login is.
            work: logs in, and sets `accepted` once the server has accepted the connection.

        Raises:
            NodeError: as `work` does.
        """
        turn: Turn | None = None
        try:
            with self.turn(lane, "login", server=server) as turn:
                return work(turn)
        except NodeError as failure:
            if turn is None or not (_late(failure) and turn.crowded):
                raise
        with self.turn(lane, "retry", server=server) as turn:
            return work(turn)

    @contextlib.contextmanager
    def turn(self, lane: str, kind: Kind, *, server: str = "") -> Iterator[Turn]:
        """Wait for a turn; what the block raises tells how it ended.

        Raises:
            NodeError: the connections of this command are closed.
        """
        turn = Turn(kind=kind, server=server, accepted=kind == "call")
        with self._lock:
            if self._closed:
                raise _closed()
            found = self._lanes.setdefault(lane, _Lane())
            found.waiting[kind].append(turn)
            self._begin()
            self._tick_if_needed()
        turn.ready.wait()
        if not turn.began:
            raise _closed()
        answered = False
        try:
            if self._closed:
                raise _closed()
            yield turn
            answered = True
        except NodeError as failure:
            if _late(failure):
                self._was_late(found, turn)
            raise
        finally:
            self._end(found, turn, answered=answered)

    def close(self) -> None:
        """Wake every thread that waits, and let none wait again."""
        with self._lock:
            self._closed = True
            for lane in self._lanes.values():
                for queue in lane.waiting.values():
                    for turn in queue:
                        turn.ready.set()
                    queue.clear()

    # These are called with the lock held.

    def _begin(self) -> None:
        """Let as many begin as may."""
        for lane in self._lanes.values():
            while self._most is None or self._running < self._most:
                turn = lane.next()
                if turn is None:
                    break
                lane.running.add(turn)
                self._running += 1
                for other in lane.running:
                    other.beside = max(other.beside, len(lane.running))
                turn.began = time.monotonic()
                turn.ready.set()

    def _tick_if_needed(self) -> None:
        """Look again after a while: a turn may leave its place without an answer."""
        if not self._ticking and self._anybody_waits():
            with contextlib.suppress(CouldNotTell):  # no more threads: the next answer does it
                start_thread(self._tick, name="turns")
                self._ticking = True

    def _anybody_waits(self) -> bool:
        return any(queue for lane in self._lanes.values() for queue in lane.waiting.values())

    def _grow(self, lane: _Lane) -> None:
        """Allow more, if what is allowed is used and this machine's CPU has room."""
        now, used = time.monotonic(), time.process_time()
        since, used_then = self._cpu
        if now - since >= CPU_SECONDS:
            self._busy = (used - used_then) / (now - since) > BUSY
            self._cpu = now, used
        if not self._busy and len(lane.running) >= int(lane.window):
            lane.window += 1 if lane.starting else 1 / lane.window

    @staticmethod
    def _shrink(lane: _Lane, turn: Turn) -> None:
        """Allow half as many, once for all that were under way together."""
        lane.starting = False
        if turn.began >= lane.shrunk_at:
            lane.window = max(float(LEAST_WINDOW), lane.window / 2)
            lane.shrunk_at = time.monotonic()

    # These take the lock.

    def _tick(self) -> None:
        while True:
            time.sleep(TICK_SECONDS)
            with self._lock:
                self._begin()
                if not self._anybody_waits():
                    self._ticking = False
                    return

    def _was_late(self, lane: _Lane, turn: Turn) -> None:
        with self._lock:
            if turn.crowded:
                self._shrink(lane, turn)

    def _end(self, lane: _Lane, turn: Turn, *, answered: bool) -> None:
        seconds = turn.seconds
        with self._lock:
            if answered:
                kind = "call" if turn.kind == "call" else "login"
                best = lane.quickest[kind] = min(seconds, lane.quickest.get(kind, seconds))
                patience = self._timeouts.answer if kind == "call" else self._timeouts.handshake
                slow = min(max(SLOW_SECONDS, SLOW_FACTOR * best), SLOW_SHARE * patience)
                late = seconds > slow
                for other in lane.running - {turn}:
                    other.late += late
                    other.quick += not late
                    other.overtaken += other.began < turn.began
                if late:
                    self._shrink(lane, turn)
                else:
                    self._grow(lane)
            lane.running.remove(turn)
            self._running -= 1
            self._begin()


def _closed() -> NodeError:
    return NodeError("lost", "connect", "the connections of this command are closed")


def _late(failure: NodeError) -> bool:
    """Tell whether nothing came in time, rather than an answer that is a refusal."""
    return failure.state == "timeout" or isinstance(failure.__cause__, TimeoutError)
