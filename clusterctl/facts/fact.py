"""A fact is declared once: the field of `NodeFacts` that it fills, what to ask for, its parser.

The decorator of a parser registers it. `parse_facts` puts the questions of all facts into one round
trip, and calls their parsers with the answers. A parser returns None for what is unknown, or raises
`Unreadable` to say why.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, field, replace
from typing import Any, TypeVar

from clusterctl.facts.answers import Answers
from clusterctl.facts.request import FactRequest, PathQuestion
from clusterctl.model.from_json import LARGEST
from clusterctl.values import dataclass

T = TypeVar("T")
Parser = TypeVar("Parser", bound=Callable[..., object])
FACTS: dict[str, Fact] = {}
"""By name; importing `parse_facts` fills it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a fact is read from: arguments of the node's `read`, which explains them."""

    files: tuple[str, ...] = ()
    globs: tuple[str, ...] = ()
    folders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of small files, by the pattern of their folder."""
    rdma: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """As `folders`, of devices that may hang."""
    links: tuple[str, ...] = ()
    kernel_log: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    paths: tuple[PathQuestion, ...] = ()
    local_paths: tuple[str, ...] = ()
    commands: tuple[Mapping[str, Any], ...] = ()
    """As `commands.program` makes them."""
    programs: tuple[str, ...] = ()
    build_locks: tuple[str, ...] = ()


Ask = Callable[[FactRequest], Question]
"""Returns what to ask if that depends on what is wanted."""


class Unreadable(Exception):  # noqa: N818  (it tells of a fact, not of a fault)
    """A fact that was asked for is unknown; its arguments say why."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One field of `NodeFacts`. As a decorator it registers the parser of the answers."""

    name: str
    question: Question | Ask = field(default_factory=Question)
    _: KW_ONLY
    file: str = ""
    """If given, this file is asked for, and the parser gets its text."""
    parse: Callable[[Answers], Any] = lambda _answers: None

    def ask(self, wanted: FactRequest) -> Question:
        """Return what to ask a node."""
        if self.file:
            return Question(files=(self.file,))
        return self.question if isinstance(self.question, Question) else self.question(wanted)

    def __call__(self, parser: Parser) -> Parser:
        """Register this fact with the decorated function."""
        assert self.name not in FACTS, self.name
        parse = functools.partial(_of_file, self.file, parser) if self.file else parser
        FACTS[self.name] = replace(self, parse=parse)
        return parser


def _of_file(path: str, parse: Callable[[str], T], answers: Answers) -> T | None:
    text = answers.text(path)
    return None if text is None else parse(text)


def of_word(name: str, path: str) -> None:
    """Register a fact that is a one-line file."""
    Fact(name, Question(files=(path,)))(lambda answers: answers.word(path))


def of_value(
    name: str, kind: type, document: str, key: str = "", question: Question | None = None
) -> None:
    """Register a fact that is a value in a JSON document, by default one that each node sends."""
    Fact(name, question or Question())(
        lambda answers: typed(kind, answers.object(document).get(key or name))
    )


def if_gpus(question: Question) -> Ask:
    """Return what to ask if GPUs are planned."""
    return lambda wanted: Question() if wanted.gpus == 0 else question


def typed(kind: type[T], value: object) -> T | None:
    """Return a value of exactly this type, else None: also for a number that no file may hold."""
    if isinstance(value, (int, float)) and LARGEST <= abs(value) < math.inf:
        return None
    return value if type(value) is kind else None


def seconds(value: object) -> float | None:
    """Return a number of seconds; None: it is none, or negative, or has no end."""
    found = typed(float, value) if isinstance(value, float) else typed(int, value)
    return float(found) if found is not None and 0 <= found < math.inf else None


def texts(value: object) -> tuple[str, ...]:
    """Return the entries of a list as texts."""
    return tuple(map(str, value)) if isinstance(value, list) else ()
