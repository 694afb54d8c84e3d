"""The documentation holds: links lead somewhere, commands parse, help is what help says."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.cli.shared.main import split_command
from clusterctl.cli.shared.parser import build_parser
from clusterctl.cli.shared.verbs import VERBS, WITH_COMMAND
from clusterctl.inventory import load
from tests.installed import LOCATION

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
)

FENCE = re.compile(r"^ *(```+).*?^ *\1 *$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
INLINE = re.compile(r"(?<!`)`(clusterctl [^`]+)`")
LINE = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S* )*(clusterctl (?:.*\\\n)*.*)$", re.MULTILINE)
MODULE = re.compile(r"`((?:[\w.-]+/)*\w+\.py)`")
"""A module named in a sentence or a table."""
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
"""A test that a page names as the proof of a sentence."""
EXAMPLES = {"train.py", "job.py", "missing.py", "train_fsdp.py"}
"""The reader's own scripts, in how-tos."""
OPERATORS = {"|", "||", "&&", ";", "&", ">", ">>", "<", "2>"}
ELLIPSES = {"…", "..."}


def links() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for target in LINK.findall(FENCE.sub("", page.read_text())):
            if "://" not in target and not target.startswith("mailto:"):
                yield str(page.relative_to(ROOT)), target


def commands() -> Iterator[tuple[str, str]]:
    """Yield every command of ours that a page shows, in a line of a block or within a sentence."""
    for page in PAGES:
        text = page.read_text()
        found = INLINE.findall(FENCE.sub("", text))
        for block in FENCE.finditer(text):
            found += LINE.findall(block.group())
        for command in dict.fromkeys(found):
            yield str(page.relative_to(ROOT)), command


def words_of(command: str) -> list[str]:
    """Return our own arguments of a shown command: up to a pipe, without what stands for more."""
    words = []
    for word in shlex.split(command.replace("\\\n", " "), comments=True)[1:]:
        if word in OPERATORS:
            break
        if word not in ELLIPSES:
            words.append(word.rstrip(";"))
    return words


def anchors(page: Path) -> set[str]:
    """Return the names of a page's headings as GitHub makes them."""
    titles = HEADING.findall(FENCE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def modules() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for name in MODULE.findall(FENCE.sub("", page.read_text())):
            if name not in EXAMPLES:
                yield str(page.relative_to(ROOT)), name


def source_files() -> set[str]:
    """Return the paths of all Python files of the project."""
    folders = ("train", "docs", "tests", "bench")
    found = {path.relative_to(ROOT) for name in folders for path in (ROOT / name).rglob("*.py")}
    found |= {path.relative_to(LOCATION) for path in (LOCATION / "clusterctl").rglob("*.py")}
    return {path.as_posix() for path in found}


@pytest.mark.parametrize(("page", "target"), sorted(set(links())))
def test_a_link_leads_somewhere(page: str, target: str) -> None:
    path, _, anchor = target.partition("#")
    aim = (ROOT / page).parent / path if path else ROOT / page
    assert aim.exists()
    if anchor:
        assert anchor in anchors(aim)


@pytest.mark.parametrize(("page", "command"), sorted(set(commands())))
def test_a_command_that_is_shown_parses(
    page: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = words_of(command)
    verb = next((word for word in words[:1] if not word.startswith("-")), None)
    if verb is not None:
        assert verb in VERBS
    if words == [verb]:
        return  # the verb's name, not a whole command
    if verb in WITH_COMMAND:
        words, _ = split_command(words)
    code: object = 0
    try:
        build_parser([verb] if verb else []).parse_args(words)
    except SystemExit as asked:
        code = asked.code
    assert code == 0, capsys.readouterr().err


def inventories() -> Iterator[tuple[str, str]]:
    """Yield each page with each whole hosts.yaml that it shows."""
    for page in PAGES:
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            if re.search(r"^cluster:", block, re.MULTILINE):
                yield str(page.relative_to(ROOT)), block


@pytest.mark.parametrize(("page", "text"), sorted(set(inventories())))
def test_an_inventory_that_is_shown_loads(page: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(text)
    assert load(path).name, page


def test_the_page_of_commands_is_what_help_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write it anew with: python docs/make_commands.py."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    made = runpy.run_path(str(ROOT / "docs" / "make_commands.py"))
    # Python versions differ in where they break the lines of a usage, not in its words.
    assert made["PAGE"].read_text().split() == made["render"]().split()


def test_every_verb_has_its_page_entry() -> None:
    headings = anchors(ROOT / "docs" / "reference" / "commands.md")
    assert set(VERBS) <= headings


def test_a_module_that_is_named_exists() -> None:
    """A name may leave out its first folders: `config/parse.py` is `train/config/parse.py`."""
    files = source_files()
    wrong = [
        f"{page}: {name}"
        for page, name in sorted(set(modules()))
        if not any(f"/{file}".endswith(f"/{name}") for file in files)
    ]
    assert wrong == []


def test_the_page_of_training_lists_every_room() -> None:
    text = (ROOT / "docs" / "explanation" / "training.md").read_text()
    rooms = {path.parent.name for path in (ROOT / "train").glob("*/__init__.py")}
    assert rooms == set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))


@pytest.mark.parametrize(
    "page", [p for p in PAGES if TEST.search(p.read_text())], ids=lambda p: p.stem
)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    named = TEST.findall(page.read_text())
    lost = [f"{path}::{name}" for path, name in named if not defines(ROOT / path, name)]
    assert not lost


def defines(path: Path, name: str) -> bool:
    return path.is_file() and f"def {name}(" in path.read_text()
