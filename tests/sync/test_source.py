"""A folder that is to be mirrored: what is read of it, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.errors import ClusterError, UsageError
from clusterctl.sync.source import read_source


def paths(folder: Path, *leave_out: str) -> set[str]:
    return set(map(os.fsdecode, read_source(folder, leave_out=leave_out).listing))


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "a.py").touch()
    return folder


def as_nobody(folder: Path) -> subprocess.CompletedProcess[str]:
    """Read a folder as a user whom modes bind."""
    text = "import sys, pathlib; from clusterctl.sync.source import read_source\n"
    text += "print(*sorted(read_source(pathlib.Path(sys.argv[1])).listing))"
    lower = "import os; os.setgid(65534); os.setuid(65534)\n" if os.getuid() == 0 else ""
    # Imported before the user changes: who may not read our own files could not.
    first = "import clusterctl.sync.source\n" + lower
    return subprocess.run(
        [sys.executable, "-c", first + text, str(folder)],
        check=False, capture_output=True, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip


@pytest.fixture
def unreadable(tmp_path: Path) -> Path:
    """A folder with a part that its reader may not open; every folder above it is open to all."""
    folder = Path(f"/tmp/clusterctl-unreadable-{os.getpid()}-{tmp_path.name}")
    (folder / "closed").mkdir(parents=True)
    (folder / "a.py").touch()
    (folder / "closed").chmod(0)
    return folder


def test_a_folder_that_may_not_be_read_is_named(unreadable: Path) -> None:
    try:
        done = as_nobody(unreadable)
        assert "ClusterError: closed/: Permission denied" in done.stderr
        (unreadable / ".clusterctlignore").write_text("/closed\n")
        done = as_nobody(unreadable)
        assert done.stdout == "b'.clusterctlignore' b'a.py'\n", done.stderr
    finally:
        (unreadable / "closed").chmod(0o700)
        subprocess.run(["rm", "-rf", str(unreadable)], check=True)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give files to another user")
def test_below_a_repositorys_top_an_unreadable_folder_is_named_and_can_be_left_out(
    unreadable: Path,
) -> None:
    code = unreadable / "code"
    (code / "closed").mkdir(parents=True)
    (code / "b.py").touch()
    subprocess.run(["git", "init", "-q", str(unreadable)], check=True)
    (code / "closed").chmod(0)
    for path in (unreadable, *unreadable.rglob("*")):
        os.chown(path, 65534, 65534)
    try:
        done = as_nobody(code)
        assert f"{code}/closed: Permission denied" in done.stderr.replace("closed/:", "closed:")
        (code / ".clusterctlignore").write_text("/closed\n")
        done = as_nobody(code)
        assert done.stdout == "b'.clusterctlignore' b'b.py'\n", done.stderr
    finally:
        for path in (unreadable / "closed", code / "closed"):
            path.chmod(0o700)
        subprocess.run(["rm", "-rf", str(unreadable)], check=True)


def test_an_ignore_file_that_is_a_folder_is_refused(code: Path) -> None:
    (code / ".clusterctlignore").mkdir()
    with pytest.raises(UsageError, match=r"\.clusterctlignore: Is a directory"):
        read_source(code)


def test_a_path_that_is_too_long_is_named(code: Path) -> None:
    before = Path.cwd()
    os.chdir(code)
    try:
        for _ in range(20):
            Path("d" * 250).mkdir()
            os.chdir("d" * 250)
        Path("f").touch()
    finally:
        os.chdir(before)
    with pytest.raises(ClusterError, match="File name too long"):
        read_source(code)
    subprocess.run(["rm", "-rf", str(code)], check=True)


def test_a_pattern_that_would_bring_back_is_refused(code: Path) -> None:
    (code / ".clusterctlignore").write_text("*.log\n\n!keep.log\n")
    with pytest.raises(UsageError, match=r"\.clusterctlignore:3: .*found !keep\.log"):
        read_source(code)


def test_the_checkpoints_are_a_path_and_no_pattern(code: Path) -> None:
    for name in ("runs[1]", "runs1"):
        (code / name).mkdir()
        (code / name / "x").touch()
    assert paths(code, "runs[1]") == {"a.py", "runs1/x"}


def test_a_workdir_within_the_folder_is_no_part_of_it(code: Path) -> None:
    (code / "out" / ".clusterctl").mkdir(parents=True)
    (code / "out" / ".clusterctl" / "manifest.json").touch()
    (code / "out" / "a.py").touch()
    assert paths(code) == {"a.py"}


def test_a_home_folder_is_refused(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(code))
    with pytest.raises(UsageError, match="is your home folder"):
        read_source(code)
    (code / ".clusterctlignore").write_text(".ssh\n")
    assert paths(code) == {".clusterctlignore", "a.py"}


def test_a_private_key_is_refused(code: Path) -> None:
    (code / ".ssh").mkdir()
    (code / ".ssh" / "id_ed25519.pub").touch()
    assert ".ssh/id_ed25519.pub" in paths(code)
    (code / ".ssh" / "id_ed25519").touch()
    with pytest.raises(UsageError, match=r"\.ssh/id_ed25519: a private key"):
        read_source(code)


def test_any_execute_bit_makes_a_program(code: Path) -> None:
    (code / "a.py").chmod(0o645)
    (entry,) = read_source(code).listing.values()
    assert entry.kind == "x"


@pytest.mark.parametrize("in_git", [False, True])
def test_what_is_written_while_a_job_runs_is_no_code(code: Path, in_git: bool) -> None:  # noqa: FBT001
    if in_git:
        subprocess.run(["git", "init", "-q", code], check=True)
    for name in ("slurm-12.out", "slurm-12_3.out", "nohup.out", "slurm-notes.out"):
        (code / name).touch()
    text = "import sys, pathlib; from clusterctl.sync.source import read_source\n"
    text += "print(*sorted(read_source(pathlib.Path()).listing), file=sys.stderr)"
    with (code / "launch.log").open("wb") as log:
        done = subprocess.run(
            [sys.executable, "-c", text],
            check=True, stdout=log, stderr=subprocess.PIPE, cwd=code,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
    assert done.stderr.decode().split() == ["b'a.py'", "b'slurm-notes.out'"]
