"""Nodes that change together: none before all have said what they would do, and all to the end."""

import threading
from collections.abc import Callable, Iterable, Mapping

from clusterctl.wire import Message

Judge = Callable[[Mapping[str, Message]], bool]


class TwoPhaseCommit:
    """The plans of a sync's nodes, and the one verdict on them; used from the nodes' threads.

    The first node is locked ahead of the others: of two syncs of the same nodes only one gets its
    lock, and the other one has not locked anything that the first one needs.
    """

    def __init__(self, names: Iterable[str], judge: Judge) -> None:
        """Expect a plan of each node, or its end.

        Args:
            names: the nodes, in an order that every sync of them uses.
            judge: given the plans of all nodes that made one; False: nothing is to be changed.
        """
        self._names = tuple(names)
        self._expected = set(self._names)
        self._judge = judge
        self._plans: dict[str, Message] = {}
        self._locked: set[str] = set()
        self._verdict: bool | None = None
        self._busy = set(self._names)
        self._aborted = False
        self._changed = threading.Condition()

    def enter(self, name: str) -> bool:
        """Wait until it is this node's turn; False: it is not to begin at all."""
        first = self._names[0]

        def may_begin() -> bool:
            return name == first or first in self._locked or first not in self._expected

        with self._changed:
            self._changed.wait_for(may_begin)
            return self._verdict is not False

    def lock(self, name: str) -> None:
        """Note that a node is locked for this sync; its plan follows."""
        with self._changed:
            self._locked.add(name)
            self._changed.notify_all()

    def offer(self, name: str, plan: Message) -> None:
        """Give a node's plan."""
        with self._changed:
            self._plans[name] = plan
            self._settle(name)

    def withdraw(self, name: str) -> None:
        """Expect nothing of a node any more: it ended."""
        with self._changed:
            self._busy.discard(name)
            self._settle(name)

    def arrive(self, name: str) -> None:
        """Note that a node has its files: it is to be held until all have theirs."""
        with self._changed:
            self._busy.discard(name)
            self._changed.notify_all()

    def complete(self, seconds: float) -> bool | None:
        """Wait until all nodes have their files; False: it was given up; None: not yet."""
        with self._changed:
            self._changed.wait_for(lambda: self._aborted or not self._busy, seconds)
            return False if self._aborted else not self._busy or None

    def abort(self) -> None:
        """Let no node change anything that has not begun to."""
        with self._changed:
            self._aborted = True
            if self._verdict is None:
                self._verdict = False
            self._expected.clear()
            self._changed.notify_all()

    def verdict(self, seconds: float) -> bool | None:
        """Wait for the verdict; None: there is none yet."""
        with self._changed:
            self._changed.wait_for(lambda: self._verdict is not None, seconds)
            return self._verdict

    def _settle(self, name: str) -> None:
        self._expected.discard(name)
        if not self._expected and self._verdict is None:
            self._verdict = False  # unless the judge comes to its end
            self._verdict = self._judge(self._plans)
        self._changed.notify_all()
