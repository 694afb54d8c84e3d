"""Each invariant can fail, and allows what is right."""

from __future__ import annotations

import pytest

from tests.chaos import invariants
from tests.chaos.invariants import FINISHED, STOPPED, Done, Outcome, failed, lost
from tests.chaos.schedule import Fault, Kind, draw

LINES = [f"rank {rank} line {number} {'.' * 180}|" for number in range(3) for rank in (0, 1)]
WITNESSES = {0: 3, 1: 3}


def done(kind: Kind, node: int, at: float, *, hit: bool = True) -> Done:
    return Done(fault=Fault(kind=kind, node=node, after=0), began=at, ended=at + 0.1, hit=hit)


def test_a_seed_is_always_the_same_schedule() -> None:
    assert draw(7) == draw(7)
    assert len({str(draw(seed)) for seed in range(100)}) > 90


@pytest.mark.parametrize(
    ("lines", "whole", "wrong"),
    [
        (LINES, True, ""),
        ([*LINES, "rank 0 line 3 ...."], True, ""),
        (LINES[:3], False, ""),
        (LINES[:-1], True, "2 lines came, 3 were written"),
        ([*LINES, LINES[-1]], True, "line 2 came after 3 lines"),
        ([*LINES[:2], *LINES[4:]], False, "line 2 came after 1 lines"),
        ([LINES[2], LINES[0]], False, "line 1 came after 0 lines"),
        (["rank 0 line 0 ....", *LINES], True, "in pieces"),
    ],
)
def test_lines_come_once_in_order_and_whole(lines: list[str], *, whole: bool, wrong: str) -> None:
    found = invariants.wrong_lines("logs", lines, WITNESSES, whole=whole)
    assert bool(found) == bool(wrong)
    assert wrong in "".join(found)


@pytest.mark.parametrize(
    ("dones", "right"),
    [
        ([done("controller", 0, 0), done("guard", 1, 0), done("pause", 2, 0)], {FINISHED}),
        ([done("rank", 1, 0), done("stop", 0, 9)], {failed("signal", 1, 137)}),
        ([done("rank", 1, 0), done("stop", 0, 1)], {failed("signal", 1, 137), STOPPED}),
        ([done("rank", 1, 0, hit=False), done("stop", 0, 9)], {STOPPED}),
        ([done("rank", 0, 0), done("power", 2, 9)], {failed("signal", 0, 137)}),
        ([done("power", 2, 0), done("rank", 0, 5)], {failed("signal", 0, 137), lost(2)}),
        ([done("cut-off", 2, 0)], {lost(0), lost(2)}),
        ([done("guard", 1, 0), done("supervisor", 1, 1)], {lost(1)}),
        ([done("pause", 0, 0), done("cut", 1, 5)], {FINISHED, lost(0), lost(1)}),
        ([done("pause", 1, 0), done("cut", 2, 5)], {FINISHED}),
    ],
)
def test_the_first_effect_is_how_a_run_ends(dones: list[Done], right: set[Outcome]) -> None:
    assert invariants.allowed(dones) == right


@pytest.mark.parametrize(
    ("dones", "wrong"),
    [
        ([done("agent", 1, 0, hit=False)], "+0.00s:agent@node2"),
        ([done("pause", 1, 0), done("guard", 1, 1, hit=False)], "+0.00s:guard@node2"),
        ([done("rank", 1, 0), done("guard", 1, 1, hit=False)], ""),
        ([done("controller", 0, 0), done("sessions", 1, 1, hit=False)], ""),
        ([done("pause", 0, 0), done("cut", 1, 5), done("rank", 1, 8, hit=False)], ""),
    ],
)
def test_a_fault_has_a_victim_while_the_run_lives(dones: list[Done], wrong: str) -> None:
    found = invariants.missed(dones)
    assert bool(found) == bool(wrong)
    assert wrong in "".join(found)


@pytest.mark.parametrize(
    ("code", "by", "state", "right"),
    [
        (0, "job", "finished", True),
        (137, "job", "failed", True),
        (125, "start", None, True),
        (130, "stop", "stopped", True),
        (0, "job", "failed", False),
        (1, "lost", "lost", False),
        (125, "busy", "stopped", False),
        (125, None, None, False),
    ],
)
def test_a_launch_ends_with_a_code_that_fits(
    code: int, by: str | None, state: str | None, *, right: bool
) -> None:
    ended = {"exit_code": code, "ended_by": by, "state": state}
    assert (not invariants.wrong_end(ended)) == right


def test_stderr_has_no_traceback_and_a_run_folder_no_other_files() -> None:
    assert not invariants.wrong_words("logs", "warning: node1: lost\n")
    assert invariants.wrong_words("logs", "Traceback (most recent call last):\n")
    assert not invariants.wrong_files(
        "node1", ["agent.py", "samples.jsonl", "ranks/0.log", "ranks/0.times"]
    )
    assert invariants.wrong_files("node1", ["supervisor.json.new"])
    half = ["supervisor.json.new", "supervisor.json.f673e5b68793.new"]
    assert not invariants.wrong_files("node1", half, lost_power=True)
    assert invariants.wrong_files("node1", ["other.f673e5b68793.new"], lost_power=True)
