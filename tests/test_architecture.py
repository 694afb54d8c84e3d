"""The rooms of the house and the arrows between them: an import may only follow an arrow."""

from __future__ import annotations

import ast
import builtins
import graphlib
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import paramiko
import pytest
import yaml

import clusterctl
import train

FOLDERS = [Path(clusterctl.__file__).parent, Path(train.__file__).parent]

ALLOWED: dict[str, set[str]] = {
    "values": set(),
    "safe_text": set(),
    "errors": {"safe_text"},
    "wire": set(),
    "own_files": set(),
    "node": {"own_files", "wire"},
    "model": set(),
    "facts": {"model", "wire"},
    "inventory": {"errors", "safe_text", "wire"},
    "network": {"facts", "inventory", "wire"},
    "checks": {"plan", "network", "facts", "inventory", "wire"},
    "plan": {"network", "facts", "model", "inventory", "node", "wire", "errors"},
    "logs": {"facts", "node", "safe_text", "wire"},
    "hang": {"logs", "model", "node", "safe_text"},
    "state_folder": set(),
    "transport": {
        "inventory", "wire", "errors", "safe_text", "node", "own_files", "state_folder",
    },
    "sync": {"transport", "inventory", "wire", "errors", "safe_text", "node", "own_files"},
    "sandbox": {"inventory", "wire", "errors"},
    "verbs": {
        "checks", "plan", "hang", "logs", "transport", "node",
        "sync", "own_files", "state_folder", "network", "facts", "model", "inventory", "wire",
        "errors", "safe_text",
    },
    "report": {
        "verbs", "checks", "plan", "hang", "logs", "network", "facts", "model", "inventory",
        "own_files", "wire", "errors", "safe_text",
    },
    # Only when a value is printed: a program that prints none does not wait for rich.
    "api": {
        "report", "verbs", "plan", "logs", "transport", "node", "inventory", "errors",
        "safe_text",
    },
    "cli": {
        "api", "report", "verbs", "plan", "logs", "sandbox", "inventory", "errors", "wire",
        "safe_text",
    },
}  # fmt: skip
"""Room → rooms it may import. transport reads node's source files to send them;
sync hashes files as a node does."""

ALLOWED_IN_TRAIN: dict[str, set[str]] = {
    "errors": set(),
    "finding": {"errors"},
    "files": set(),
    "lock": set(),
    "versions": {"errors"},
    "object_store": {"errors", "versions"},
    "config": {"errors", "object_store"},
    "distributed": {"errors", "lock", "versions"},
    "data": {
        "distributed", "config", "files", "finding", "errors", "lock", "object_store", "versions",
    },
    "model": {"data", "distributed", "config", "files", "errors", "versions"},
    "lifecycle": {"distributed", "errors", "lock"},
    "checkpoint": {
        "lifecycle", "model", "data", "distributed", "config", "files", "errors", "lock",
        "object_store", "versions",
    },
    "observe": {"model", "data", "distributed", "config", "files", "errors"},
    "trainer": {
        "observe", "checkpoint", "lifecycle", "model", "data", "distributed", "config", "errors",
    },
    "run": {
        "trainer", "observe", "checkpoint", "lifecycle", "model", "data", "distributed", "config",
        "errors", "object_store", "versions",
    },
    "preflight": {
        "observe", "checkpoint", "model", "data", "distributed", "config", "finding", "errors",
        "object_store", "versions",
    },
    "tools": {
        "observe", "checkpoint", "model", "data", "distributed", "config", "files", "errors",
        "versions",
    },
}  # fmt: skip

