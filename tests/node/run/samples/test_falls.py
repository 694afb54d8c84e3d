"""A fall of use is reported once it lasts; steady or bursty use is no fall."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from clusterctl.node.run.samples.falls import find_falls
from clusterctl.node.run.samples.row import thinned
from tests.node.run.samples.rows import BEGAN, row

HOUR = 720
"""Samples."""


def judged(*columns: Sequence[float]) -> object:
    return find_falls([row(n, percent=each) for n, each in enumerate(zip(*columns, strict=True))])


def test_a_gpu_that_fell_is_named_with_when_and_how_far() -> None:
    steady = [97.0] * HOUR
    fell = [*steady[:-120], *[12.0] * 120]
    told = {"what": "GPU", "numbers": [1], "since": BEGAN + 3000, "before": 97, "now": 12}
    assert judged(steady, fell, steady) == told
    rows = [row(n, percent=[each]) for n, each in enumerate([97.0] * HOUR + [12.0] * HOUR * 12)]
    coarse = find_falls(thinned(rows, rows[-1].time, 1 / 720))
    assert coarse is not None
    assert abs(coarse["since"] - BEGAN - 3600) < 60, "also half a day later, to the minute"


def test_ranks_on_cpus_are_judged_where_no_gpu_is() -> None:
    rows = [row(n, cpu=[100, 100 if n < 200 else 3]) for n in range(300)]
    told = find_falls(rows)
    assert told is not None
    assert (told["what"], told["numbers"], told["since"]) == ("rank", [1], BEGAN + 1000)


def test_what_fell_and_rose_again_is_over() -> None:
    assert judged([97.0] * HOUR + [0.0] * 90 + [97.0] * 3) is None


def test_a_gpu_of_another_run_is_not_this_runs() -> None:
    rows = [row(n, percent=[97.0, 97.0 if n < HOUR else 0.0]) for n in range(2 * HOUR)]
    others = [each._replace(gpus=(each.gpus[0], each.gpus[1]._replace(rank=None))) for each in rows]
    assert find_falls(others) is None
    hidden = [
        each._replace(gpus=tuple(one._replace(rank=None) for one in each.gpus)) for each in rows
    ]
    assert find_falls(hidden) == find_falls(rows) is not None, "a container hides the ranks"


def bursts(low: int, high: int, seed: int) -> list[float]:
    """Return a job that rests for about `low` samples after about `high` of work."""
    draw = random.Random(seed)
    found: list[float] = []
    while len(found) < 3 * HOUR:
        found += [
            draw.uniform(80, 100) for _ in range(max(1, round(high * draw.uniform(0.7, 1.3))))
        ]
        found += [draw.uniform(0, 9) for _ in range(max(1, round(low * draw.uniform(0.7, 1.3))))]
    return found


@pytest.mark.parametrize(
    "column",
    [
        [97.0] * HOUR,
        [0.0] * HOUR,
        [1.0] * HOUR + [97.0] * HOUR,
        [100.0, 0.0] * HOUR,
        [97.0] * HOUR + [12.0] * 50,
        [97.0] * 30 + [3.0] * HOUR,
        [15.0] * HOUR + [0.0] * HOUR,
        [97 - n / HOUR * 40 for n in range(HOUR)],
    ],
    ids=["steady", "idle", "loads", "alternates", "saves", "short", "rests", "slows"],
)
def test_no_false_alarm(column: list[float]) -> None:
    assert all(judged(column[:end]) is None for end in range(1, len(column), 7))


def test_no_false_alarm_on_bursts() -> None:
    for seed, (low, high) in enumerate(((2, 3), (10, 10), (40, 20), (50, 200))):
        column = bursts(low, high, seed)
        assert not any(judged(column[:end]) for end in range(1, len(column), 37)), (low, high)
