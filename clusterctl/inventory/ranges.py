"""Expands host ranges such as `gpu[02-04,07]` into names, and folds names into ranges.

A list is names separated by commas. A name may hold brackets, each a list of numbers and of
ranges of numbers. A range keeps the zeros of its first number (`[08-10]` is 08, 09, 10). Several
brackets multiply, the last one fastest. `expand_hosts(fold_hosts(names)) == names` for any names
without brackets, commas and spaces.
"""

import itertools
import math
import operator
import re
from collections.abc import Iterable, Iterator

LIMIT = 4096
"""Names that one expression may stand for; more is a typo."""

_DIGITS = 9
"""Digits of a number in brackets; longer ones are left as text when folding."""

_NUMBER = re.compile(rf"[0-9]{{1,{_DIGITS}}}")
_SPLIT = re.compile(r"([0-9]+)")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_PART = re.compile(r"((?:[^,\[]|\[[^\]]*\])*),")
"""Text up to a comma outside brackets."""

_Numbers = tuple[range, int]
"""The numbers of one range, and the digits to which zeros pad them."""


class BadRange(ValueError):  # noqa: N818  (named for what was written)
    """The expression is not a list of names and ranges."""

    def __init__(self, *, wanted: str, found: str) -> None:
        """Keep both halves apart, for messages that show a place between them."""
        super().__init__(f"expected {wanted}, found {found}")
        self.wanted = wanted
        self.found = found


def expand_hosts(text: str) -> tuple[str, ...]:
    """Return the names that an expression stands for, in its order."""
    parts = [_pieces(part) for part in _split(text)]
    total = sum(
        math.prod(sum(len(numbers) for numbers, _ in bracket) for bracket in brackets)
        for _, brackets in parts
    )
    if total > LIMIT:
        raise BadRange(wanted=f"at most {LIMIT} names", found=f'{total} in "{text}"')
    return tuple(name for part in parts for name in _product(*part))


def fold_hosts(names: Iterable[str]) -> str:
    """Return the shortest plain expression for names, in their order.

    Neighbors that differ in one number share a bracket: `gpu02, gpu03, gpu07` become
    `gpu[02-03,07]`.
    """
    return ",".join(text for text, _ in folds(names))


_NAMED = 8
"""Most hosts that a sentence names one by one."""


def name_hosts(names: Iterable[str]) -> str:
    """Return names for a sentence: a few one by one, more of them folded."""
    listed = tuple(names)
    return ", ".join(listed if len(listed) <= _NAMED else (text for text, _ in folds(listed)))


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


def _split(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    outside = _BRACKET.sub("", text)
    if outside.count("[") == 1 and "]" not in outside:
        raise BadRange(wanted="a closing ]", found=f'"{text}"')
    if set(outside) & set("[]"):
        raise BadRange(wanted="brackets in pairs, as in gpu[01-04]", found=f'"{text}"')
    parts = [part.strip() for part in _PART.findall(text + ",")]
    if not all(parts):
        raise BadRange(wanted="a name on each side of a comma", found=f'"{text}"')
    return parts


def _pieces(part: str) -> tuple[list[str], list[list[_Numbers]]]:
    """Split `a[1-2]b` into its literals and the numbers in each bracket between them."""
    literals, insides = _BRACKET.split(part)[::2], _BRACKET.findall(part)
    return literals, [[_numbers(item, part) for item in inside.split(",")] for inside in insides]


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
    width = _width(first)
    if last != str(int(last)).zfill(width):
        raise BadRange(wanted="as many digits in the last as in the first", found=f'"{part}"')
    return range(int(first), int(last) + 1), width


def _width(first: str) -> int:
    """Return how many digits a range pads its numbers to: those of a first one with zeros."""
    return len(first) if first[0] == "0" else 0


def _product(literals: list[str], brackets: list[list[_Numbers]]) -> Iterator[str]:
    choices = [
        [str(number).zfill(width) for numbers, width in bracket for number in numbers]
        for bracket in brackets
    ]
    for chosen in itertools.product(*choices):
        yield "".join(map(operator.add, literals, (*chosen, "")))


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
    """Return the text that would extend the range from `first` to `last`."""
    return str(int(last) + 1).zfill(_width(first))
