"""Ctrl-C says at once what it does; a second one ends at once, and says what that costs."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import train
from tests.train.outcome import steps_of
from tests.train.world import World
from tests.waiting import wait_until
from train.config.config import Config

pytestmark = pytest.mark.torch

LONG: dict[str, Any] = {"max_steps": 400, "save_steps": 2}


def endless(_rank: int) -> None:
    """Have the main thread see no signal in the fourth step, as in a GPU's sum, until it may go."""
    from train.trainer import Trainer

    real = Trainer.update

    def update(self: Any, number: int, step: Any) -> Any:
        if number == 4:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
            os.mkfifo("go")
            print("in step 4", flush=True)
            Path("go").read_bytes()  # one system call: between two, Python would see the signal
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
        return real(self, number, step)

    patch.object(Trainer, "update", update).start()


@pytest.mark.parametrize(
    ("number", "again"),
    [
        (signal.SIGINT, "; Ctrl-C again stops at once, and loses what came after step 2\n"),
        (signal.SIGTERM, "\n"),
    ],
)
def test_the_first_signal_says_at_once_what_it_does(
    world: World, number: signal.Signals, again: str
) -> None:
    run = world.start(**LONG, before=endless)
    run.wait_for("in step 4")
    run.send(number)
    line = f"{number.name}: stopping after this step, with a checkpoint{again}"
    run.wait_for(line)  # step 4 cannot end before this
    (run.folder / "go").write_bytes(b"")
    assert run.wait() == [0]
    assert run.said().count(number.name + ":") == 1
    assert run.status() | {"time": 0} == {
        "schema": 1, "state": "preempted", "step": 4, "reason": number.name, "time": 0,
    }  # fmt: skip
    assert steps_of(run.output)[-1] == 4


def test_one_rank_of_a_node_says_it(world: World) -> None:
    run = world.start(**LONG, nodes=(2,))
    run.wait_for("Step 3/")
    run.send(signal.SIGINT)
    assert run.wait() == [0, 0]
    risk = r"; if the launcher ends it earlier, what came after step \d+ is lost\n"
    line = "SIGINT: stopping after this step, with a checkpoint"
    assert len(re.findall(line + risk, run.said(0))) == 1
    assert line not in run.said(1)


def test_before_the_first_step_there_is_nothing_to_lose(world: World) -> None:
    run = world.start(**LONG, before=interrupted_while_loading)
    assert run.wait() == [0]
    assert "SIGINT: stopping before the first step; Ctrl-C again" in run.said()
    assert run.status()["state"] == "preempted"


def interrupted_while_loading(_rank: int) -> None:
    """Get Ctrl-C when the model is built."""
    from train import run

    real = run.build_model

    def build_model(*what: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return real(*what)

    patch.object(run, "build_model", build_model).start()


def test_a_second_ctrl_c_ends_a_step_that_never_ends(world: World) -> None:
    run = world.start(**LONG, before=endless)
    run.wait_for("in step 4")
    run.send(signal.SIGINT)
    run.wait_for("Ctrl-C again")
    run.send(signal.SIGINT)
    assert run.wait(limit=60) == [130]
    assert "stopped at once: what came after step 2 is lost\nhint: " in run.said()
    assert "Traceback" not in run.said()
    assert run.status()["state"] == "failed"
    assert run.status()["reason"] == "KeyboardInterrupt: what came after step 2 is lost"
    assert not (run.output / ".owner").exists(), "another machine would wait for a sign of life"


def test_a_hint_names_what_this_run_resumed_from(world: World) -> None:
    first = world.run(**LONG | {"max_steps": 2})
    folder = str(first.output / "step-000002")
    run = world.start(
        **LONG | {"save_steps": None}, before=endless, resume_from_checkpoint=folder,
        output_dir=str(world.folder / "other"),
    )  # fmt: skip
    run.wait_for("in step 4")
    run.send(signal.SIGINT)
    run.wait_for("loses what came after step 2")
    run.send(signal.SIGINT)
    assert run.wait(limit=60) == [130]
    assert f"--resume-from-checkpoint {folder}\n" in run.said()


def command(base: Config, output: Path, *more: str) -> list[str]:
    """Return a command line that trains; its steps take no time, so there are many."""
    flags = {
        "name-or-path": base.name_or_path, "dataset-path": base.dataset_path,
        "cache-dir": base.cache_dir, "seq-len": base.seq_len, "max-steps": 3000,
        "save-steps": 20, "output-dir": output, "global-batch-size": 4,
    }  # fmt: skip
    return ["-m", "train", *(f"--{name}={value}" for name, value in flags.items()), *more]


def started(args: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own, as a shell does."""
    env = os.environ | {"PYTHONPATH": str(Path(train.__file__).parents[1])}
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, *args], stdout=file, stderr=file, start_new_session=True,
            cwd=log.parent, env=env,
        )  # fmt: skip


SLOW = """
import runpy, sys, time

from train.trainer import Trainer

real = Trainer.update

def update(self, number, step):
    if number == 25 and "--resume-from-checkpoint" not in sys.argv:
        print("in step 25", flush=True)
        time.sleep(600)
    return real(self, number, step)

Trainer.update = update
runpy.run_module("train", run_name="__main__")
"""


@pytest.mark.soak  # test_resume_command.py has the hint
def test_a_typed_command_is_resumed_by_its_hint(base: Config, tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out put"
    (tmp_path / "slow.py").write_text(SLOW)
    _, _, *flags = command(base, output)
    process = started(["slow.py", *flags, "--max-steps=30"], log)
    try:
        wait_until(lambda: "in step 25" in log.read_text(), why=log.read_text)
        os.killpg(process.pid, signal.SIGINT)
        wait_until(lambda: "Ctrl-C again" in log.read_text(), why=log.read_text)
        os.killpg(process.pid, signal.SIGINT)
        code = process.wait(60)
    finally:
        process.kill()
    said = log.read_text()
    assert code == -signal.SIGINT, "a shell reports 130"
    assert "Traceback" not in said
    assert "stopped at once: what came after step 20 is lost\n" in said
    hint = re.search(r"^hint: (.*)$", said, re.MULTILINE)
    assert hint
    again = started(shlex.split(hint[1])[1:], tmp_path / "again")
    assert again.wait(120) == 0, (tmp_path / "again").read_text()
    assert f"resume: from {output}/step-000020, step 20" in (tmp_path / "again").read_text()


@pytest.mark.soak  # above, ranks without torchrun
def test_ctrl_c_on_torchrun_ends_both_ranks_with_a_checkpoint(base: Config, tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "output"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = started([*launcher, *command(base, output)], log)
    try:
        wait_until(lambda: "Step 25/" in log.read_text(), why=log.read_text)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(60)
    finally:
        process.kill()
    said = log.read_text()
    line = r"SIGINT: stopping after this step, with a checkpoint; if the launcher ends it earlier"
    assert len(re.findall(line, said)) == 1, said
    preempted = re.search(r"preempted at step (\d+): SIGINT; checkpoint in ", said)
    assert preempted
    assert steps_of(output)[-1] == int(preempted[1])
