"""Prints results on stdout, and messages and progress on stderr.

Text of a node or a server is untrusted: `safe_line` removes control sequences, and rich never
reads it as markup. `NO_COLOR`, pipes and narrow terminals work; color alone never carries meaning.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from clusterctl.checks.wording import size_of
from clusterctl.errors import NodeError
from clusterctl.safe_text import strip_controls
from clusterctl.verbs.events import CopyProgress, Event, Level, Notice, Progress

if TYPE_CHECKING:
    # Imported at the first message: `logs` often prints none, and importing rich takes long.
    from rich.console import Console
    from rich.status import Status
    from rich.text import Text

PIPE_WIDTH = 100
"""Width of a table without a terminal; sentences stay on one line there, for grep."""

MESSAGES = logging.getLogger("clusterctl.messages")
"""Its level decides which messages are shown: `-q` raises it to warnings."""
MESSAGES.setLevel(logging.INFO)
_STYLES: dict[Level, str] = {"info": "", "warning": "yellow", "error": "red"}
MOST_HINTS = 4
"""Lines of a notice's hint that are printed: a node may have sent it."""
_SHOWN_NAMES = 3


def safe_line(text: object) -> str:
    """Return text as one line that is safe to print: no control sequences, no line breaks."""
    return strip_controls(" ".join(str(text).split("\n")))


def safe_text(text: object, style: str = "") -> Text:
    """Return untrusted text, safe to print, without markup."""
    from rich.text import Text  # noqa: PLC0415

    return Text(safe_line(text), style=style)


def failure(state: str, words: object) -> str:
    """Return a bad state with its reason, which may begin with the state."""
    text = str(words)
    return text if text.startswith(state) else f"{state}: {text}"


def listed(names: Sequence[str], most: int) -> str:
    """Return the first names: `a, b, c and 2 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def make_console(stream: TextIO) -> Console:
    """Return a console that applies no markup and no highlighting."""
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

    @property
    def quiet(self) -> bool:
        """Only results, warnings and errors are wanted."""
        return not MESSAGES.isEnabledFor(logging.INFO)

    def say(self, notice: Notice) -> None:
        """Print a notice on stderr; if quiet, a warning or an error only."""
        if notice.level == "info" and self.quiet:
            return
        where = f"{safe_line(notice.node)}: " if notice.node else ""
        word = "" if notice.level == "info" else f"{notice.level}: "
        self.err.print(safe_text(word + where + safe_line(notice.text), _STYLES[notice.level]))
        for line in notice.hint.splitlines()[:MOST_HINTS]:
            self.err.print(safe_text(f"hint: {safe_line(line)}"))

    def show_errors(self, errors: Iterable[NodeError]) -> None:
        """Warn of the nodes that failed, and give each of their hints once."""
        given: set[str] = set()
        for error in errors:
            hint = "" if error.hint in given else error.hint
            given.add(hint)
            self.say(Notice(node=error.node, text=str(error), level="warning", hint=hint))

    @contextmanager
    def progress(self) -> Iterator[Progressing]:
        """Show the progress of a use case during the block, then remove it."""
        if self.quiet or not self.err.is_terminal:
            yield Progressing(screen=self, status=None)
            return
        with self.err.status("") as status:
            yield Progressing(screen=self, status=status)


@dataclass(frozen=True, slots=True)
class Progressing:
    """Shows events: a progress line on a terminal, and notices everywhere."""

    screen: Screen
    status: Status | None

    def quiet(self) -> None:
        """Remove the progress line until there is a next one."""
        if self.status is not None:
            self.status.stop()

    def show(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, Notice):
            self.screen.say(event)
        elif isinstance(event, Progress):
            self.move(progress_line(event))
        elif isinstance(event, CopyProgress):
            self.move(copy_line(event))

    def move(self, text: str) -> None:
        """Show a progress line that the next one replaces."""
        if self.status is not None:
            self.status.update(safe_text(text))
            self.status.start()


def progress_line(event: Progress) -> str:
    """Return the state of a phase as one line: `facts 6/8, waiting for gpu3, gpu7`."""
    line = f"{event.phase} {event.done}/{event.total}"
    if event.waiting_for and event.done < event.total:
        line += f", waiting for {listed(event.waiting_for, _SHOWN_NAMES)}"
    return line


def copy_line(event: CopyProgress) -> str:
    """Return how far a copy is: `sending /models/a 41 % of 3.4 GB, 1.2 GB/s, 0:31 left, …`."""
    share = 100 * event.done // event.total if event.total else 100
    line = f"{event.phase} {event.path} {share} % of {size_of(event.total)}"
    if event.rate:
        line += f", {size_of(event.rate)}/s"
    if event.seconds_left is not None:
        minutes, seconds = divmod(round(event.seconds_left), 60)
        line += f", {minutes}:{seconds:02} left"
    if event.total_nodes:
        line += f", {event.nodes}/{event.total_nodes} nodes have it"
    return line


GAP = 2
"""Spaces after a column."""


def print_table(
    console: Console,
    heads: Iterable[str] | Mapping[str, int],
    rows: Iterable[Iterable[str | Text]],
    *,
    right: Collection[str] = (),
    cut: Collection[str] = (),
) -> None:
    """Print untrusted cells in columns; elsewhere than on a terminal no line ends with spaces.

    Args:
        console: where.
        heads: the titles, perhaps with the most that each column may take.
        rows: the cells of each line.
        right: the titles of columns of numbers.
        cut: the titles of columns that are cut, not wrapped.
    """
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for title in heads:
        table.add_column(
            safe_text(title),
            justify="right" if title in right else "left",
            max_width=heads[title] if isinstance(heads, Mapping) else None,
            no_wrap=title in cut,
            overflow="ellipsis" if title in cut else "fold",
        )
    for row in rows:
        table.add_row(*(safe_text(cell) if isinstance(cell, str) else cell for cell in row))
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        console.file.write(f"{line.rstrip()}\n")


def columns(
    rows: Sequence[Mapping[str, str]],
    wanted: Sequence[str],
    width: int,
    *,
    enough: Mapping[str, int],
) -> dict[str, int]:
    """Return the columns that fit, and the width of each.

    Args:
        rows: the cells, by column.
        wanted: the columns, the most important first; the first is always shown. A column that
            is empty in every row is left out.
        width: the width of the terminal.
        enough: for a column that may be cut or wrapped, the width that must fit.
    """
    natural = {title: max(len(title), *(len(row[title]) for row in rows)) for title in wanted}
    widths: dict[str, int] = {}
    for title, needed in natural.items():
        if not any(row[title] for row in rows):
            continue
        least = min(needed, enough.get(title, needed))
        if widths and sum(widths.values()) + GAP * len(widths) + least > width:
            break
        widths[title] = least
    left = width - sum(widths.values()) - GAP * len(widths)
    for title, least in widths.items():
        more = max(0, min(left, natural[title] - least))
        widths[title] = least + more
        left -= more
    return widths
