"""What is wrong with an inventory: every problem with its place, told all in one go."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import ClassVar, NoReturn

from clusterctl.errors import InventoryError

Path = tuple[str | int, ...]
"""Where in the document: keys and positions in lists."""

TOLD = 100
"""Problems that are told; a file with more is not an inventory."""

SHOWN = 60
"""Characters of a found value that a message shows."""

_EMPTY = '""'


class Problems:
    """Collects problems of one file and raises them together, in the file's order."""

    hint: ClassVar[str] = "clusterctl init -i new.yaml writes one that is right, to compare with"

    def __init__(self, file: str, lines: Mapping[Path, int] | None = None) -> None:
        """Start with none; `lines` says where each part of the document stands."""
        self.file = file
        self._lines = lines or {}
        self._found: list[tuple[int, str]] = []

    def with_lines(self, lines: Mapping[Path, int]) -> Problems:
        """Return the same collection for a document whose lines are known now."""
        other = Problems(self.file, lines)
        other._found = self._found
        return other

    def line(self, path: Path) -> int:
        """Return the line of a path, or of the nearest part around it that is written."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)

    def place(self, line: int) -> str:
        """Say where a line is, in a form that editors and terminals can jump to."""
        return f"{self.file}:{line}"

    def add(self, path: Path, *, wanted: str, found: str, line: int | None = None) -> None:
        """Note one problem."""
        line = self.line(path) if line is None else line
        key = f" {key_of(path)}:" if path else ""
        self._found.append((line, f"{self.place(line)}:{key} wanted {wanted}, found {found}"))

    def raise_if_any(self, *, hint: str | None = None) -> None:
        """End here when anything was noted.

        Raises:
            InventoryError: with all problems.
        """
        if self._found:
            self.end(hint=hint)

    def end(self, *, hint: str | None = None) -> NoReturn:
        """End here, with what was noted.

        Raises:
            InventoryError: always.
        """
        found = sorted(self._found, key=lambda problem: problem[0])
        texts = tuple(dict.fromkeys(text for _, text in found))
        if len(texts) > TOLD:
            texts = (*texts[:TOLD], f"{self.file}: and {len(texts) - TOLD} more")
        raise InventoryError(texts, hint=hint or self.hint)


class ArgumentProblems(Problems):
    """The same for hosts that are words of a command line: a line is a word, 0 the name."""

    hint = "clusterctl init --help"

    def place(self, line: int) -> str:
        """Count the word."""
        return f"argument {line}" if line else "--name"


def key_of(path: Path) -> str:
    """Write a path as people do: `nodes[1].port`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{printable(part) or _EMPTY}"
    return text.removeprefix(".")


def shown(value: object) -> str:
    """Write a found value: short, in one line, with no control characters.

    Text is quoted where it was quoted in the file (there, unquoted text is a subclass of str).
    """
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = printable(str(value))
    return f'"{text}"' if type(value) is str else text


def printable(text: str) -> str:
    """Make text safe and short enough for a terminal line."""
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return safe if len(safe) <= SHOWN else safe[: SHOWN - 1] + "…"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that was probably meant."""
    lowered = {name.lower(): name for name in known}
    match = difflib.get_close_matches(word.lower().replace("-", "_"), lowered, n=1, cutoff=0.6)
    return lowered[match[0]] if match else None
