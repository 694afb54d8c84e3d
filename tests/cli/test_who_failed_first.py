"""The first cause of a run with torch, where the ranks that print an error first only echo it."""

from __future__ import annotations

import random
import sys
import time
from typing import Any

import pytest

from clusterctl.inventory.cluster import LauncherName
from tests.cli.conftest import MakeProject
from tests.cli.runs import Project
from tests.conftest import MakeSandbox

pytestmark = pytest.mark.netns

TRAIN = """
import atexit, os, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, step = dist.get_rank(), 0
try:
    while True:
        dist.all_reduce(torch.ones(1))
        print("step", step, flush=True)
        step += 1
        if os.environ.get("RAISES") == str(rank) and step == 10:
            atexit.register(time.sleep, 600)  # as a large model that is torn down
            raise ValueError("bad sample 17")
        time.sleep(0.05)
finally:
    dist.destroy_process_group()
"""


def launched(project: Project, launcher: LauncherName, *words: str) -> str:
    (project.folder / "train.py").write_text(TRAIN)
    options = ("--launcher", launcher, "--detach", "--no-check")
    run = project.run("launch", *options, *words, "--", "train.py").stdout.strip()
    assert run
    return run


def cause_of(project: Project, run: str, state: str) -> dict[str, Any]:
    project.wait_for(run, state)
    cause: dict[str, Any] = project.status(run)["first_cause"]
    return cause


def raise_on_one(project: Project, launcher: LauncherName) -> None:
    run = launched(project, launcher, "--env", "RAISES=1")
    cause = cause_of(project, run, "failed")
    assert (cause["node"], cause["rank"]) == ("node2", 1)
    assert "ValueError: bad sample 17" in cause["message"]
    assert project.status(run)["ended_by"] == "job"


def lose_one(project: Project, launcher: LauncherName, seconds: float, *, power: bool) -> None:
    """Lose a node by a power failure, or all of its processes at once, which closes connections."""
    run = launched(project, launcher, "--lost-after", "5" if power else "60")
    project.wait_for_text("step")
    time.sleep(seconds)
    if power:
        project.sandbox.fault("node2", "killed")
    else:
        (node,) = [one for one in project.status(run)["nodes"] if one["node"] == "node2"]
        # The guard too, so that nobody is left there to say why.
        kill = f"import os; os.killpg(os.getpgid({node['supervisor']['pid']}), 9)"
        assert project.sandbox.on("node2", [sys.executable, "-c", kill]).returncode == 0
    cause = cause_of(project, run, "lost")
    assert (cause["node"], cause["rank"], cause["kind"]) == ("node2", None, "node-lost")
    project.sandbox.heal()
    for stop in (False, True):
        if stop:
            assert project.run("stop", run).returncode == 0
        found = project.status(run)
        where = found["first_cause"]["node"]
        assert (found["state"], found["ended_by"], where) == ("lost", "lost", "node2")


def test_the_rank_that_raised_is_named(
    make_sandbox: MakeSandbox, make_project: MakeProject
) -> None:
    raise_on_one(make_project(make_sandbox(nodes=2)), "direct")


@pytest.mark.soak  # test_lost_node.py loses one by a power failure
def test_the_node_that_was_lost_is_named(
    make_sandbox: MakeSandbox, make_project: MakeProject
) -> None:
    lose_one(make_project(make_sandbox(nodes=2)), "direct", 0.0, power=False)


@pytest.mark.soak
@pytest.mark.parametrize("launcher", ["direct", "torchrun", "accelerate"])
def test_of_fifty_runs_each_names_the_rank_and_the_node(
    make_sandbox: MakeSandbox, make_project: MakeProject, launcher: LauncherName
) -> None:
    project = make_project(make_sandbox(nodes=2))
    chance = random.Random(launcher)
    for number in range(50):
        raise_on_one(project, launcher)
        lose_one(project, launcher, chance.uniform(0, 10), power=bool(number % 2))
