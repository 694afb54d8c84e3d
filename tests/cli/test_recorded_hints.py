"""Every command that a hint proposes can be typed: its verb and flags exist, and it is complete.

The hints are those of the suite's recorded outputs, of the pages, and of the sources themselves.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import io
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.cli.shared.parser import build_parser
from clusterctl.cli.shared.verbs import VERBS, WITH_COMMAND
from tests.cli.hints import commands
from tests.installed import LOCATION

ROOT = Path(__file__).parent.parent.parent

LABELS = frozenset({"help", "option", "title", "why"})
"""Arguments whose strings are no hints."""
PLACEHOLDER = re.compile(r"[A-Z]{2,}(:[A-Z]+)?|.*\b(PATH|FILE|HOST|RUN|SPEC|NODE|FOLDER|DIR)\b.*")


def strings_of(path: Path) -> Iterator[str]:
    """Yield the strings of a module but docstrings and labels; 1 stands for each value in them."""
    source = path.read_text(encoding="utf-8")
    if "clusterctl " not in source:
        return
    tree = ast.parse(source)
    parts: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts.update(map(id, node.values))
        elif isinstance(node, ast.Expr) or (isinstance(node, ast.keyword) and node.arg in LABELS):
            parts.add(id(node.value))
    for node in ast.walk(tree):
        if id(node) in parts:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%[sdr]|\{\w*\}", "1", node.value)
        elif isinstance(node, ast.JoinedStr):
            yield functools.reduce(_appended, node.values, "")


def _appended(text: str, part: ast.expr) -> str:
    """Return a text with a part behind it; a value that ends a word may be empty."""
    if isinstance(part, ast.Constant):
        return text + str(part.value)
    return text if text[-1:].isalnum() else text + "1"


def recorded_texts() -> Iterator[tuple[str, str]]:
    """Yield each place with each text that a page, a fixture or a test has of a hint."""
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for line in re.findall(r"^.*\bhint: .*$", page.read_text(encoding="utf-8"), re.MULTILINE):
            yield page.name, line
    for fixture in (ROOT / "tests" / "checks").glob("*/*.json"):
        read = json.loads(fixture.read_text(encoding="utf-8"))
        cases = read if isinstance(read, list) else [read]
        for finding in (one for case in cases for one in case["findings"]):
            yield f"{fixture.parent.name}/{fixture.name}", finding.get("remedy", "")
    for fixture in (ROOT / "tests" / "inventory" / "bad").glob("*.txt"):
        yield fixture.name, fixture.read_text(encoding="utf-8")
    for module in {*(ROOT / "tests").rglob("*.py")} - {Path(__file__)}:
        for text in strings_of(module):
            for line in re.findall(r"\bhint: .*\n", text):  # the whole line, not its beginning
                yield module.name, line


def source_texts() -> Iterator[tuple[str, str]]:
    """Yield each module with each of its texts: most hints are in no record."""
    for module in (LOCATION / "clusterctl").rglob("*.py"):
        for text in strings_of(module):
            yield module.name, text


def recorded() -> dict[tuple[str, ...], str]:
    """Return each command with one of the places that propose it."""
    texts = itertools.chain(recorded_texts(), source_texts())
    return {words: place for place, text in texts for words in commands(text)}


@functools.cache
def parser_of(verb: str) -> argparse.ArgumentParser:
    """Return the parser of a verb: made once, for it takes long."""
    return build_parser([verb])


def problem_of(words: tuple[str, ...]) -> str:
    """Return why a command cannot be typed as it is; empty if it can."""
    verb = "" if words[0].startswith("-") else words[0]
    if verb and verb not in VERBS:
        return f"no verb {verb}"
    at = words.index("--") if "--" in words and verb in WITH_COMMAND else len(words)
    if wrong := next(filter(PLACEHOLDER.fullmatch, words[:at]), ""):
        return f"{wrong} is not what anybody types"
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
            parser_of(verb).parse_args(words[:at])
    except SystemExit as end:
        return told.getvalue() if end.code else ""
    return ""


def test_every_recorded_hint_can_be_typed() -> None:
    found = recorded()
    assert len(found) > 100
    wrong = {
        f"{place}: clusterctl {' '.join(words)}": problem_of(words)
        for words, place in found.items()
    }
    assert {command: why for command, why in wrong.items() if why} == {}


@pytest.mark.parametrize(
    ("hint", "problem"),
    [
        ("hint: clusterctl pul a", "no verb pul"),
        ("then: clusterctl check --acept-new", "there is no flag --acept-new"),
        ("clusterctl push PATH copies it", "PATH is not what anybody types"),
        ("clusterctl resume a", "expected --checkpoint"),
        ("clusterctl status a shows it, clusterctl stop a ends it", ""),
    ],
)
def test_a_wrong_hint_would_be_found(hint: str, problem: str) -> None:
    found = list(commands(hint))
    assert found
    assert all(
        (problem in problem_of(words)) if problem else not problem_of(words) for words in found
    )
