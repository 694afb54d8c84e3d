"""Uploads during a training: which checkpoint is next, a process that dies, a wait that ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until
from train.checkpoint import manifest, uploads
from train.checkpoint.uploads import Uploads
from train.files import measure
from train.lifecycle.status import Status

KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
UPLOADED = "print('OSError: no route; trying again in 1 s'); print('uploaded, 1.0 MiB in 2.0 s')"
SLOW = "import time; print('sending', flush=True); time.sleep(100)"


class Processes:
    """Starts a script for each upload, in place of train.tools.upload."""

    def __init__(self, *scripts: str) -> None:
        self.scripts = iter(scripts)
        self.asked: list[str] = []

    def __call__(self, words: list[str]) -> subprocess.Popen[str]:
        self.asked.append(Path(words[2]).name)
        return subprocess.Popen(
            [sys.executable, "-ISc", next(self.scripts)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip


@pytest.fixture
def records() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def status(tmp_path: Path) -> Status:
    status = Status(tmp_path, rank=0)
    status.set("running")
    return status


def upload(
    status: Status, records: list[dict[str, Any]], *, patience: float = 60, stop: bool = False
) -> Uploads:
    return Uploads("s3://runs/a", status, records.append, patience=patience, gives_up=lambda: stop)


def test_a_process_that_is_killed_is_started_again(
    status: Status, records: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:  # fmt: skip
    processes = Processes(KILLED, UPLOADED)
    monkeypatch.setattr(uploads, "start", processes)
    monkeypatch.setattr(uploads, "growing", lambda: iter([0.0, 0.0]))
    with upload(status, records) as running:
        running.add(tmp_path / "step-000003")
    assert processes.asked == ["step-000003", "step-000003"]
    assert "ended by signal 9; trying again in 0 s" in capfd.readouterr().out
    (record,) = records
    assert (record["step"], record["ok"], record["upload_tries"]) == (3, True, 2)
    assert '"said": "uploaded, 1.0 MiB in 2.0 s"' in (tmp_path / "status.json").read_text()


def test_of_those_that_wait_only_the_newest_is_uploaded(
    status: Status, records: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    processes, first = Processes(UPLOADED, UPLOADED), threading.Event()

    def start(words: list[str]) -> subprocess.Popen[str]:
        first.wait()
        return processes(words)

    monkeypatch.setattr(uploads, "start", start)
    with upload(status, records) as running:
        running.add(tmp_path / "step-000001")
        wait_until(lambda: running.current is not None)
        for step in (2, 3):
            running.add(tmp_path / f"step-00000{step}")
        first.set()
    assert processes.asked == ["step-000001", "step-000003"]


@pytest.mark.parametrize(
    ("how", "words"), [({"patience": 0}, "not done within 0 s"), ({"stop": True}, "stopped; ")]
)
def test_the_end_gives_up_with_the_command_that_uploads_it(
    status: Status, records: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str], tmp_path: Path, how: dict[str, Any], words: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(uploads, "start", Processes(SLOW))
    with upload(status, records, **how) as running:
        running.add(tmp_path / "step-000001")
        wait_until(lambda: "sending" in (tmp_path / "status.json").read_text())
        process = running._process
    assert process
    assert process.wait() < 0
    said = capfd.readouterr().out
    assert words in said
    hint = f"hint: python -m train.tools.upload {tmp_path}/step-000001 s3://runs/a"
    assert hint in said
    assert '"state": "failed"' in (tmp_path / "status.json").read_text()


def test_what_is_being_uploaded_is_not_removed(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        folder = tmp_path / manifest.folder_name(step)
        folder.mkdir()
        (folder / "shard").write_text("")
        manifest.seal(folder, step, {"shard": measure(folder / "shard")})
    manifest.prune(tmp_path, 1, tmp_path / "step-000001")
    assert [path.name for path in manifest.candidates(tmp_path)] == ["step-000003", "step-000001"]


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Wait for the thread of a test: it must not outlive its patches."""
    yield
    for thread in threading.enumerate():
        if thread.name == "uploads":
            thread.join(5)
