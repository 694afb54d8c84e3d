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


_SCRIPT = """#!/bin/sh
echo "$0" >> {told}
cat
"""


def _arm(folder: Path, told: Path) -> None:
    """Let a clone's own configuration name a program wherever git could run one."""
    asked = ["git", "rev-parse", "--absolute-git-dir"]
    own = subprocess.run(asked, cwd=folder, check=True, capture_output=True, text=True)
    own_folder = Path(own.stdout.strip())
    program = own_folder / "program"
    program.write_text(_SCRIPT.format(told=shlex.quote(str(told))))
    program.chmod(0o755)
    (own_folder / "hooks").mkdir(exist_ok=True)
    shutil.copy(program, own_folder / "hooks" / "post-index-change")
    git(folder, "config", "core.fsmonitor", str(program))
    for key in (
        *("diff.external", "diff.all.command", "diff.all.textconv"),
        *("filter.all.clean", "filter.all.smudge", "filter.worktree.clean"),
    ):
        git(folder, "config", key, str(program))
    git(folder, "config", "filter.all.required", "true")
    git(folder, "config", "extensions.worktreeConfig", "true")
    git(folder, "config", "--worktree", "filter.worktree.process", str(program))
    attributes = "*.py filter=all diff=all\n*.txt filter=worktree\n"
    (own_folder / "info").mkdir(exist_ok=True)
    (own_folder / "info" / "attributes").write_text(attributes)


def test_no_program_that_a_clones_own_configuration_names_is_run(
    code: Path, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    (code / "b.txt").write_text("b\n")
    git(code, "add", ".")
    git(code, "commit", "-qm", "second")
    nested = repository(code / "vendor")
    git(code, "submodule", "add", "-q", str(repository(tmp_path / "other")), "module")
    git(code, "commit", "-qm", "module")
    for folder in (code, nested, code / "module"):
        _arm(folder, told)
        (folder / "a.py").write_text("A = 22\n")
    (code / "b.txt").write_text("bb\n")
    told.unlink(missing_ok=True)

    source = read_source(code)

    assert not told.exists(), told.read_text()
    assert {b"a.py", b"b.txt", b"vendor/a.py", b"module/a.py"} <= set(source.listing)
    assert "+A = 22" in source.diff
    assert "+bb" in source.diff
    git(code, "diff", "HEAD")
    assert told.exists()  # the trap works


def test_a_filter_of_the_users_own_configuration_runs(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that of Git LFS; without it, each of its files would count as changed."""
    told = tmp_path / "told"
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    clean = f"sh -c 'touch {shlex.quote(str(told))}; cat'"
    git(code, "config", "--global", "filter.own.clean", clean)
    (code / ".gitattributes").write_text("*.py filter=own\n")
    (code / "a.py").write_text("A = 22\n")
    read_source(code)
    assert told.exists()


def test_a_partial_clone_fetches_nothing(code: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = tmp_path / "program"
    program.write_text(_SCRIPT.format(told=shlex.quote(str(told))))
    program.chmod(0o755)
    git(code, "config", "remote.origin.url", "ssh://host/code")
    git(code, "config", "remote.origin.promisor", "true")
    git(code, "config", "core.sshCommand", str(program))
    git(code, "config", "protocol.ssh.allow", "always")
    blob = subprocess.run(
        ["git", "rev-parse", "HEAD:a.py"], cwd=code, check=True, capture_output=True, text=True
    ).stdout.strip()
    (code / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    (code / "a.py").write_text("A = 2\n")
    assert "# git diff failed" in read_source(code).diff
    assert not told.exists()


def test_a_filter_whose_name_git_cannot_be_told_is_refused(code: Path) -> None:
    git(code, "config", "filter.a=b.clean", "true")
    with pytest.raises(UsageError, match=r"filter\.a=b\.clean"):
        read_source(code)