PURE = {"model", "facts", "network", "checks", "plan", "logs", "hang"}
PURE_MODULES = {
    "__future__", "ast", "base64", "bisect", "collections", "cryptography", "dataclasses",
    "datetime", "difflib", "enum", "fnmatch", "functools", "hashlib", "heapq", "ipaddress",
    "itertools", "json", "math", "reprlib",
    "operator", "posixpath", "re", "secrets", "shlex", "signal", "statistics", "string", "types",
    "typing", "typing_extensions", "unicodedata", "warnings", "xml", "zlib",
}  # fmt: skip
"""What a pure room may import from outside: nothing that reads or writes a file or a socket."""
IO_CALLS = {"open", "print", "input", "exec", "eval", "__import__", "breakpoint"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What one file of the product imports and calls, wherever in it."""

    path: str
    package: str
    """`clusterctl` or `train`."""
    room: str
    """The folder or module in the package."""
    imports: frozenset[str]
    """Absolute names."""
    calls: frozenset[str]
    """Functions that are called by a bare name."""

    @property
    def packages(self) -> set[str]:
        """The outermost names of what is imported."""
        return {name.split(".")[0] for name in self.imports}


def source(path: Path, folder: Path) -> Source:
    imports, calls = set[str](), set[str]()
    for item in ast.walk(ast.parse(path.read_text())):
        if isinstance(item, ast.Import):
            imports |= {alias.name for alias in item.names}
        elif isinstance(item, ast.ImportFrom) and item.module and item.level == 0:
            imports.add(item.module)
            imports |= {f"{item.module}.{alias.name}" for alias in item.names}
        elif isinstance(item, ast.Call) and isinstance(item.func, ast.Name):
            calls.add(item.func.id)
    parts = path.relative_to(folder).with_suffix("").parts
    return Source(
        path=f"{folder.name}/{path.relative_to(folder)}",
        package=folder.name,
        room=parts[0],
        imports=frozenset(imports),
        calls=frozenset(calls),
    )


def python_files(folder: Path) -> list[Path]:
    """Return a package's sources; in a wheel, `clusterctl/program` is a copy of train/."""
    return [
        path
        for path in sorted(folder.rglob("*.py"))
        if path.relative_to(folder).parts[0] != "program"
    ]


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    return [source(path, folder) for folder in FOLDERS for path in python_files(folder)]


def test_an_import_follows_an_arrow(sources: list[Source]) -> None:
    wrong = []
    for each in sources:
        if {"clusterctl", "train"} & each.packages - {each.package}:
            wrong.append(f"{each.path} imports the other package")
        if each.room in {"__init__", "__main__"}:
            continue
        allowed = ALLOWED if each.package == "clusterctl" else ALLOWED_IN_TRAIN
        used = {name.split(".")[1] for name in each.imports if name.startswith(f"{each.package}.")}
        used -= allowed[each.room] | {each.room, "__version__", "values"}
        wrong += [f"{each.path} imports {name}" for name in sorted(used)]
    assert not wrong


def test_no_folder_has_more_than_20_modules(sources: list[Source]) -> None:
    folders = Counter(
        each.path.rpartition("/")[0] for each in sources if not each.path.endswith("/__init__.py")
    )
    assert max(folders.values()) <= 20, folders.most_common(3)


def test_pure_rooms_do_no_io(sources: list[Source]) -> None:
    pure = [each for each in sources if each.package == "clusterctl" and each.room in PURE]
    assert {each.room for each in pure} == PURE
    wrong = [
        f"{each.path}: {name}"
        for each in pure
        for name in sorted(
            (each.packages - PURE_MODULES - {"clusterctl"}) | (each.calls & IO_CALLS)
        )
    ]
    assert not wrong


def test_values_cost_no_time_at_the_start(sources: list[Source]) -> None:
    """The decorator of the standard library compiles six methods of each class when imported."""
    slow = [
        each.path
        for each in sources
        if any(name.startswith("clusterctl.") for name in each.imports)  # else it runs alone
        and "dataclasses.dataclass" in each.imports
        and "@dataclass(frozen=True, slots=True, kw_only=True"
        in (FOLDERS[0].parent / each.path).read_text()
    ]
    assert slow == []


def test_rich_is_imported_in_report_only(sources: list[Source]) -> None:
    using = [each for each in sources if "rich" in each.packages]
    assert {(each.package, each.room) for each in using} == {("clusterctl", "report")}


def subpackages(sources: list[Source], room: str) -> dict[str, set[str]]:
    """Return what each subpackage or module of a room imports from the others of that room."""
    prefix = f"clusterctl.{room}."
    graph: dict[str, set[str]] = {}
    for each in sources:
        if each.package == "clusterctl" and each.room == room:
            part = each.path.split("/")[2].removesuffix(".py")
            used = {name.split(".")[2] for name in each.imports if name.startswith(prefix)}
            graph.setdefault(part, set()).update(used - {part})
    return graph


@pytest.mark.parametrize("room", ["node", "verbs"])
def test_the_subpackages_of_a_room_import_in_no_circle(sources: list[Source], room: str) -> None:
    graph = subpackages(sources, room)
    assert len(graph) > 5
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"clusterctl/{room}: " + " is imported by ".join(error.args[1]))


PAGE = Path(__file__).parents[1] / "docs/explanation/architecture.md"


def test_the_page_shows_the_arrows() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*)\|$", PAGE.read_text(), flags=re.MULTILINE)
    assert {room: set(re.findall(r"`(\w+)`", allowed)) for room, allowed in rows} == ALLOWED


def test_the_page_names_files_that_exist() -> None:
    folder = Path(clusterctl.__file__).parent
    named = re.findall(r"`clusterctl/([\w/]+(?:\.py)?)/?`", PAGE.read_text())
    assert len(named) > 15
    assert not [path for path in named if not (folder / path).exists()]
    inner = set(re.findall(r"^\| `node/(\w+)` ", PAGE.read_text(), flags=re.MULTILINE))
    assert inner == {path.parent.name for path in (folder / "node").glob("*/__init__.py")}


def test_the_check_of_the_page_is_written_in_the_three_files_that_it_names() -> None:
    section = PAGE.read_text().partition("### Add a check\n")[2].partition("\n## ")[0]
    steps = [
        line for line in section.partition("\nThen:")[0].splitlines() if re.match(r"\d\.", line)
    ]
    files = [re.findall(r"`((?:clusterctl|tests)/[^`]+\.\w+)`", step)[0] for step in steps]
    root = PAGE.parents[2]
    folders = [(FOLDERS[0].parent, FOLDERS[0])]
    folders += [(root, root / folder) for folder in ("tests/checks", "tests/facts")]
    written = [
        path.relative_to(top).as_posix()
        for top, folder in folders
        for path in sorted(folder.rglob("*"))
        if path.suffix in {".py", ".json"} and "overcommit" in path.read_text()
    ]
    assert sorted(files) == sorted(written)


def _raised(docstring: str) -> list[str]:
    """Return the errors that a docstring lists under `Raises:`."""
    _, _, section = docstring.partition("Raises:\n")
    lines = section.split("\n\n")[0].splitlines()
    listed = (re.match(r"    ([A-Z][\w, ]*): ", line) for line in lines)
    return [name for found in listed if found for name in found[1].split(", ")]


def test_errors_that_docstrings_list_exist() -> None:
    texts = {path: path.read_text() for path in python_files(FOLDERS[0])}
    known = {name for text in texts.values() for name in re.findall(r"(?m)^ *class (\w+)", text)}
    known |= {*dir(builtins), *dir(paramiko), *dir(yaml)}
    listed = [
        (path.name, name)
        for path, text in texts.items()
        if "Raises:" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
        for name in _raised(ast.get_docstring(node) or "")
    ]
    assert len(listed) > 100
    assert [one for one in listed if one[1] not in known] == []
