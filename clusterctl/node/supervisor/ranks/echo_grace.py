"""Lets the other ranks print why, before they are ended because of a rank that only echoes them."""

from __future__ import annotations

from typing import Callable, Optional

from clusterctl.node.event_loop import EventLoop
from clusterctl.node.supervisor.shutdown import Cause


class EchoGrace:
    """Delays the end of a run on a node; any other end comes at once."""

    def __init__(
        self, loop: EventLoop, end: Callable[[Cause], None], on_timeout: Callable[[], None]
    ) -> None:
        """Call `end` when the time is over; before it `on_timeout`, if a rank waited in vain."""
        self._loop, self._end, self._on_timeout = loop, end, on_timeout
        self.cause: Optional[Cause] = None
        """What the run ends for soon; None: nothing."""
        self._timed_out = False

    def delays(self, cause: Cause, *, over: bool) -> bool:
        """Tell whether an end waits; `over`: nothing here can print any more."""
        if cause.lines_grace is None or over:
            return False
        if cause.waited and not self._timed_out:
            self._timed_out = True
            self._on_timeout()
        if self.cause is None:
            at_last = self.cause = cause._replace(lines_grace=None)
            self._loop.call_later(cause.lines_grace, lambda: self._end(at_last))
        return True
