"""Trainings that restart themselves under faults by schedule: two, and any number as a soak."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import healing_rules
from tests.chaos.healing import draw
from tests.chaos.invariants import Done
from tests.chaos.schedule import Fault, Kind
from tests.chaos.test_chaos import play

pytestmark = [pytest.mark.netns, pytest.mark.torch]

SEEDS = (2071, 1535, 784, 610, 2435)
"""A rank of `train` is killed; then runs that start at once, whose checkpoints cannot be written,
and which end for good, or restart although their controller has died."""
NODES = ["node1", "node2", "node3"]
LATE: dict[str, Any] = {"kind": "again", "attempt": 2, "checkpoint": "out/step-2", "wait_s": 1.0}


def done(kind: Kind, node: int = 0) -> Done:
    return Done(fault=Fault(kind=kind, node=node, after=0), began=0.0, ended=0.1, hit=True)


def test_the_seeds_are_always_the_same_and_have_all_there_is() -> None:
    assert draw(7) == draw(7)
    drawn = [draw(seed) for seed in range(300)]
    kinds = {fault.kind for each in drawn for fault in each.faults}
    assert kinds == {
        *healing_rules.RESTARTED,
        *healing_rules.OUTLIVED,
        *healing_rules.ENDING,
        *healing_rules.SPOILS,
    }
    assert {each.storage for each in drawn} == {"shared", "per-node"}
    assert [draw(seed).program for seed in SEEDS] == ["train", *["light"] * 4]


@pytest.mark.parametrize(
    ("dones", "state", "why", "wrong"),
    [
        ([done("rank")], "finished", "", False),
        ([done("rank")], "failed", "it was attempt 7 of 7", True),
        ([done("rank"), done("guard")], "failed", "the guard of node1 had died", False),
        ([done("guard")], "failed", "the guard of node1 had died", True),
        ([done("supervisor")], "failed", "", True),
        ([done("supervisor")], "finished", "", True),
        ([done("mount-off", 1)], "failed", "node2: it cannot be written", False),
        ([done("mount-off", 1)], "failed", "node1: it cannot be written", True),
    ],
)
def test_what_is_restartable_finishes_and_the_rest_says_why(
    dones: list[Done], state: str, why: str, *, wrong: bool
) -> None:
    status = {"state": state, "no_restart": why or None}
    assert bool(healing_rules.wrong_end(status, dones, NODES)) == wrong


@pytest.mark.parametrize(
    ("nodes", "spare", "wrong"),
    [
        ([1], True, False),
        ([2], True, False),
        ([1], False, True),
        ([0], True, True),
        ([1, 2], True, True),
    ],
)
def test_one_lost_node_is_replaced_if_it_is_not_the_master(
    nodes: list[int], *, spare: bool, wrong: bool
) -> None:
    dones = [done("power", node) for node in nodes]
    found = healing_rules.wrong_end({"state": "finished"}, dones, NODES, spare=spare)
    assert bool(found) == wrong
    assert {each.spare for each in map(draw, range(100))} == {True, False}


@pytest.mark.parametrize(
    ("overlaps", "resumed", "wrong"),
    [
        ([], "/out/step-000004", ""),
        ([1], "/out/step-000004", "while [1] lived"),
        ([], "/out/step-000002", "expected 4"),
        ([], "", "expected 4"),
    ],
)
def test_attempts_follow_each_other_from_the_newest_checkpoint(
    overlaps: list[int], resumed: str, wrong: str
) -> None:
    one = {"attempt": 2, "overlaps": overlaps, "resumed": resumed, "complete": [2, 4]}
    found = healing_rules.wrong_attempts([one, one, {**one, "complete": [2, 4, 6]}], {})
    assert bool(found) == bool(wrong)
    assert wrong in "".join(found)
    blind = {**one, "complete": []}
    found = healing_rules.wrong_attempts([one, one, blind], {}, unmounted=True)
    assert wrong in "".join(found)


def test_waits_are_kept_and_grow_without_a_newer_checkpoint() -> None:
    first, second = {**LATE, "time": 5.0}, {**LATE, "time": 20.0, "attempt": 3, "wait_s": 15.0}
    ups = [{"kind": "supervisor-up", "time": at} for at in (1.0, 6.1, 35.1)]
    assert not healing_rules.wrong_waits([first, second, *ups])
    assert healing_rules.wrong_waits([first, {**second, "wait_s": 1.0}, *ups])
    assert not healing_rules.wrong_waits([first, second, {**second, "time": 25.0, "wait_s": 10.0}])
    assert healing_rules.wrong_waits([first, {**second, "time": 34.0}, *ups])
    assert not healing_rules.wrong_waits([{**first, "checkpoint": None}, *ups])
    assert healing_rules.wrong_after_stop(10.0, {"node1": ups})
    assert not healing_rules.wrong_after_stop(40.0, {"node1": ups})


# Soaks: tests/train/model/test_loss_scale.py kills a rank of `train`, test_stop_between_attempts.py
# of tests/node/supervisor stops runs that restart, and test_judgement.py judges a read-only mount.
SOAKED = [pytest.param(seeds, marks=pytest.mark.soak) for seeds in (SEEDS[:1], SEEDS[1:3])]


@pytest.mark.parametrize("seeds", [*SOAKED, SEEDS[3:]], ids=str)
def test_a_training_heals_itself(seeds: tuple[int, ...], tmp_path: Path) -> None:
    play("--healing", *map(str, seeds), "--out", str(tmp_path))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_trainings_heal_themselves(tmp_path: Path) -> None:
    first = int(os.environ.get("CLUSTERCTL_CHAOS_FIRST", "1"))
    count = int(os.environ.get("CLUSTERCTL_HEALING_SEEDS", "60"))
    play("--healing", f"{first}-{first + count - 1}", "--out", str(tmp_path))
