"""The commands that pages show print what the pages show, in a sandbox."""

from __future__ import annotations

import difflib
import re
import runpy
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import pytest

DOCS = Path(__file__).parent.parent / "docs"
OUTPUTS = SimpleNamespace(**runpy.run_path(str(DOCS / "make_outputs.py")))
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if OUTPUTS.is_played(page.read_text())]

LONG = {"hangs", "resume-a-run", "two-gpu-machines"}
"""Soaks: their jobs import torch again and again. What they show is run by test_hang.py,
test_resume.py and test_init_connects.py of tests/cli, and by the pages that remain."""


@pytest.mark.netns
@pytest.mark.torch
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(one, marks=pytest.mark.soak if one.stem in LONG else (), id=one.stem)
        for one in PAGES
    ],
)
def test_a_page_shows_what_its_commands_print(page: Path) -> None:
    played = OUTPUTS.play(page.read_text())
    wrong = [
        "".join(difflib.unified_diff(f"{typed}".splitlines(True), printed.splitlines(True)))
        for typed, printed in played.changed
    ]
    assert not wrong, f"python docs/make_outputs.py {page}\n" + "\n".join(wrong)
    assert {path.stem for path in (DOCS / "pictures").glob("*.svg")} >= set(played.pictures)


def test_each_block_with_a_prompt_is_played() -> None:
    unplayed = [
        page.name
        for page in DOCS.rglob("*.md")
        if page not in PAGES and "```console\n" in page.read_text()
    ]
    assert unplayed == ["commands.md"]  # written from the parser, by make_commands.py


NOT_PLAYED = "top"
"""A picture of figures that are others each time."""


@pytest.mark.parametrize(
    "path",
    sorted(path for path in (DOCS / "pictures").glob("*.svg") if path.stem != NOT_PLAYED),
    ids=lambda p: p.stem,
)
def test_a_picture_shows_what_its_page_shows_and_loads_nothing(path: Path) -> None:
    mark = f"<!-- picture {path.stem} -->"
    (text,) = (page.read_text() for page in PAGES if mark in page.read_text())
    block = OUTPUTS.PART.findall(text.split(mark)[0])[-1][-1]
    svg = ET.fromstring(path.read_text())
    lines: dict[str, list[str]] = {}
    for element in svg.iter("{http://www.w3.org/2000/svg}text"):
        lines.setdefault(element.get("y", ""), []).append((element.text or "").strip())
    drawn = "\n".join(" ".join(line) for line in lines.values()).replace("\xa0", " ")
    assert squeezed(drawn) == squeezed(block[block.rindex("$ ") :])
    assert not re.findall(r"url\((?!#)|href=.(?!#)", path.read_text())


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", OUTPUTS.comparable(text))


def test_a_block_has_commands_each_with_its_output() -> None:
    (first, second) = OUTPUTS.commands_of("$ cd a\n$ cat b\none\n\n> two\n")
    assert (first.command, first.output) == ("cd a", "")
    assert (second.command, second.output) == ("cat b", "one\n\n> two\n")
    assert str(first) + str(second) == "$ cd a\n$ cat b\none\n\n> two\n"
    with pytest.raises(OUTPUTS.PlayError, match="begin with"):
        OUTPUTS.commands_of("output alone\n")


@pytest.mark.parametrize(
    ("written", "printed", "held"),
    [
        ("lab-20261124t021135-36jt: finished\n", "lab-20270101t000000-abcd: finished\n", True),
        ("lab-20261124t021135-36jt: finished\n", "lab-20270101t000000-abcd: failed\n", False),
        ("12 checks in 0.2 s: 3 passed\n", "12 checks in 14 s: 4 passed\n", True),
        ("node1  ok\n", "node1     ok\n", True),
        ("first\n...\nlast\n", "first\nmore\n\nlast\n", True),
        ("first\n...\nlast\n", "first\nlast\n", True),
        ("first\n...\nlast\n", "first\nmore\n", False),
        ("", "", True),
        ("", "warning: more\n", False),
        ("port 29500\n", "port 29501\n", False),
    ],
)
def test_an_output_holds_if_it_differs_as_each_run_does(
    written: str, printed: str, *, held: bool
) -> None:
    assert OUTPUTS.holds(written, printed) is held
