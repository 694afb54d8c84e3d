"""What `-v` and `-q` print, and flags that stand on the wrong side of `--`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.cli.shared.launch_options import warn_of_flags
from clusterctl.report.console import MESSAGES
from tests.cli.runs import Project

pytestmark = pytest.mark.netns


@pytest.fixture(autouse=True)
def _level() -> Iterator[None]:
    level = MESSAGES.level
    yield
    MESSAGES.setLevel(level)


def test_a_quiet_launch_prints_the_jobs_lines_and_nothing_else(project: Project) -> None:
    done = project.launch("-q", "--nodes", "1", "--", "job.py")
    assert done.returncode == 0, done
    assert done.stderr == ""
    assert "all met" in done.stdout


def test_a_quiet_launch_that_fails_still_names_the_cause(project: Project) -> None:
    done = project.launch("-q", "--nodes", "1", "--env", "BAD=0", "--", "job.py")
    assert done.returncode == 128 + signal.SIGKILL
    assert "first cause: node1, rank 0: was killed by SIGKILL" in done.stderr


def test_a_verbose_check_lists_what_was_skipped_and_why(project: Project) -> None:
    done = project.run("check", "-v")
    assert done.returncode == 0, done
    lines = done.stdout.splitlines()
    at = lines.index("skip all 3 nodes: no GPU is used")
    assert "accelerator.count" in "".join(lines[at : at + 9])
    assert "skip all 3 nodes: only with --deep" in lines
    assert "skip " not in project.run("check").stdout


def test_a_flag_of_ours_after_the_dashes_is_warned_about(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("parser.add_argument('--nodes')\n")
    warn_of_flags(["own.py", "--nodes=2"])
    warn_of_flags(["train.py", "--name", "x", "--gpus", "2"])
    warn_of_flags(["torchrun", "--master-port", "29500", "train.py"])
    assert caplog.messages == []
    warn_of_flags(["train.py", "--nodes=2", "--dry-run"])
    (message,) = caplog.messages
    assert message.startswith("--nodes=2 --dry-run: after `--`, so the job gets it")


def test_a_word_for_a_shell_after_the_dashes_is_warned_about(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warn_of_flags(["train.py", "--pad", "<pad>", "--either", "a|b", "R&D"])
    warn_of_flags(["bash", "-c", "train.py > log &"])
    assert caplog.messages == []
    warn_of_flags(["train.py", ">", "log", "2>&1", "&"])
    (message,) = caplog.messages
    assert message.startswith("> log 2>&1 &: no shell reads the command")
