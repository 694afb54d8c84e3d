"""One thread that waits for descriptors, timers and signals at once: the supervisor's engine.

One thread on purpose: a rank's parent-death signal is tied to the thread that started it.
"""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional, Tuple

    Callback = Callable[[], None]

MAX_WAIT_SECONDS = 60.0
"""Seconds that one wait lasts at most."""


class Timer:
    """A call that is due at a moment, unless it is cancelled before."""

    __slots__ = ("callback", "due")

    def __init__(self, due: float, callback: Callback) -> None:
        self.due = due
        self.callback: Optional[Callback] = callback

    def cancel(self) -> None:
        """Never make the call."""
        self.callback = None


class EventLoop:
    """Calls back when a descriptor is ready, a moment has come, or a child has died."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: List[Tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._on_signal: Dict[int, Callback] = {}

    def add_descriptor(self, descriptor: int, callback: Callback, *, write: bool = False) -> None:
        """Call back whenever the descriptor can be read (or, with `write`, also written)."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if write else 0)
        try:
            self._selector.modify(descriptor, events, callback)
        except KeyError:
            self._selector.register(descriptor, events, callback)

    def remove_descriptor(self, descriptor: int) -> None:
        """Stop watching a descriptor; to be called before it is closed."""
        try:
            self._selector.unregister(descriptor)
        except KeyError:
            return

    def call_later(self, seconds: float, callback: Callback) -> Timer:
        """Call back once, so many seconds from now on the clock that no one sets."""
        timer = Timer(time.monotonic() + seconds, callback)
        heapq.heappush(self._timers, (timer.due, next(self._numbers), timer))
        return timer

    def call_every(self, seconds: float, callback: Callback) -> None:
        """Call back now and then again for as long as the event loop runs."""

        def again() -> None:
            self.call_later(seconds, again)
            callback()

        again()

    def on_signal(self, number: int, callback: Callback) -> None:
        """Call back, outside the handler, after a signal."""
        import signal  # noqa: PLC0415  (start-up of a check counts)

        if not self._on_signal:
            reader, writer = os.pipe()
            os.set_blocking(reader, False)
            os.set_blocking(writer, False)
            signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
            self.add_descriptor(reader, lambda: self._signalled(os.read(reader, 4096)))
        self._on_signal[number] = callback
        signal.signal(number, lambda _number, _frame: None)

    def _signalled(self, numbers: bytes) -> None:
        for number in set(numbers):
            self._on_signal[number]()

    def run_once(self) -> None:
        """Wait for something, and make the calls that are due.

        Descriptors come before timers: after a pause of this process, what has arrived meanwhile
        is read before anyone is judged silent.
        """
        wait = MAX_WAIT_SECONDS
        if self._timers:
            wait = min(wait, max(0.0, self._timers[0][0] - time.monotonic()))
        for key, _ in self._selector.select(wait):
            current = self._selector.get_map().get(key.fd)
            if current is not None and current.data is key.data:  # not forgotten meanwhile
                key.data()
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if timer.callback is not None:
                timer.callback()
