"""Packages that are too old are refused with the command that helps; one table says which."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from tests.train.world import World
from train import preflight, versions
from train.config.config import Config
from train.errors import ConfigError

ROOT = Path(__file__).parents[2]
GOOD = {name: each.tested for name, each in versions.TABLE.items()}


def found(monkeypatch: pytest.MonkeyPatch, **changes: str) -> None:
    """Have these versions installed, and the tested ones of all other packages."""
    monkeypatch.setattr(versions, "version", (GOOD | changes).__getitem__)


def test_the_table_is_what_the_package_asks_for() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = dict(each.split(">=") for each in extra["project"]["optional-dependencies"]["train"])
    assert {name: asked[name] for name in versions.TABLE} == {
        name: each.oldest for name, each in versions.TABLE.items()
    }


def test_the_tested_versions_are_what_the_tests_are_set_up_with() -> None:
    # `make test` links this folder, not .ci, beside what it tests.
    setup = (Path(__file__).resolve().parents[2] / ".ci" / "setup").read_text()
    pins = dict(re.findall(r"\b([a-z]+)==(\d+\.\d+)\.", setup))
    assert pins == {name: each.tested for name, each in versions.TABLE.items()}


def test_the_page_has_the_table() -> None:
    page = (ROOT / "docs" / "how-to" / "fine-tune-your-model.md").read_text()
    rows = re.findall(r"^\| (\w+) \| (\d+\.\d+) \| (\d+\.\d+) \|$", page, re.MULTILINE)
    assert rows == [(name, each.oldest, each.tested) for name, each in versions.TABLE.items()]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("2.13.0+cpu", (2, 13, 0)),
        ("2.11.0a0+1234abcd.nv26.02", (2, 11, 0)),
        ("5.20.0.dev0", (5, 20, 0)),
        ("2.14", (2, 14)),
        ("unknown", ()),
        ("", ()),
    ],
)
def test_a_versions_numbers_are_read(text: str, numbers: tuple[int, ...]) -> None:
    assert versions.release(text) == numbers


@pytest.mark.parametrize(
    ("torch", "refused"),
    [
        ("2.10.1", True),
        ("2.9", True),
        ("1.13.1", True),
        ("2.10.0a0+nv25.12", True),
        ("2.11", False),
        ("2.11.0a0+nv26.02", False),
        ("2.100", False),
        ("3.0.0.dev1", False),
        ("git-1234", False),
    ],
)
def test_only_older_ones_are_refused(
    monkeypatch: pytest.MonkeyPatch, torch: str, *, refused: bool
) -> None:
    found(monkeypatch, torch=torch)
    assert versions.older() == ((f"torch: expected >= 2.11, found {torch}",) if refused else ())


@pytest.mark.parametrize(
    ("torch", "remark"),
    [
        ("2.13.1+cu130", ""),
        ("2.11.0", ""),
        ("2.14.0", "torch 2.14.0 is newer than the tested 2.13"),
        ("git-1234", "torch: expected >= 2.11, found version git-1234, not compared"),
    ],
)
def test_newer_ones_and_odd_ones_are_a_remark(
    monkeypatch: pytest.MonkeyPatch, torch: str, remark: str
) -> None:
    found(monkeypatch, torch=torch)
    assert versions.remarks() == ((remark,) if remark else ())


def test_a_package_without_metadata_is_not_called_good(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(versions, "version", nothing)
    assert "torch: expected >= 2.11, found version unknown, not compared" in versions.remarks()


def test_the_refusal_ends_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, torch="2.9.1", transformers="4.57.1")
    with pytest.raises(ConfigError) as refused:
        versions.refuse_older()
    assert str(refused.value) == (
        "torch: expected >= 2.11, found 2.9.1\n"
        "transformers: expected >= 5.17, found 4.57.1\n"
        f"hint: {sys.executable} -m pip install 'torch>=2.11' 'transformers>=5.17'"
    )


@pytest.mark.parametrize("pip", [True, False])
def test_the_command_is_one_that_this_interpreter_takes(
    monkeypatch: pytest.MonkeyPatch, *, pip: bool
) -> None:
    if not pip:
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
        start = f"uv pip install --python {sys.executable} "
        assert versions.install(torch="").startswith(start)
        return
    command = versions.install(packaging="1", pip="")
    done = subprocess.run(
        ["sh", "-c", f"{command} --dry-run --no-index"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "packaging>=1" in done.stdout


def test_the_systems_own_python_takes_its_flag(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "EXTERNALLY-MANAGED").touch()
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert " --break-system-packages " in versions.install(torch="2.11")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))  # a virtual environment of it
    assert "--break-system-packages" not in versions.install(torch="2.11")


@pytest.mark.parametrize("words", [(), ("--check",)])
def test_a_start_and_a_check_refuse_before_they_import(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Of a real older package: its metadata is found first, and importing it fails."""
    older = tmp_path / "older"
    (older / "transformers").mkdir(parents=True)
    (older / "transformers" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (older / "transformers-4.57.1.dist-info").mkdir()
    about = "Metadata-Version: 2.1\nName: transformers\nVersion: 4.57.1\n"
    (older / "transformers-4.57.1.dist-info" / "METADATA").write_text(about)
    argv = [sys.executable, "-m", "train", *words, "--name-or-path=m", "--dataset-path=d"]
    done = subprocess.run(
        [*argv, f"--output-dir={tmp_path / 'output'}"],
        env={"PYTHONPATH": f"{older}:{ROOT}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "transformers: expected >= 5.17, found 4.57.1" in done.stdout + done.stderr
    assert f"hint: {sys.executable} -m pip install 'transformers>=5.17'" in (
        done.stdout + done.stderr
    )
    assert "Traceback" not in done.stderr
    if not words:
        status = json.loads((tmp_path / "output" / "status.json").read_text())
        assert status["state"] == "failed"


@pytest.mark.torch
def test_the_check_names_newer_ones(monkeypatch: pytest.MonkeyPatch, base: Config) -> None:
    found(monkeypatch, transformers="6.0.1")
    rows = [row for row in preflight.check(base) if row.about == "packages"]
    assert [row.state for row in rows] == ["ok", "warn"]
    assert rows[0].said == ", ".join(
        f"{n} {v}" for n, v in (GOOD | {"transformers": "6.0.1"}).items()
    )
    assert rows[1].said == "transformers 6.0.1 is newer than the tested 5.24"


def newer(_: int) -> None:
    """Have a rank see a newer torch."""
    from unittest.mock import patch

    patch.object(versions, "version", (GOOD | {"torch": "9.1"}).__getitem__).start()


@pytest.mark.torch
def test_the_start_names_newer_ones(world: World) -> None:
    run = world.run(nodes=(1,), max_steps=1, before=newer)
    assert "torch 9.1 is newer than the tested 2.13" in run.said()
