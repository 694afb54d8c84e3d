"""A git that fails ends a sync; it never changes what is mirrored."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from clusterctl.sync.source import read_source

GIT = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main")


def git(folder: Path, *words: str) -> None:
    allow = ("-c", "protocol.file.allow=always")
    subprocess.run(["git", *GIT, *allow, *words], cwd=folder, check=True, capture_output=True)


def repository(folder: Path) -> Path:
    folder.mkdir(parents=True)
    git(folder, "init", "-q")
    (folder / ".gitignore").write_text(".env\ndata/\n")
    (folder / "a.py").write_text("A = 1\n")
    (folder / ".env").write_text("TOKEN=secret\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return repository(tmp_path / "code")


def paths(folder: Path) -> set[str]:
    return set(map(os.fsdecode, read_source(folder).listing))


def _break_config(code: Path) -> None:
    (code / ".git" / "config").write_text("[core\n")


def _lose_head(code: Path) -> None:
    (code / ".git" / "HEAD").unlink()


def _be_of_the_future(code: Path) -> None:
    git(code, "config", "core.repositoryformatversion", "99")


def _be_a_moved_worktree(code: Path) -> None:
    shutil.rmtree(code / ".git")
    (code / ".git").write_text("gitdir: /nowhere/.git/worktrees/code\n")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (_break_config, "bad config"),
        (_lose_head, "not a git repository"),
        (_be_of_the_future, "repo version"),
        (_be_a_moved_worktree, "not a git repository: /nowhere"),
    ],
)
def test_a_broken_repository_is_refused_in_gits_words(
    code: Path, harm: Callable[[Path], None], words: str
) -> None:
    assert paths(code) == {".gitignore", "a.py"}
    harm(code)
    with pytest.raises(UsageError, match=words) as refused:
        read_source(code)
    assert refused.value.hint


def test_a_repository_further_up_does_not_stand_in(tmp_path: Path) -> None:
    outer = repository(tmp_path / "outer")
    code = repository(outer / "code")
    (code / ".git" / "HEAD").unlink()
    with pytest.raises(UsageError, match=r"code/\.git is not a git repository"):
        read_source(code)


def test_a_repository_needs_git(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="git is not on PATH"):
        read_source(code)
    shutil.rmtree(code / ".git")
    assert paths(code) == {".gitignore", "a.py", ".env"}


def test_a_foreign_repository_is_named_in_any_language(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give files to another user")
    for path in (code, *code.rglob("*")):
        os.lchown(path, 65534, 65534)
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("LANGUAGE", "de")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    with pytest.raises(UsageError, match="belongs to another user") as refused:
        read_source(code)
    assert "safe.directory" in str(refused.value.hint)


def test_a_hint_quotes_a_folder_for_the_shell(tmp_path: Path) -> None:
    folder = tmp_path / "it's here"
    folder.mkdir()
    (folder / ".git").write_text("no git file\n")
    with pytest.raises(UsageError) as refused:
        read_source(folder)
    assert str(folder) in shlex.split(str(refused.value.hint).partition(";")[0])


@pytest.mark.parametrize("nested", ["submodule", "repository"])
def test_a_broken_submodule_is_refused(code: Path, tmp_path: Path, nested: str) -> None:
    library = repository(tmp_path / "library")
    if nested == "submodule":
        git(code, "submodule", "add", "-q", str(library), "sm")
        index = code / ".git" / "modules" / "sm" / "index"
    else:
        shutil.copytree(library, code / "sm")
        index = code / "sm" / ".git" / "index"
    assert "sm/a.py" in paths(code)
    index.write_text("")
    with pytest.raises(UsageError, match=r"/sm: git: .*index file smaller than expected"):
        read_source(code)


def test_variables_of_a_hook_do_not_mislead(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    assert paths(code) == {".gitignore", "a.py"}


def test_a_folder_that_an_outer_repository_ignores_is_told_why(code: Path) -> None:
    (code / "data").mkdir()
    (code / "data" / "x.py").touch()
    with pytest.raises(UsageError, match=f"git repository {code} ignores this folder"):
        read_source(code / "data")


def test_a_tracked_folder_that_became_a_link_is_a_link(code: Path, tmp_path: Path) -> None:
    (code / "cfg").mkdir()
    (code / "cfg" / "x").touch()
    git(code, "add", ".")
    git(code, "commit", "-qm", "second")
    (code / "cfg").rename(tmp_path / "cfg")
    (code / "cfg").symlink_to(tmp_path / "cfg")
    assert paths(code) == {".gitignore", "a.py", "cfg"}


def test_a_repository_without_a_commit_is_one(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").touch()
    found = read_source(tmp_path)
    assert set(found.listing) == {b"a.py"}
    assert found.commit is None
