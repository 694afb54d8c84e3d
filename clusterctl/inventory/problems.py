"""Collects the problems of an inventory, each with its place, and raises them together."""

import difflib
from collections.abc import Iterable, Mapping
from typing import ClassVar, NoReturn

from clusterctl.errors import InventoryError
from clusterctl.safe_text import escape_controls

Path = tuple[str | int, ...]
"""The place of a value in the document: keys, and positions in lists."""

PROBLEM_LIMIT = 100
"""Problems that the error lists; a file with more is not an inventory."""

VALUE_LIMIT = 60
"""Characters of a found value that a message shows."""

_EMPTY = '""'


class Plain(str):
    """A scalar that was written without quotes."""

    __slots__ = ()


class InvalidValue(ValueError):  # noqa: N818  (names the value)
    """A value that a setting does not take."""

    def __init__(self, wanted: str, value: object = None, *, found: str | None = None) -> None:
        """Show the value as it was written, or the text `found`."""
        super().__init__(wanted)
        self.wanted = wanted
        self.found = shown(value) if found is None else found


class Problems:
    """Collects problems of one file and raises them together, in the file's order."""

    hint: ClassVar[str] = "a valid one to compare with: clusterctl init --no-connect -i new.yaml"

    shows_keys: ClassVar[bool] = True
    """A problem names its key after its place."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: Mapping[Path, int] = {}
        """The line of each part of the document, once it has been parsed."""
        self._found: list[tuple[int, str]] = []
        self.notes: list[str] = []
        """What was not taken over, though it is no mistake."""

    def line(self, path: Path) -> int:
        """Return the line of a path, or of the innermost part around it that has one."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def place(self, line: int) -> str:
        """Return the place of a line, in a form that editors and terminals can jump to."""
        return f"{self.file}:{line}"

    def add(self, path: Path, *, wanted: str, found: str, line: int | None = None) -> None:
        """Add one problem."""
        line = self.line(path) if line is None else line
        key = f" {key_of(path)}:" if path and self.shows_keys else ""
        self._found.append((line, f"{self.place(line)}:{key} expected {wanted}, found {found}"))

    def note(self, text: str, *, line: int) -> None:
        """Note something that a user should know, once."""
        placed = f"{self.place(line)}: {text}"
        if placed not in self.notes:
            self.notes.append(placed)

    def raise_if_any(self) -> None:
        """Raise the InventoryError of all problems, if there are any."""
        if self._found:
            self.end()

    def end(self, *, hint: str | None = None) -> NoReturn:
        """Raise the InventoryError of all problems."""
        found = sorted(self._found, key=lambda problem: problem[0])
        texts = tuple(dict.fromkeys(text for _, text in found))
        if len(texts) > PROBLEM_LIMIT:
            texts = (*texts[:PROBLEM_LIMIT], f"{self.file}: and {len(texts) - PROBLEM_LIMIT} more")
        raise InventoryError(texts, hint=hint or self.hint)


class ArgumentProblems(Problems):
    """Problems of hosts on the command line: a line is an argument, 0 the name."""

    hint = "clusterctl init --help"
    shows_keys = False

    def place(self, line: int) -> str:
        """Return the number of the argument."""
        return f"HOST {line}" if line else "--name"


def key_of(path: Path) -> str:
    """Return a path as text, such as `nodes[1].port`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{printable(part) or _EMPTY}"
    return text.removeprefix(".")


def shown(value: object) -> str:
    """Return a found value as short text in one line, without control characters.

    Text is quoted if it was quoted in the file, where unquoted text is `Plain`.
    """
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        (name, inner), *more = value.items() or [("", "")]
        alone = not more and inner is None and isinstance(name, str)
        return f"{{{printable(name)}}} without quotes, a mapping" if alone else "a mapping"
    if isinstance(value, list):
        return "a list"
    text = printable(str(value))
    return f'"{text}"' if type(value) is str else text


def printable(text: str) -> str:
    """Return text that is safe and short enough for a terminal line."""
    return escape_controls(text, VALUE_LIMIT)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is closest, if one is close and no other is as close."""
    wanted, lowered = word.lower().replace("-", "_"), {name.lower(): name for name in known}
    close = difflib.get_close_matches(wanted, lowered, n=2, cutoff=0.6)
    ratios = [difflib.SequenceMatcher(a=name, b=wanted).ratio() for name in close]
    return lowered[close[0]] if close and ratios.count(ratios[0]) == 1 else None
