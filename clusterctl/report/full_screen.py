"""A terminal's whole screen, which is drawn again and again, and the keys pressed meanwhile.

However the block ends, the terminal is as before; also while Ctrl-Z stops this process.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from rich.control import Control
from rich.screen import Screen

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_SEQUENCES = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1bOA": "up", b"\x1bOB": "down",
    b"\x1b[5~": "page up", b"\x1b[6~": "page down", b"\r": "enter", b"\n": "enter",
}  # fmt: skip
_MOST_BYTES = 1024


class FullScreen:
    """Use as a context manager; keys are read if stdin is a terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._keyboard = sys.stdin.fileno() if sys.stdin and sys.stdin.isatty() else None
        self._modes: list[Any] | None = None
        self._taken = False
        self._stops = False
        """Ctrl-Z was pressed."""

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGTSTP, self._note_stop)
        try:
            self._take()
        except BaseException:  # Ctrl-C, just now
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._give_back()
        finally:
            signal.signal(signal.SIGTSTP, self._before)

    def show(self, lines: Sequence[Text]) -> None:
        """Draw these lines, over those before: nothing is cleared, so nothing flickers."""
        self.console.control(Control.home())
        self.console.print(Screen(*lines), end="")

    def pressed(self) -> Iterator[str]:
        """Yield the keys that were pressed since; if one was Ctrl-Z, stop until `fg` first."""
        if self._stops:
            self._stops = False
            with self.apart():
                signal.signal(signal.SIGTSTP, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTSTP)
                signal.signal(signal.SIGTSTP, self._note_stop)
            yield "redraw"
        if self._keyboard is None or not select.select([self._keyboard], [], [], 0)[0]:
            return
        data = os.read(self._keyboard, _MOST_BYTES)
        if not data:  # the terminal has closed
            yield "q"
        while data:
            known = next((each for each in _SEQUENCES if data.startswith(each)), None)
            if known:
                yield _SEQUENCES[known]
            elif data[:1] == b"\x1b":
                return  # a sequence that means nothing here
            else:
                yield data[:1].decode("ascii", "replace")
            data = data[len(known or b"1") :]

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Give the terminal back during the block."""
        self._give_back()
        try:
            yield
        finally:
            self._take()

    def _take(self) -> None:
        self._taken = True
        if self._keyboard is not None:
            self._modes = termios.tcgetattr(self._keyboard)
            tty.setcbreak(self._keyboard, termios.TCSADRAIN)
        # Not rich.live: a Ctrl-C while that starts leaves the terminal on the other screen.
        self.console.set_alt_screen(True)
        self.console.show_cursor(False)

    def _give_back(self) -> None:
        try:
            if self._taken:
                self.console.set_alt_screen(False)
                self.console.show_cursor(True)
                self._taken = False
        finally:
            if self._keyboard is not None and self._modes is not None:
                with suppress(termios.error):  # it has closed
                    termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._modes)

    def _note_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stops = True
