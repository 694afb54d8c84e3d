"""What a signal means before the ranks have met: the end, at once, and said in status.json."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Self

from train.status import DONE
from train.stop import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

GRACE = 3.0
"""Seconds for Python to see a signal; torch's waiting for other ranks hides it until its limit."""


class Stopped(BaseException):
    """A signal came while no other rank waited for this one; no `except Exception` takes it."""


class Early:
    """Takes the signals until `train.stop` does; within a `with` statement."""

    def __init__(self, end: Callable[[str], None]) -> None:
        """Call `end` with the signal's name where Python sees nothing of it in time."""
        self._end = end
        self._signal: signal.Signals | None = None
        self._meeting = False
        self._over = threading.Event()

    def __enter__(self) -> Self:
        """Take the signals over."""
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        # What is written here is written at once, whatever the main thread is busy with.
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(reader,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """End watching, however it ended."""
        self.over()

    def meet(self) -> None:
        """From now on other ranks may already count on this one: let it go on for the moment."""
        self._meeting = True

    def over(self) -> signal.Signals | None:
        """End watching; return a signal that came while the ranks met."""
        if not self._over.is_set():
            self._over.set()
            signal.set_wakeup_fd(-1)
            os.close(self._writer)
        return self._signal

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signal = signal.Signals(number)
        if not self._meeting:
            raise Stopped(self._signal.name)

    def _watch(self, reader: int) -> None:
        """End the process where a signal came and the main thread does not get to it."""
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            while came := pipe.read(1):
                if came[0] in SIGNALS and not self._over.wait(GRACE):
                    self._end(signal.Signals(came[0]).name)
                    os._exit(DONE)
