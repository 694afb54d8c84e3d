"""No hint leads in a circle: typed where it was given, it does not give the same message again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from clusterctl.cli.shared.main import main
from tests.cli.hints import commands
from tests.cli.runs import Project

INVENTORY = """
cluster: lab
workdir: {folder}/job
nodes: [{{host: localhost, state: {folder}/nodes}}]
"""
"""A machine that needs no SSH."""

STATES: tuple[tuple[str, ...], ...] = (
    ("exec", "--nodes", "9", "--", "true"),
    ("exec", "--nodes", "localhos", "--", "true"),
    ("check", "--only", "netwrk"),
    ("check", "--explain", "node.bussy"),
    ("check", "--exclude", "localhost"),
    ("export", "--to", "ansibel"),
    ("exec", "true"),
    ("exec", "--stream", "--json", "--", "true"),
    ("forget", "localhos"),
    ("launch",),
    ("quarantine", "localhost"),
    ("quarantine", "add"),
    ("quarantine", "list", "localhost"),
    ("quarantine", "remove", "localhos"),
    ("launch", "--dry-run", "--gpus", "x", "--", "train.py"),
    ("launch", "--dry-run", "train.py"),
    ("resume", "--checkpoint", "latest"),
    ("resume", "--checkpoint", ""),
    ("runs", "--prune", "3", "--discover"),
    ("status", "lab-1"),
    ("stop",),
)
"""What somebody may type in a folder with a script and an inventory, before the first run."""
TRIED = ("--dry-run", "--no-check")
"""With these a launch starts nothing."""


def typed(capsys: pytest.CaptureFixture[str], words: Sequence[str]) -> tuple[int, str]:
    """Type a command; return its exit code and its messages."""
    code = main(words)
    return code, capsys.readouterr().err


@pytest.mark.parametrize("words", STATES, ids=" ".join)
def test_what_a_refused_command_proposes_is_not_refused_the_same_way(
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "hosts.yaml").write_text(INVENTORY.format(folder=tmp_path))
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLUSTERCTL_INVENTORY", raising=False)
    monkeypatch.setenv("CLUSTERCTL_STATE", str(tmp_path / "state"))
    code, told = typed(capsys, words)
    proposed = list(commands("\n".join(re.findall(r"^hint: .*", told, re.MULTILINE))))
    assert (code != 0, proposed != [], words in proposed) == (True, True, False)
    for verb, *rest in proposed:
        _, again = typed(capsys, (verb, *(TRIED if verb == "launch" else ()), *rest))
        assert told.splitlines()[0] not in again.splitlines()


@pytest.mark.netns
def test_an_env_init_that_fails_is_run_by_hand_and_not_forced(project: Project) -> None:
    line = "echo no such module >&2; false"
    inventory = project.inventory.read_text()
    project.inventory.write_text(f"{inventory}job: {{env_init: '{line}'}}\n")
    refused = project.launch("--nodes", "2", "--", "job.py")
    assert refused.returncode == 125
    told = " ".join(refused.stderr.split())
    assert f"env_init ended with exit code 1: {line}; it printed: no such module" in told
    assert [word for word in ("Error(", "--force", "venv") if word in told] == []
    hints = re.findall(r"^hint: .*", refused.stderr, re.MULTILINE)
    (by_hand,) = commands("\n".join(hints))
    assert by_hand == ("exec", "--nodes", "node1", "--", "bash", "-c", line)
    tried = project.run(*by_hand)
    assert (tried.returncode, "no such module" in tried.stderr + tried.stdout) == (1, True)
