"""train/ under NCCL's rules, on ranks that believe to have a GPU each until they compute."""

from __future__ import annotations

import functools
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.lazy_torch import dist, torch
from tests.strict_nccl.as_train import impatient, strict
from tests.train.world import Training, World
from train.config.parse import parse
from train.distributed.env import RankEnv
from train.tools import smoke

pytestmark = pytest.mark.torch

WORLDS = {"1x2": (2,), "2x2": (2, 2), "2x4": (4, 4)}
EACH = pytest.mark.parametrize("nodes", WORLDS.values(), ids=WORLDS)
LAYOUTS = ("ddp", "fsdp", "hsdp", "auto")


def keeps_the_rules(training: Training) -> Training:
    """Wait for a training; its NCCL group was in use, and had no objects to carry."""
    codes = training.wait()
    assert set(codes) == {0}, "\n".join(map(training.said, range(len(codes))))
    used = [line for line in training.said().splitlines() if line.startswith("strict NCCL: ")]
    assert used, training.said()
    assert sum(int(line.split()[2]) for line in used) > 0, used
    assert all(line.endswith(", 0 by gloo") for line in used), used
    return training


def test_a_device_bound_to_the_groups_would_hang_a_node_of_two(world: World) -> None:
    """`device_id` of `init_process_group`: the leaders' group makes the others split alone."""
    training = world.start(nodes=(2,), max_steps=2, before=bound)
    assert set(training.wait()) == {1}
    said = training.said(1)
    assert "ncclCommSplit(NCCL_SPLIT_NOCOLOR, not in the new group)" in said
    assert "rank 1 entered it, rank 0 did not" in said
    assert "rank 0 was last in new_group, a group of ranks [0] with gloo" in said


def bound(rank: int) -> None:
    """Do what train did: give `init_process_group` the device."""
    impatient(rank)
    from train.distributed import devices

    join: Any = dist.init_process_group
    choose = devices.choose

    def bind(env: RankEnv) -> torch.device:
        device = choose(env)
        dist.init_process_group = functools.partial(join, device_id=device)
        return device

    devices.choose = bind


@pytest.mark.parametrize(("parallel", "context"), [("ddp", 1), ("fsdp", 2)])
def test_a_node_of_two_trains_evaluates_and_exports(
    world: World, parallel: str, context: int
) -> None:
    how: dict[str, Any] = {"parallel": parallel, "context_parallel": context}
    training = world.start(nodes=(2,), eval_steps=1, max_steps=2, before=strict, **how)
    keeps_the_rules(training)
    assert set(training.evaluations()) == {0, 1, 2}


def test_two_nodes_save_and_resume(world: World) -> None:
    one = world.start(nodes=(2, 2), parallel="hsdp", save_steps=1, max_steps=1, before=strict)
    keeps_the_rules(one)
    again = world.start(
        nodes=(2, 2),
        parallel="hsdp",
        max_steps=2,
        output_dir=str(one.output),
        resume_from_checkpoint="latest",
        before=strict,
    )
    keeps_the_rules(again)
    assert again.status()["step"] == 2


@pytest.mark.soak
@EACH
@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("parallel", LAYOUTS)
def test_each_layout_trains_saves_resumes_evaluates_and_exports(
    world: World, nodes: tuple[int, ...], method: str, parallel: str
) -> None:
    how: dict[str, Any] = {"nodes": nodes, "parallel": parallel, "method": method, "eval_steps": 2}
    one = world.start(**how, save_steps=2, max_steps=4, before=strict)
    keeps_the_rules(one)
    exported = {"lora": "adapter", "full": "model"}[method]
    assert (one.output / exported).is_dir()
    output = world.folder / "resumed"
    again = world.start(
        **how,
        max_steps=4,
        output_dir=str(output),
        resume_from_checkpoint=str(next(one.output.glob("step-*2"))),
        before=strict,
    )
    keeps_the_rules(again)
    assert again.losses() == {step: loss for step, loss in one.losses().items() if step > 2}


@pytest.mark.soak
@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_rank_alone_trains(world: World, method: str) -> None:
    training = world.start(nodes=(1,), parallel="single", method=method, before=strict)
    assert training.wait() == [0], training.said()


@pytest.mark.soak
@EACH
@pytest.mark.parametrize("parallel", LAYOUTS)
def test_a_signal_to_one_rank_stops_all(
    world: World, nodes: tuple[int, ...], parallel: str
) -> None:
    training = world.start(nodes=nodes, parallel=parallel, max_steps=10_000, before=strict)
    training.wait_for("Step 2/")
    training.send(signal.SIGTERM, 1)
    keeps_the_rules(training)
    assert training.status()["state"] == "preempted"


@pytest.mark.soak
@pytest.mark.parametrize("parallel", LAYOUTS)
def test_nodes_with_folders_of_their_own_save_and_resume(world: World, parallel: str) -> None:
    apart = world.folder / "apart"
    how: dict[str, Any] = {"nodes": (2, 2), "parallel": parallel, "apart": apart, "before": strict}
    keeps_the_rules(world.start(**how, save_steps=1, max_steps=2))
    again = world.start(**how, max_steps=4, resume_from_checkpoint="latest")
    keeps_the_rules(again)
    assert again.status()["step"] == 4


@pytest.mark.soak
@pytest.mark.parametrize("parallel", LAYOUTS)
def test_a_killed_rank_ends_the_others(world: World, parallel: str) -> None:
    training = world.start(nodes=(2, 2), parallel=parallel, max_steps=10_000, before=strict)
    training.wait_for("Step 2/")
    training.send(signal.SIGKILL, 3)
    assert 0 not in training.wait(60)


@pytest.mark.soak
@pytest.mark.parametrize("keys", [[], ["--method=full"], ["--parallel=fsdp"]], ids=str)
def test_smoke_keeps_the_rules(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], keys: list[str]
) -> None:
    root = Path(__file__).parents[2]
    injected = root / "tests" / "strict_nccl" / "injected"
    monkeypatch.setenv("PYTHONPATH", f"{injected}:{root}")
    found: list[str] = []
    real = subprocess.run

    def run(*args: Any, **how: Any) -> Any:
        done = real(*args, **how)
        found.append(done.stdout)
        return done

    monkeypatch.setattr(subprocess, "run", run)
    assert smoke.main(parse(["--smoke", *keys])) == 0, capsys.readouterr()
    assert len(found) == 2
    assert all("strict NCCL: " in said for said in found), found
