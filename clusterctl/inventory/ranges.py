"""Host ranges: `gpu[02-04,07]` to names and back.

A list is names separated by commas; a name may hold brackets, each a list of numbers and of
ranges of numbers. A range keeps the zeros of its first number (`[08-10]` is 08, 09, 10), and
several brackets multiply, the last one fastest. `expand(fold(names)) == names` for any names
without brackets, commas and spaces.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator

LIMIT = 4096
"""Names that one expression may stand for; more is a slip of the hand."""

_DIGITS = 9
"""Digits of a number in brackets; longer ones are left as text when folding."""

_NUMBER = re.compile(rf"[0-9]{{1,{_DIGITS}}}")
_SPLIT = re.compile(r"([0-9]+)")


class BadRange(ValueError):  # noqa: N818  (named for what was written)
    """The expression is not a list of names and ranges."""

    def __init__(self, *, wanted: str, found: str) -> None:
        """Keep both halves apart for messages that show a place between them."""
        super().__init__(f"wanted {wanted}, found {found}")
        self.wanted = wanted
        self.found = found


def expand_hosts(text: str) -> tuple[str, ...]:
    """Return the names that an expression stands for, in its order.

    Raises:
        BadRange: it is malformed, reversed, or stands for more than `LIMIT` names.
    """
    parts = [_pieces(part) for part in _split(text)]
    total = sum(math.prod(sum(len(r) for r in ranges) for _, ranges in part) for part in parts)
    if total > LIMIT:
        raise BadRange(wanted=f"at most {LIMIT} names", found=f'{total} in "{text}"')
    return tuple(name for part in parts for name in _product(part))


def fold_hosts(names: Iterable[str]) -> str:
    """Return the shortest plain expression for names, in their order.

    Neighbours that differ in one number share a bracket: `gpu02, gpu03, gpu07` become
    `gpu[02-03,07]`.
    """
    return ",".join(text for text, _ in folds(names))


def folds(names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield the parts of a folded expression, each with how many names it stands for."""
    run: list[list[str]] = []
    place: int | None = None
    for name in names:
        tokens = _SPLIT.split(name)
        differs = _one_difference(run[-1], tokens) if run else None
        if differs is not None and place in (None, differs):
            place = differs
        else:
            if run:
                yield _fold_run(run, place), len(run)
            run, place = [], None
        run.append(tokens)
    if run:
        yield _fold_run(run, place), len(run)


class _Numbers:
    """The numbers of one range, with the zeros of the first."""

    def __init__(self, first: str, last: str) -> None:
        self._values = range(int(first), int(last) + 1)
        self._width = len(first) if first[0] == "0" else 0

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[str]:
        return (str(value).zfill(self._width) for value in self._values)


class _Nothing:
    """What stands behind the last bracket of a name: one empty text."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        return iter(("",))


_Piece = tuple[str, list["_Numbers | _Nothing"]]


def _split(text: str) -> Iterator[str]:
    """Yield the parts between the commas outside brackets."""
    depth = start = 0
    for at, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            yield _part(text[start:at], text)
            start = at + 1
        if depth not in (0, 1):
            raise BadRange(wanted="brackets in pairs, as in gpu[01-04]", found=f'"{text}"')
    if depth:
        raise BadRange(wanted="a closing ]", found=f'"{text}"')
    yield _part(text[start:], text)


def _part(part: str, text: str) -> str:
    part = part.strip()
    if not part:
        raise BadRange(wanted="a name on each side of a comma", found=f'"{text}"')
    return part


def _pieces(part: str) -> list[_Piece]:
    """Take `a[1-2]b` apart into literals, each with the numbers that follow it."""
    pieces: list[_Piece] = []
    rest = part
    while "[" in rest:
        literal, _, rest = rest.partition("[")
        inside, _, rest = rest.partition("]")
        pieces.append((literal, [_numbers(item, part) for item in inside.split(",")]))
    pieces.append((rest, [_Nothing()]))
    return pieces


def _numbers(item: str, part: str) -> _Numbers:
    first, dash, last = (word.strip() for word in item.partition("-"))
    last = last if dash else first
    if not (_NUMBER.fullmatch(first) and _NUMBER.fullmatch(last)):
        raise BadRange(
            wanted="numbers and ranges of numbers in the brackets, as in gpu[01-04,07]",
            found=f'"{part}"',
        )
    if int(last) < int(first):
        raise BadRange(wanted=f"the smaller number first: {last}-{first}", found=f'"{part}"')
    width = len(first) if first[0] == "0" else 0
    if last != str(int(last)).zfill(width):
        raise BadRange(wanted="as many digits in the last as in the first", found=f'"{part}"')
    return _Numbers(first, last)


def _product(pieces: list[_Piece]) -> Iterator[str]:
    choices = [
        [literal + number for numbers in ranges for number in numbers] for literal, ranges in pieces
    ]
    return ("".join(choice) for choice in itertools.product(*choices))


def _one_difference(one: list[str], other: list[str]) -> int | None:
    """Return the place of the only number in which two names differ."""
    if len(one) != len(other):
        return None
    places = [at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
    # Numbers stand at the odd places of re.split.
    if len(places) != 1 or places[0] % 2 == 0:
        return None
    place = places[0]
    return place if max(len(one[place]), len(other[place])) <= _DIGITS else None


def _fold_run(run: list[list[str]], place: int | None) -> str:
    if place is None:
        return "".join(run[0])
    ranges: list[tuple[str, str]] = []
    for tokens in run:
        number = tokens[place]
        if ranges and number == _next(*ranges[-1]):
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    inside = ",".join(first if first == last else f"{first}-{last}" for first, last in ranges)
    head, tail = "".join(run[0][:place]), "".join(run[0][place + 1 :])
    return f"{head}[{inside}]{tail}"


def _next(first: str, last: str) -> str:
    """Return the text that would go on the range from `first` to `last`."""
    width = len(first) if first[0] == "0" else 0
    return str(int(last) + 1).zfill(width)
