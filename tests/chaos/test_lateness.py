"""A machine is judged by how late it is."""

from __future__ import annotations

import time

import pytest

from tests.chaos.lateness import FACTOR, IDLE, Meter, lateness, slack


def test_an_idle_machine_is_judged_strictly() -> None:
    assert slack(0.0) == IDLE
    assert slack(0.2) <= 3.0


def test_a_late_machine_gets_a_multiple_of_its_lateness() -> None:
    assert slack(5.0) - slack(0.0) == FACTOR * 5.0


@pytest.mark.parametrize(
    ("passed", "slept", "computed", "late"),
    [(1.0, 0.5, 0.5, 0.0), (1.0, 0.5, 0.25, 0.25), (1.0, 1.0, 0.1, 0.0)],
)
def test_late_is_what_was_neither_sleep_nor_work(
    passed: float, slept: float, computed: float, late: float
) -> None:
    assert lateness(passed, slept, computed) == late


def test_a_meter_adds_up_laps_and_leaves_out_what_is_skipped() -> None:
    meter = Meter()
    time.sleep(0.05)
    meter.skip()
    skipped = meter.late
    time.sleep(0.05)
    meter.lap(0.0)
    assert skipped == 0.0
    assert meter.late >= 0.04
