"""What is read from metrics.jsonl: the steps of one run, each once, and their numbers."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.logs.metrics import quantile, read_metrics


def lines(*records: dict[str, Any] | str) -> bytes:
    return "".join(
        (one if isinstance(one, str) else json.dumps(one)) + "\n" for one in records
    ).encode()


def step(number: int, **more: Any) -> dict[str, Any]:
    return {"kind": "step", "step": number, "time": 1000.0 + number, "loss": 4 - number, **more}


def test_the_numbers_of_a_run() -> None:
    slow_first = [step(n, step_s=9.0 if n == 1 else n / 10, tok_s=100.0 * n) for n in range(1, 22)]
    found = read_metrics(lines(*slow_first, step(21, memory=7), {"step": 20, "eval_loss": 0.5}))

    assert found.step_median_s == pytest.approx(1.1)
    assert found.step_p95_s == pytest.approx(2.0)
    assert found.tokens_per_s == 1150.0
    assert found.memory_bytes == 7
    assert found.curve("eval_loss") == ((20, 0.5),)
    assert found.last_step == 21


def test_steps_that_were_done_again_count_once() -> None:
    first = [step(n) for n in range(1, 6)]
    again = [step(n, loss=-n, time=2000.0 + n) for n in range(3, 5)]
    found = read_metrics(lines(*first, *again))
    assert found.curve("loss") == ((1, 3.0), (2, 2.0), (3, -3.0), (4, -4.0))
    undone = read_metrics(lines(*first, {"step": 5, "eval_loss": 1.0}, *again))
    assert undone.last_step == 4


def test_lines_of_one_step_are_one_step() -> None:
    found = read_metrics(lines(step(1), {"step": 1, "tok_s": 7.0}, step(2), step(2, loss=-2)))
    assert found.curve("loss") == ((1, 3.0), (2, -2.0))
    assert found.curve("tokens_per_s") == ((1, 7.0),)


def test_a_step_that_is_written_again_and_again_costs_no_time() -> None:
    began = time.process_time()
    read_metrics(lines(*({"step": n} for n in range(20_000)), *[{"step": 19_999}] * 20_000))
    assert time.process_time() - began < 3


def test_lines_of_another_run_in_the_same_file_do_not_count() -> None:
    data = lines(step(1, time=990.0), step(2), step(3, time=1020.0))
    assert [one.step for one in read_metrics(data, began=1000.0, ended=1010.0).steps] == [2]


def test_step_times_follow_from_the_clock_if_none_is_recorded() -> None:
    found = read_metrics(lines(*({"step": n, "time": 100.0 + 2 * n} for n in (1, 2, 4, 5))))
    assert found.step_times == (2.0, 2.0)
    assert found.step_median_s == 2.0
    assert found.tokens_per_s is None


def test_a_restart_costs_from_the_last_step_that_counts_to_the_next() -> None:
    before = [step(n) for n in range(1, 5)]
    after = [step(n, time=1104.0 + n - 4) for n in range(5, 9)]
    found = read_metrics(lines(*before, *after), restarts=(1050.0,))
    assert found.lost_seconds == pytest.approx(100.0)
    assert found.step_p95_s == 1.0  # the pause is no step
    assert read_metrics(lines(*before), restarts=(1050.0,)).lost_seconds is None
    assert read_metrics(lines(*before)).lost_seconds == 0


@pytest.mark.parametrize(
    "line",
    [
        "{", "[]", "null", '{"step": "1"}', '{"step": -1}', '{"step": 1.5}', '{"step": 1e400}',
        '{"step": NaN}', "[" * 100_000, '{"step": ' + "9" * 4000 + "}",
    ],
)  # fmt: skip
def test_what_is_no_step_is_skipped(line: str) -> None:
    found = read_metrics(lines(line, step(1, loss=float("nan"), tok_s="x"), step(2)))
    assert [(one.step, one.loss, one.tokens_per_s) for one in found.steps] == [
        (1, None, None), (2, 2.0, None),
    ]  # fmt: skip


def test_numbers_of_which_quotients_overflow_are_skipped() -> None:
    (one,) = read_metrics(lines(step(1, loss=1e308, step_s=5e-324, tok_s=-1e99))).steps
    assert (one.loss, one.seconds, one.tokens_per_s) == (None, 0.0, -1e99)


@pytest.mark.hypothesis
@given(st.binary(max_size=300))
def test_no_bytes_raise(data: bytes) -> None:
    read_metrics(data)


def test_the_quantile_is_a_value_that_was_measured() -> None:
    assert quantile([], 0.5) is None
    assert quantile([3.0], 0.95) == 3.0
    assert quantile([5.0, 1.0, 3.0, 2.0], 0.5) == 2.0
