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

LONG = {
    "compare-runs", "follow-and-stop", "hangs", "launch-a-run", "push-models-and-data",
    "resume-a-run", "two-gpu-machines", "watch-a-run",
}  # fmt: skip
"""Soaks: their jobs import torch again and again, or take long. What they show is run by
test_hang.py, test_launch.py, test_following.py, test_stop.py, test_push.py, test_resume.py,
test_top.py and test_init_connects.py of tests/cli, and by the other pages."""


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


PICTURES = sorted((DOCS / "pictures").glob("*.svg"))
SCREENS = {
    name: text.strip()
    for page in PAGES
    for name, text in re.findall(r"<!-- screen (\S+) [^|]*\|(.*?)-->", page.read_text())
}
"""Pictures of figures that are others each time, each with a text that it shows."""


@pytest.mark.parametrize("path", PICTURES, ids=lambda p: p.stem)
def test_a_picture_is_small_loads_nothing_and_is_told_in_words(path: Path) -> None:
    assert path.stat().st_size < 60_000
    assert not re.findall(r"url\((?!#)|href=.(?!#)", path.read_text())
    told = [
        words
        for page in (DOCS.parent / "README.md", *DOCS.rglob("*.md"))
        for words in re.findall(rf"!\[(.*?)\]\([\w./]*pictures/{path.name}\)", page.read_text())
    ]
    assert told
    assert all(len(words) > 40 for words in told)


@pytest.mark.parametrize(("name", "text"), SCREENS.items())
def test_a_picture_of_a_screen_shows_what_it_was_taken_for(name: str, text: str) -> None:
    assert squeezed(text) in squeezed(drawn(DOCS / "pictures" / f"{name}.svg"))


@pytest.mark.parametrize(
    "path", [path for path in PICTURES if path.stem not in SCREENS], ids=lambda p: p.stem
)
def test_a_picture_shows_what_its_page_shows(path: Path) -> None:
    mark = f"<!-- picture {path.stem} -->"
    (text,) = (page.read_text() for page in PAGES if mark in page.read_text())
    block = OUTPUTS.PART.findall(text.split(mark)[0])[-1][-1]
    assert squeezed(drawn(path)) == squeezed(block[block.rindex("$ ") :])


def drawn(path: Path) -> str:
    """Return the text of a picture."""
    lines: dict[str, list[str]] = {}
    for element in ET.fromstring(path.read_text()).iter("{http://www.w3.org/2000/svg}text"):
        lines.setdefault(element.get("y", ""), []).append((element.text or "").strip())
    return "\n".join(" ".join(line) for line in lines.values()).replace("\xa0", " ")


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
