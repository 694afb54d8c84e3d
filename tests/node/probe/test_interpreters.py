"""A node's own search for interpreters, on this machine with another home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterctl.node.agent.loader import program
from clusterctl.verbs.init.look import _MODULES


def found(home: Path, folder: str = "proj") -> list[dict[str, Any]]:
    """Return what the search writes, as the session's python3 runs it."""
    argv = [sys.executable, "-c", program(_MODULES).decode()]
    argv += ["clusterctl.node.probe.interpreters:find", folder]
    environ = {"HOME": str(home), "PATH": os.environ["PATH"]}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True, timeout=60)
    return [json.loads(line) for line in done.stdout.splitlines()]


def interpreter(path: Path, *, torch: str, seconds: float = 0) -> None:
    """Make a program that answers as an interpreter does."""
    words = [str(path), "3.11.2", "cpu", "torch", torch]
    path.parent.mkdir(parents=True)
    answer = r"\000".join(words)
    path.write_text(f"#!/bin/sh\nsleep {seconds}\nprintf '{answer}'\n")
    path.chmod(0o755)


def test_environments_are_found_in_the_usual_places(tmp_path: Path) -> None:
    usual = (
        "proj/.venv", "proj/venv", "miniconda3", "miniconda3/envs/a", ".venv", "other/.venv", "env",
        ".virtualenvs/b",
    )  # fmt: skip
    for place in usual:
        interpreter(tmp_path / place / "bin" / "python", torch="2.9.0")
    (tmp_path / "unfit" / "bin" / "python").mkdir(parents=True)
    home, *listed = found(tmp_path)
    assert home == {"home": str(tmp_path)}
    ours = [one for one in listed if one["python"].startswith(str(tmp_path))]
    expected = [f"{tmp_path}/{place}/bin/python" for place in usual]
    assert sorted(one["python"] for one in ours) == sorted(expected)
    assert ours[0]["python"] == expected[0]  # the project's own goes first
    assert {(one["version"], one["build"], one["torch"]) for one in ours} == {
        ("3.11.2", "cpu", "2.9.0")
    }


def test_the_systems_interpreter_is_listed_too(tmp_path: Path) -> None:
    if not Path("/usr/bin/python3").exists():
        pytest.skip("this machine has no /usr/bin/python3")
    assert "/usr/bin/python3" in [one.get("python") for one in found(tmp_path)]


def test_what_fails_or_hangs_costs_itself_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from clusterctl.node.probe import interpreters  # noqa: PLC0415

    interpreter(tmp_path / "proj/.venv/bin/python", torch="2.9.0", seconds=30)
    broken = tmp_path / "proj/venv/bin/python"
    broken.parent.mkdir(parents=True)
    broken.write_text("no program")
    broken.chmod(0o755)
    interpreter(tmp_path / ".venv/bin/python", torch="2.8.0")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(interpreters, "ASK_SECONDS", 0.5)
    interpreters.find("proj")
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    ours = [one for one in listed if str(tmp_path) in one.get("python", "")]
    assert [one["torch"] for one in ours] == ["2.8.0"]
    slow = [one["slow"] for one in listed if "slow" in one]
    assert str(tmp_path / "proj/.venv/bin/python") in slow


def test_the_search_ends_after_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from clusterctl.node.probe import interpreters  # noqa: PLC0415

    for number in range(9):
        interpreter(tmp_path / f"env{number}/bin/python", torch="2.9.0")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(interpreters, "MOST", 4)
    interpreters.find("proj")
    assert len(capsys.readouterr().out.splitlines()) <= 1 + 4
