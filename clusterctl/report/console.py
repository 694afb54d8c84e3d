"""The two streams that a person reads: results on stdout, messages and progress on stderr.

What comes from a node or a server is text of others: `safe_line` takes from it whatever could drive
the terminal, and nothing of it is ever read as markup. `NO_COLOR`, a pipe and a narrow terminal
are honoured; meaning is never in colour alone.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO, TypeVar

from clusterctl.safe_text import strip_controls
from clusterctl.verbs.events import Event, Level, Notice, Progress, drive

if TYPE_CHECKING:
    # Imported with the first words: `logs` often has none, and rich takes as long as its data.
    from rich.console import Console
    from rich.status import Status
    from rich.text import Text

T = TypeVar("T")

PIPE_WIDTH = 100
"""Columns of a table where there is no terminal; a sentence stays one line there, for grep."""

_STYLES: dict[Level, str] = {"info": "", "warning": "yellow", "error": "red"}
_SHOWN_NAMES = 3


def safe_line(text: object) -> str:
    """Return text as one line that is safe to print: no control sequences, no line breaks."""
    return strip_controls(" ".join(str(text).split("\n")))


def safe_text(text: object, style: str = "") -> Text:
    """Return text of anyone, safe, without markup."""
    from rich.text import Text  # noqa: PLC0415

    return Text(safe_line(text), style=style)


def listed(names: Sequence[str], most: int) -> str:
    """Return names, of many only the first: `a, b, c and 2 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def make_console(stream: TextIO) -> Console:
    """Return a console that neither guesses markup nor colours what it prints."""
    from rich.console import Console  # noqa: PLC0415

    terminal = stream.isatty()
    width = None if terminal or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(
        file=stream,
        width=width,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=not terminal,
    )


class Screen:
    """Both streams of a command."""

    def __init__(self, out: Console | None = None, err: Console | None = None) -> None:
        """Take consoles; by default those of the process."""
        self._out, self._err = out, err

    @functools.cached_property
    def out(self) -> Console:
        """Where results go."""
        return self._out or make_console(sys.stdout)

    @functools.cached_property
    def err(self) -> Console:
        """Where messages and progress go."""
        return self._err or make_console(sys.stderr)

    def say(self, said: Notice) -> None:
        """Print a sentence of a use-case, on stderr."""
        where = f"{safe_line(said.node)}: " if said.node else ""
        word = "" if said.level == "info" else f"{said.level}: "
        self.err.print(safe_text(word + where + safe_line(said.text), _STYLES[said.level]))

    def watch(self, steps: Generator[Event, None, T]) -> T:
        """Run a use-case to its end, show its events, and return its result."""
        with self.progress() as progress:
            return drive(steps, progress.show)

    @contextmanager
    def progress(self) -> Iterator[Progressing]:
        """Show the events of a use-case while the block runs, then leave nothing of it behind."""
        if not self.err.is_terminal:
            yield Progressing(screen=self, status=None)
            return
        with self.err.status("") as status:
            yield Progressing(screen=self, status=status)


@dataclass(frozen=True, slots=True)
class Progressing:
    """Where the events go: a line that moves on a terminal; sentences only in a pipe."""

    screen: Screen
    status: Status | None

    def show(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, Notice):
            self.screen.say(event)
        elif isinstance(event, Progress) and self.status is not None:
            self.status.update(safe_text(progress_line(event)))


def progress_line(event: Progress) -> str:
    """Return a phase's state as one line: `facts 6/8, waiting for gpu3, gpu7`."""
    line = f"{event.phase} {event.done}/{event.total}"
    if event.waiting_for and event.done < event.total:
        line += f", waiting for {listed(event.waiting_for, _SHOWN_NAMES)}"
    return line
