"""A signal before the ranks have met ends a run at once, and status.json says how."""

from __future__ import annotations

import signal
import time
from typing import Any
from unittest.mock import patch

import pytest

from tests.train.outcome import steps_of
from tests.train.world import World
from tests.waiting import wait_until

pytestmark = pytest.mark.torch

SHORT: dict[str, Any] = {"max_steps": 2}


def while_preparing(number: signal.Signals) -> None:
    """Get a signal while the data is made ready."""
    from train.data import dataset

    patch.object(dataset, "prepare", lambda *_, **_how: signal.raise_signal(number)).start()


def terminated(_rank: int) -> None:
    while_preparing(signal.SIGTERM)


def interrupted(_rank: int) -> None:
    while_preparing(signal.SIGINT)


def asked(_rank: int) -> None:
    while_preparing(signal.SIGUSR1)


def late(rank: int) -> None:
    """Let rank 1 come when nobody waits any more."""
    if rank == 1:
        print("late", flush=True)
        time.sleep(60)


def terminated_while_meeting(rank: int) -> None:
    """Be terminated when the other rank may already count on this one."""
    from train.distributed.process_group import Ranks

    real = Ranks.join

    def join(*args: Any, **how: Any) -> Any:
        if rank == 1:
            signal.raise_signal(signal.SIGTERM)
        return real(*args, **how)

    patch.object(Ranks, "join", join).start()


@pytest.mark.parametrize(
    ("before", "name"), [(terminated, "SIGTERM"), (interrupted, "SIGINT"), (asked, "SIGUSR1")]
)
def test_before_anything_was_trained_it_is_step_0(world: World, before: Any, name: str) -> None:
    run = world.start(**SHORT, before=before)
    assert run.wait() == [0]
    assert run.status() | {"time": 0} == {
        "schema": 1, "state": "preempted", "step": 0, "reason": name, "time": 0,
    }  # fmt: skip


def test_it_is_at_the_step_that_it_would_have_gone_on_from(world: World) -> None:
    first = world.run(**SHORT)
    how = SHORT | {"max_steps": 4, "output_dir": str(first.output)}
    again = world.start(**how, before=terminated, resume_from_checkpoint="latest")
    assert again.wait() == [0]
    assert (again.status()["state"], again.status()["step"]) == ("preempted", 2)
    world.run(**how, resume_from_checkpoint="latest")
    assert steps_of(first.output) == [2, 4]


def test_waiting_for_another_rank_hides_no_signal(world: World) -> None:
    run = world.start(nodes=(2,), before=late, **SHORT)
    wait_until((run.folder / "rendezvous").exists)
    time.sleep(0.5)
    began = time.monotonic()
    run.send(signal.SIGTERM, 0)
    run.processes[0].join(30)
    assert run.processes[0].exitcode == 0
    assert time.monotonic() - began < 20
    assert not (run.output / ".owner").exists(), "another machine would wait for a sign of life"
    assert run.status()["state"] == "preempted"


def test_a_signal_while_ranks_meet_is_agreed_on(world: World) -> None:
    run = world.start(nodes=(2,), before=terminated_while_meeting, **SHORT)
    assert run.wait() == [0, 0]
    assert (run.status()["state"], run.status()["reason"]) == ("preempted", "SIGTERM")
