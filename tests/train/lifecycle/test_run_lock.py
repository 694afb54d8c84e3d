"""A folder belongs to one living run: others are refused, and a dead one's folder is free."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.train.outcome import steps_of
from tests.train.world import World
from train.errors import ConfigError
from train.lifecycle import run_lock
from train.lifecycle.run_lock import take
from train.lock import LOST, Process

HOLD = """
import sys, time, pathlib
from train.lifecycle.run_lock import take
take(pathlib.Path(sys.argv[1]))
print("mine", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Return a process that has the folder."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "mine\n"
        yield process
        process.kill()


def test_a_living_owner_is_named(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(ConfigError, match=rf"process {holder.pid} on .*\nhint: wait"):
        take(tmp_path)


def test_a_killed_owners_folder_is_free_at_once(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    holder.send_signal(signal.SIGKILL)  # not yet waited for: a zombie is dead enough
    began = time.monotonic()
    while (Path(f"/proc/{holder.pid}/stat").read_text().rpartition(")")[2].split()[0]) != "Z":
        time.sleep(0.01)
    take(tmp_path)()
    assert time.monotonic() - began < LOST / 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", '{"pid": 1}', None])
def test_a_sign_of_life_from_elsewhere_is_enough(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / run_lock.NAME
    far = replace(Process.here(), host="far", machine="far away", pid=7)
    path.write_text(json.dumps(asdict(far)) if text is None else text)
    touch = threading.Timer(1.0, os.utime, [path])
    touch.start()
    words = "process 7 on far" if text is None else "another process"
    with pytest.raises(ConfigError, match=words):
        take(tmp_path)
    assert path.exists(), "it keeps what it has"


def test_what_nobody_touches_is_taken_over(tmp_path: Path) -> None:
    far = replace(Process.here(), host="far", machine="far away")
    (tmp_path / run_lock.NAME).write_text(json.dumps(asdict(far)))
    release = take(tmp_path, lost=0.5)
    assert json.loads((tmp_path / run_lock.NAME).read_text()) == asdict(Process.here())
    release()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="output_dir: expected a folder to write to"):
        take(tmp_path / "file")


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_a_second_run_leaves_a_living_ones_folder_alone(world: World) -> None:
    run = world.start(max_steps=400, save_steps=5)
    run.wait_for("Step 6/")
    second = world.start(output_dir=str(run.output))
    assert second.wait() == [2]
    assert "output_dir: expected a folder that no other run uses, found process" in second.said()
    assert run.status()["state"] == "running"
    run.send(signal.SIGTERM)
    assert run.wait() == [0]
    assert run.status()["state"] == "preempted"
    assert steps_of(run.output)[-1] == run.status()["step"]
    assert not (run.output / run_lock.NAME).exists()


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_every_nodes_own_folder_is_owned(world: World, tmp_path: Path) -> None:
    apart = tmp_path / "apart"
    output = apart / "node-1/output"
    output.mkdir(parents=True)
    release = take(output)
    how: dict[str, Any] = {"nodes": (1, 1), "apart": apart, "max_steps": 1}
    run = world.start(**how)
    assert run.wait() == [2, 2]
    assert f"process {os.getpid()} on " in run.said()
    assert "no other run uses" in run.status()["reason"]
    release()
    world.run(**how)
    assert not (output / run_lock.NAME).exists()
