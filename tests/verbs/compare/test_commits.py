"""Git names the files that differ between the commits of two runs, where it knows both."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.report.compare import commit_lines
from clusterctl.verbs.compare.commits import commit_changes
from clusterctl.verbs.compare.comparison import compare_runs
from clusterctl.verbs.compare.story import Story
from tests.sync.test_git import git, repository
from tests.verbs.compare.stories import story


def head(folder: Path) -> str:
    words = ("git", "-C", str(folder), "rev-parse", "HEAD")
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def two(tmp_path: Path) -> tuple[Story, Story]:
    top = repository(tmp_path / "my code")
    (code := top / "sub").mkdir()
    source, first = str(code), head(top)
    for name in ("b.py", "c.py"):
        (code / name).write_text("B = 1\n")
    (top / "a.py").write_text("above the folder that was synced\n")
    git(top, "add", ".")
    git(top, "commit", "-qm", "second")
    return story(source=source, commit=first), story("bbbb", source=source, commit=head(top))


def test_files_that_differ_between_two_commits_are_named_with_a_command(
    two: tuple[Story, Story],
) -> None:
    found = compare_runs(two, commit_changes(two))
    (change,) = found.document()["commits"]
    assert change["files"] == ["b.py", "c.py"]
    told, how = commit_lines(found)
    assert told == "code: between the commits of aaaa and bbbb, 2 files changed: b.py, c.py"
    command = how.partition(": ")[2]
    assert change["command"] == command
    shown = subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout
    assert shown.count("diff --git") == 2


def test_a_commit_that_git_does_not_know_here_is_left_out(two: tuple[Story, Story]) -> None:
    one, other = two
    record = other.record
    assert record is not None
    for changed in (
        replace(record, commit="f" * 40),
        replace(record, commit="--output=a.py"),
        replace(record, commit=""),
        replace(record, discovered=True),
    ):
        unknown = replace(other, one=replace(other.one, record=changed))
        assert list(commit_changes([one, unknown])) == []
    gone = [
        replace(each, one=replace(each.one, record=replace(each.record, source="/gone")))  # type: ignore[type-var]
        for each in two
    ]
    assert list(commit_changes(gone)) == []
