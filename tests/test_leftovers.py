"""The end of a session names what its tests left behind, and nothing of other people's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests import leftovers
from tests.leftovers import Session

LEAKS = """
import subprocess, tempfile

def test_that_leaves_things(tmp_path):
    sleep = ["sleep", "300"]
    own = dict(start_new_session=True, stdin=subprocess.DEVNULL)
    subprocess.Popen(sleep, **own)
    subprocess.Popen(sleep, env={"PLACE": str(tmp_path)}, **own)
    tempfile.mkdtemp(prefix="forgotten-")
"""


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session whose only process is pid 123, with a machine of its own."""
    made = Session(folder=tmp_path / "tests-123", basetemp=tmp_path / "pytest-7")
    made.workers.mkdir(parents=True)
    (made.workers / "123").touch()
    monkeypatch.setattr(leftovers, "SHARED", (tmp_path / "shared",))
    monkeypatch.setattr(leftovers, "CGROUPS", tmp_path / "cgroups")
    monkeypatch.setattr(leftovers, "SANDBOXES", tmp_path / "sandboxes")
    return made


@pytest.mark.parametrize(
    ("name", "is_ours"),
    [
        ("tests-123/anything", True),
        ("tests-123/torchelastic_abc", False),
        ("shared/cctl-123-x", True),
        ("shared/cctl-1234-x", False),
        ("shared/clusterctl-unreadable-123", True),
        ("shared/tmp123", False),
        ("cgroups/clusterctl-0-t123-1.node1", True),
        ("cgroups/cpu/clusterctl-0-t123-1.node1", True),
        ("cgroups/cpu/clusterctl-0-t12-3.node1", False),
        ("sandboxes/t123-4", True),
        ("sandboxes/lab", False),
    ],
)
def test_files_are_told_apart_by_folder_and_pid(
    session: Session, tmp_path: Path, *, name: str, is_ours: bool
) -> None:
    (tmp_path / name).mkdir(parents=True)
    assert session.files() == [tmp_path / name] * is_ours


def test_mounts_and_words_are_told_apart_by_path(session: Session, tmp_path: Path) -> None:
    assert session.owns_text(f"tmpfs {tmp_path}/tests-123/x tmpfs rw")
    assert session.owns_text(f"--state {tmp_path}/pytest-7/test_a/state")
    assert not session.owns_text(f"--state {tmp_path}/pytest-70/test_a/state")
    assert session.owns_text(f"nsfs {tmp_path}/sandboxes/t123-1/net nsfs rw")
    assert not session.owns_text(f"nsfs {tmp_path}/sandboxes/t124-1/net nsfs rw")


@pytest.fixture
def leaking(tmp_path: Path) -> Iterator[subprocess.CompletedProcess[str]]:
    """The end of a session with a test that leaks."""
    file = tmp_path / "test_it.py"
    file.write_text(LEAKS)
    code = "import sys, pytest; from tests import leftovers; leftovers.ENDING_SECONDS = 0;"
    code += "sys.exit(pytest.main(sys.argv[1:], plugins=[leftovers]))"
    words = ["-q", "-c", os.devnull, f"--rootdir={tmp_path}", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env=os.environ | {"TMPDIR": str(tmp_path), leftovers.STRICT: "wheel"},
        capture_output=True,
        text=True,
        check=False,
    )
    yield done
    for line in done.stdout.splitlines():
        if line.startswith("process "):
            with suppress(ProcessLookupError):
                os.kill(int(line.split()[1].rstrip(":")), 9)


def test_a_session_that_leaves_something_fails_and_names_it(
    leaking: subprocess.CompletedProcess[str],
) -> None:
    assert leaking.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 passed" in leaking.stdout
    _, found = leaking.stdout.split("The tests left behind:\n")
    assert found.count("process ") == found.count("sleep 300") == 2
    assert found.count("file ") == found.count("forgotten-") == 1


@pytest.mark.parametrize(
    ("name", "is_of_ended"),
    [
        ("clusterctl-tests-1", False),
        ("clusterctl-tests-{own}", True),
        ("clusterctl-tests-999999999", True),
        ("clusterctl-tests-9999999999999999999999", False),
        ("clusterctl-tests-mine", False),
    ],
)
def test_only_folders_of_ended_sessions_are_removed(name: str, *, is_of_ended: bool) -> None:
    assert leftovers.is_of_ended(name.format(own=os.getpid())) == is_of_ended
