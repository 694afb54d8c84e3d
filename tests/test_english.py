"""The words of messages, help and documents: standard terms, and short sentences."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import clusterctl
import train

ROOT = Path(__file__).parent.parent
PACKAGES = [Path(str(package.__file__)).parent for package in (clusterctl, train)]
PAGES = [
    ROOT / "README.md",
    *sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]),
]

MOST_WORDS = 25
MOST_WORDS_OF_A_PAGE = 29

AVOIDED = {
    r"(?:is|are|was|were|be|been) (?:said|told)": "prints, warns, reports",
    r"says? so": "tells you",
    r"says? nothing": "reports nothing, sends nothing",
    r"shall": "must, will",
    r"whoever": "a user who, any process that",
    r"go(?:es)? on": "continue, resume",
    r"passed over": "skipped",
    r"anew": "again: rebuilt, reinstalled, resharded",
    r"proven gone": "stopped and verified",
    r"(?:is|are|has|have|had|was|were) gone": "exited, stopped, removed",
    r"add(?:s|ed)? up numbers": "all-reduce",
    r"of ours|our own": "clusterctl's",
    r"not well": "unhealthy",
    r"(?:is|are|be|was|were) split": "is partitioned",
    r"left aside": "not used",
    r"looked at": "checked, read",
    r"as wished": "as expected",
    r"taken for": "counts as",
    r"does not tell": "does not report",
    r"(?:take|takes|took) no part": "does not take part",
    r"in silence|without a word": "silently",
    r"lies? (?:on|in|below|under|there|beside)": "is on, is in",
    r"came to": "the result",
    r"survey": "probe",
    r"door": "control socket",
    r"(?<!image )processors?": "CPU",
    r"filling": "padding",
    r"cut anew": "reshard",
    r"nobody": "no process, no user",
    r"somebody|anybody": "a user, any user",
    r"for ever": "forever",
    r"beside": "next to, with",
    r"all the same": "anyway",
    r"till": "until",
    r"mend(?:s|ed)?": "repair, fix",
    r"ended badly|bad end": "failed, failure",
    r"a person": "you, a user",
    r"colours?|coloured|behaviours?|honou?rs|neighbours?|favou?r|grey": "American spelling",
    r"(?:normal|organ|serial|summar|initial|recogn|token|optim|synchron)is(?:e[drs]?|ing|ation)|"
    r"licence|catalogue|centre": "American spelling",
}
"""Pattern of a word or phrase → what to write instead."""

_AVOIDED = re.compile("|".join(rf"\b(?:{pattern})\b" for pattern in AVOIDED), re.IGNORECASE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_FENCE = re.compile(r"^ *(```+).*?^ *\1 *$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`|\]\([^)]*\)|https?://\S+")


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module with their lines: no docstrings, no identifiers."""
    tree = ast.parse(source)
    skipped = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "X" for part in node.values]
            skipped |= {id(part) for part in node.values}
            text = "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        pattern = "\\" in text
        if id(node) not in skipped and " " in text.strip() and not pattern:
            yield node.lineno, text


def remarks(source: str) -> Iterator[tuple[int, str]]:
    """Yield the docstrings and comments of a module with their lines, without their code."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, prose(str(node.value.value))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], prose(token.string)


def prose(page: str) -> str:
    """Return a document without its code."""
    return _CODE.sub("X", _FENCE.sub("", _COMMENT.sub("", page)))


def faults(text: str) -> list[str]:
    """Return the avoided words of a text."""
    return [found.group() for found in _AVOIDED.finditer(text)]


ROOMS = [
    folder
    for package in PACKAGES
    for folder in (package, *sorted(path.parent for path in package.glob("*/__init__.py")))
]
"""Both packages, whose own modules are in no folder, and their folders."""
EVERY_ROOM = pytest.mark.parametrize("room", ROOMS, ids=lambda room: "/".join(room.parts[-2:]))


def modules(room: Path) -> list[Path]:
    return sorted(room.glob("*.py") if room in PACKAGES else room.rglob("*.py"))


@EVERY_ROOM
def test_messages_use_standard_terms(room: Path) -> None:
    wrong = [
        f"{path}:{line}: {word!r} in {text!r}"
        for path in modules(room)
        for line, text in messages(path.read_text())
        for word in faults(text)
    ]
    assert not wrong, "\n".join(wrong)


@EVERY_ROOM
def test_docstrings_and_comments_use_standard_terms(room: Path) -> None:
    wrong = [
        f"{path}:{line}: {word!r} in {text!r}"
        for path in modules(room)
        for line, text in remarks(path.read_text())
        for word in faults(text)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_use_standard_terms(page: Path) -> None:
    assert not faults(prose(page.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_have_short_sentences(page: Path) -> None:
    long = [
        sentence
        for part in re.split(r"\n\s*\n|\n(?= *[-*#\d])|[|·]", prose(page.read_text()))
        for sentence in re.split(r"[.:;!?]\s", " ".join(part.split()))
        if len(re.findall(r"\w\S*", sentence)) > MOST_WORDS_OF_A_PAGE
        and not re.fullmatch(r"[X ]+", sentence)
    ]
    assert not long, "\n".join(long)


@EVERY_ROOM
def test_messages_have_short_sentences(room: Path) -> None:
    long = [
        f"{path.relative_to(ROOT)}:{line}: {sentence}"
        for path in modules(room)
        for line, text in messages(path.read_text())
        for sentence in re.split(r"[.;:!?]\s|\n", text)
        if len(sentence.split()) > MOST_WORDS
    ]
    assert not long, "\n".join(long)


@pytest.mark.parametrize("word", ["are said", "whoever", "goes on", "Anew", "is gone", "colour"])
def test_an_avoided_word_is_found_in_a_message_and_not_in_a_name(word: str) -> None:
    name = word.rsplit(maxsplit=1)[-1]
    source = f'"""What {word} does."""\nkind = "{name}"\nfail(f"{{x}} {word} here")\n'
    assert [faults(text) for _, text in messages(source)] == [[word]]
    assert faults(prose(f"So {word} it.\n\n```\n{word}\n```\n")) == [word]
