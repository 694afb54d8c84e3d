"""The rooms of the house and the arrows between them: an import may only follow an arrow."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "wire": set(),
    "node": {"wire"},
    "facts": {"wire"},
    "inventory": {"errors", "wire"},
    "network": {"facts", "inventory", "wire"},
    "checks": {"network", "facts", "inventory", "wire"},
    "plan": {"network", "facts", "inventory", "wire", "errors"},
    "logs": {"facts", "wire"},
    "transport": {"inventory", "wire", "errors", "node"},
    "sandbox": {"inventory", "wire", "errors"},
    "verbs": {
        "checks", "plan", "logs", "transport", "network", "facts", "inventory", "wire", "errors",
    },
    "report": {
        "verbs", "checks", "plan", "logs", "network", "facts", "inventory", "wire", "errors",
    },
    "cli": {
        "report", "verbs", "plan", "logs", "sandbox", "inventory", "errors", "transport", "wire",
    },
}  # fmt: skip
"""Room → rooms it may import. transport reads node's source files to send them."""

PURE = {"facts", "network", "checks", "plan", "logs"}
IO_MODULES = {"socket", "subprocess", "threading", "paramiko", "fabric", "shutil", "tempfile"}


def imports(path: Path) -> set[str]:
    """Return the absolute names that a file imports, wherever in it."""
    found: set[str] = set()
    for item in ast.walk(ast.parse(path.read_text())):
        if isinstance(item, ast.Import):
            found |= {alias.name for alias in item.names}
        elif isinstance(item, ast.ImportFrom) and item.module and item.level == 0:
            found.add(item.module)
            found |= {f"{item.module}.{alias.name}" for alias in item.names}
    return found


def files() -> list[Path]:
    return sorted((ROOT / "clusterctl").rglob("*.py")) + sorted((ROOT / "train").rglob("*.py"))


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT / "clusterctl").with_suffix("").parts
    return parts[0]


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_an_import_follows_an_arrow(path: Path) -> None:
    names = imports(path)
    if path.is_relative_to(ROOT / "train"):
        assert not {n for n in names if n.split(".")[0] == "clusterctl"}
        return
    assert not {n for n in names if n.split(".")[0] == "train"}
    room = room_of(path)
    if room in {"__init__", "__main__"}:
        return
    used = {n.split(".")[1] for n in names if n.startswith("clusterctl.")} - {room, "__version__"}
    assert used <= ALLOWED[room], f"{room} may not import {sorted(used - ALLOWED[room])}"


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_pure_rooms_do_no_io(path: Path) -> None:
    if path.is_relative_to(ROOT / "train") or room_of(path) not in PURE:
        return
    assert not {n.split(".")[0] for n in imports(path)} & IO_MODULES


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_rich_is_imported_in_report_only(path: Path) -> None:
    if path.is_relative_to(ROOT / "clusterctl" / "report"):
        return
    assert "rich" not in {n.split(".")[0] for n in imports(path)}
