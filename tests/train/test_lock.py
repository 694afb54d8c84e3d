"""A lock has one living owner; what a process that exited held is free."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from train import lock as module
from train.lock import LOST, Lock, Process

FAR = replace(Process.here(), host="far", machine="far away", pid=7)
RACE = """
import pathlib, sys
from train.lock import Lock
lock = Lock(pathlib.Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
print("mine" if lock.take() else "no", flush=True)
sys.stdin.readline()
"""


def test_one_at_a_time_has_it(tmp_path: Path) -> None:
    first, second = Lock(tmp_path / "lock"), Lock(tmp_path / "lock")

    assert first.take()
    assert not second.take()
    second.release()  # it is not its own
    assert not second.take()
    first.release()
    assert second.take()
    Lock.release_all()
    assert list(tmp_path.iterdir()) == []


def test_of_another_machine_what_is_not_touched_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text(json.dumps(asdict(FAR)))
    lock = Lock(path, lost=0.2)

    assert not lock.take()
    assert lock.alive is None
    time.sleep(0.3)
    assert lock.take()
    lock.release()


def test_of_another_machine_what_is_touched_stays_whatever_its_clock_says(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text(json.dumps(asdict(FAR)))
    lock = Lock(path, lost=0.2)
    for day in range(3):
        os.utime(path, (day * 86400.0, day * 86400.0))
        assert not lock.take()
        assert lock.alive is (None if day == 0 else True)
        time.sleep(0.15)
    assert lock.owner == FAR


@pytest.mark.parametrize("round_", range(5))
def test_of_processes_that_find_a_dead_owner_one_gets_it(tmp_path: Path, round_: int) -> None:
    path = tmp_path / f"lock-{round_}"
    path.write_text(json.dumps(asdict(replace(Process.here(), began="1"))))
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(3)
    ]  # fmt: skip
    for racer in racers:
        assert racer.stdout
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin
        racer.stdin.write("go\n")
        racer.stdin.flush()
    said = [racer.stdout.readline() for racer in racers if racer.stdout]
    for racer in racers:
        racer.kill()
        racer.communicate()

    assert sorted(said) == ["mine\n", "no\n", "no\n"]
    began = time.monotonic()
    assert Lock(path).take()  # its owner was killed just now
    assert time.monotonic() - began < LOST / 2
    Lock.release_all()


def test_what_was_taken_over_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = Lock(path)
    assert lock.take()
    path.write_text(json.dumps(asdict(FAR)))
    lock.release()

    assert path.exists()


def test_what_another_process_makes_at_this_moment_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    path.write_text(json.dumps(asdict(FAR)))
    look = Lock._look

    def overtaken(lock: Lock) -> tuple[str, int | None]:
        monkeypatch.setattr(Lock, "_look", look)
        path.unlink()  # its owner has just ended
        found = look(lock)
        path.touch()  # another process's, which does not name it yet
        return found

    monkeypatch.setattr(Lock, "_look", overtaken)
    assert not Lock(path).take()
    assert path.read_text() == ""


def test_an_owner_that_wakes_up_at_the_last_moment_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    path.write_text(json.dumps(asdict(FAR)))
    lock = Lock(path, lost=0.1)
    assert not lock.take()
    time.sleep(0.2)
    remove: Any = Lock._remove

    def touched_meanwhile(*words: Any) -> None:
        os.utime(path)
        remove(*words)

    monkeypatch.setattr(Lock, "_remove", touched_meanwhile)
    assert not lock.take()
    assert json.loads(path.read_text()) == asdict(FAR)


def test_an_owner_touches_its_own_file_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEAT", 0.02)
    path = tmp_path / "lock"
    with Lock(path).held():
        os.utime(path, ns=(0, 0))
        time.sleep(0.2)
        assert path.stat().st_mtime_ns
        path.unlink()  # another machine saw nothing of it for too long
        path.write_text(json.dumps(asdict(FAR)))
        os.utime(path, ns=(0, 0))
        time.sleep(0.2)
        assert not path.stat().st_mtime_ns


def test_who_waits_gets_it(tmp_path: Path) -> None:
    first, second = Lock(tmp_path / "lock"), Lock(tmp_path / "lock")
    with first.held():
        assert not second.take()
    with second.held():
        assert not first.take()


def test_a_signal_that_raises_while_a_lock_is_taken_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = Lock(tmp_path / "lock")
    plainly = os.write

    def interrupted(*args: Any) -> int:
        plainly(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock.take()
    assert lock.path.exists()
    lock.release()
    assert not lock.path.exists()
    assert lock.take()
    lock.release()
