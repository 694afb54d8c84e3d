"""A wish to stop or save, from anywhere and at any moment, becomes one decision of all ranks."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from tests.train.outcome import steps_of, weights
from tests.train.world import Training, World
from tests.waiting import wait_until
from train.checkpoint import manifest

pytestmark = pytest.mark.torch

LONG: dict[str, Any] = {"nodes": (2,), "max_steps": 400}


def no_removal(_rank: int) -> None:
    """Let the file STOP be nobody's to remove."""
    real = Path.unlink

    def unlink(path: Path, **how: Any) -> None:
        if path.name == "STOP":
            raise PermissionError(13, "Permission denied")
        real(path, **how)

    patch.object(Path, "unlink", unlink).start()


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGUSR1,
        *(pytest.param(n, marks=pytest.mark.soak) for n in (signal.SIGTERM, signal.SIGINT)),
    ],
)
def test_a_signal_to_one_rank_stops_all_with_a_checkpoint(
    world: World, number: signal.Signals
) -> None:
    run = world.start(**LONG)
    run.wait_for("Step 2/")
    run.send(number, 1)
    assert run.wait() == [0, 0]
    state = run.status()
    assert (state["state"], state["reason"]) == ("preempted", number.name)
    assert steps_of(run.output) == [state["step"]]
    manifest.verify(run.output / manifest.folder_name(state["step"]))


def test_a_signal_while_ranks_still_load_is_not_lost(world: World) -> None:
    run = world.start(**LONG)
    # The banner is printed after the handlers are in place and before the first step.
    run.wait_for("World size")
    run.send(signal.SIGTERM)
    assert run.wait() == [0, 0]
    assert run.status()["state"] == "preempted"


def test_a_stop_during_evaluation_does_not_wait_for_its_end(world: World, tiny: Path) -> None:
    # One row a pass, and so many rows that the evaluation alone takes longer than the test may.
    rows = (tiny / "eval.jsonl").read_text() * 400
    (world.folder / "long.jsonl").write_text(rows)
    first = world.run(nodes=(2,), max_steps=2)
    run = world.start(
        nodes=(2,),
        eval_dataset_path=str(world.folder / "long.jsonl"),
        eval_steps=2,
        per_device_eval_batch_size=1,
        output_dir=str(first.output),
        resume_from_checkpoint="latest",
    )
    run.wait_for("Step 4/")
    time.sleep(0.3)
    run.send(signal.SIGTERM, 0)
    assert run.wait(limit=60) == [0, 0]
    assert run.status()["step"] == 4
    assert "Eval Loss" not in run.said()
    state = json.loads((run.output / "step-000004/state.json").read_text())
    assert state["owes_evaluation"]


# Without async_save, a signal that comes in the middle only sets a flag: test_trainer.py stops so.
@pytest.mark.parametrize("async_save", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_stop_while_saving_leaves_whole_checkpoints(
    world: World, usual: Callable[..., Training], *, async_save: bool
) -> None:
    how: dict[str, Any] = {"nodes": (2,), "save_steps": 1, "async_save": async_save}
    run = world.start(**how)
    seen = False
    until = time.monotonic() + 60
    while not seen and time.monotonic() < until:
        seen = bool(list(run.output.glob("step-*.tmp-*")))
        time.sleep(0.001)
    assert seen, "a checkpoint was being written"
    run.send(signal.SIGTERM)
    assert run.wait() == [0, 0]
    state = run.status()
    assert state["state"] == "preempted"
    assert steps_of(run.output)[-1] == state["step"]
    for step in steps_of(run.output):
        manifest.verify(run.output / manifest.folder_name(step))
    again = world.run(**how, output_dir=str(run.output), resume_from_checkpoint="latest")
    assert weights(again) == weights(usual(nodes=(2,)))


def test_files_ask_as_signals_do(world: World) -> None:
    run = world.start(**LONG)
    run.wait_for("Step 2/")
    (run.output / "SAVE").touch()
    wait_until(lambda: steps_of(run.output))
    saved = steps_of(run.output)
    assert not (run.output / "SAVE").exists()
    (run.output / "STOP").touch()
    assert run.wait() == [0, 0]
    state = run.status()
    assert (state["state"], state["reason"]) == ("preempted", "STOP file")
    assert steps_of(run.output) == [*saved, state["step"]]
    assert not (run.output / "STOP").exists()


def test_a_save_asked_for_before_the_first_step_follows_it(world: World) -> None:
    output = world.folder / "output"
    output.mkdir()
    (output / "SAVE").touch()
    run = world.run(nodes=(2,), max_steps=3, output_dir=str(output), eval_steps=3)
    assert steps_of(run.output) == [1, 3]
    assert not (output / "SAVE").exists()


def one_rank() -> Any:
    return SimpleNamespace(is_leader=True, env=SimpleNamespace(launched=False))


def test_a_signal_at_the_very_handover_is_nobodys_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.lifecycle.signals import SIGNALS, EarlySignals, StopListener

    ends: list[str] = []
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        with EarlySignals(ends.append) as early_signals:
            early_signals.meet()
            stop_listener = StopListener(one_rank(), tmp_path, ends.append)
            take = signal.signal

            def taken_and_got(number: signal.Signals, handler: Any) -> None:
                take(number, handler)
                if number is SIGNALS[-1]:
                    signal.raise_signal(signal.SIGTERM)

            monkeypatch.setattr(signal, "signal", taken_and_got)
            stop_listener.listen(early_signals)
            monkeypatch.undo()
            assert stop_listener.vote()[0], "it is not lost"
            stop_listener.close()
            assert signal.set_wakeup_fd(-1) == -1, "nobody watches any more"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert not ends


def test_an_old_file_that_another_node_has_removed_is_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.lifecycle.signals import StopListener

    monkeypatch.setattr(Path, "is_file", lambda _: True)  # as it was a moment ago
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    early_signals: Any = SimpleNamespace(over=lambda: None)
    stop_listener = StopListener(one_rank(), tmp_path, lambda _: None)
    stop_listener.listen(early_signals)
    stop_listener.close()


def test_a_stop_file_of_an_earlier_run_is_not_meant_for_this_one(world: World) -> None:
    output = world.folder / "output"
    output.mkdir()
    (output / "STOP").touch()
    old = time.time() - 3600
    os.utime(output / "STOP", (old, old))
    run = world.run(nodes=(1,), max_steps=2, output_dir=str(output))
    assert run.status()["state"] == "done"
    assert "older than this run" in run.said()


def test_a_folder_of_that_name_asks_for_nothing(world: World) -> None:
    output = world.folder / "output"
    (output / "STOP").mkdir(parents=True)
    (output / "SAVE").mkdir()
    run = world.start(**LONG | {"nodes": (1,)}, output_dir=str(output))
    run.wait_for("Step 3/")
    run.send(signal.SIGTERM)
    assert run.wait() == [0]
    assert run.status()["reason"] == "SIGTERM"
    assert steps_of(output) == [run.status()["step"]]


def test_a_file_that_stays_is_said_and_obeyed_all_the_same(world: World) -> None:
    run = world.start(**LONG, before=no_removal)
    run.wait_for("Step 2/")
    (run.output / "STOP").touch()
    assert run.wait() == [0, 0]
    assert run.status()["reason"] == "STOP file"
    assert "STOP: could not be removed: " in run.said()
