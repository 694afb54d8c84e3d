"""What supervisors tell about the next attempt has bounds, and a path is no option."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterctl.node.peer_link.fields import MessageError
from clusterctl.node.peer_link.restart_messages import (
    AFTER_BYTES,
    fit_after,
    parse_after,
    parse_again,
)
from clusterctl.wire import to_json

AGAIN: dict[str, Any] = {
    "attempt": 2, "checkpoint": "/c/4", "step": 4, "wait_s": 5.0, "why": "w", "go": False,
    "without": ["n1"], "joined": [{"node": "n4", "address": "10.0.0.4", "procs": 8}],
}  # fmt: skip
FAILURE: dict[str, Any] = {
    "at": 9.0, "rank": 1, "exit_code": 1, "signal": None, "oom": False, "lines": ["a"],
}  # fmt: skip
AFTER: dict[str, Any] = {
    "failures": [FAILURE],
    "stuck": True,
    "blame": "rank 1 (pid 7) waits for a disk",
    "step": 4,
    "sight": {"workdir": "/w", "checkpoints": [{"name": "c", "files": {"f": "h"}}]},
    "check": {"clock": "", "xid": None},
    "unreached": ["n3"],
}


def test_what_a_supervisor_tells_is_read_as_it_was_told() -> None:
    assert parse_after(AFTER) == AFTER
    assert parse_again(AGAIN) == AGAIN
    assert parse_again({**AGAIN, "start": {}, "argv": ["rm"]}) == AGAIN


@pytest.mark.parametrize(
    "change",
    [
        {"attempt": -1}, {"attempt": 1e9}, {"attempt": True}, {"attempt": 10**9},
        {"checkpoint": "--output=/etc"}, {"checkpoint": ""}, {"checkpoint": "a\0b"},
        {"checkpoint": "x" * 5000}, {"checkpoint": 3}, {"step": "4"}, {"wait_s": float("nan")},
        {"wait_s": None}, {"why": "x" * 2000}, {"why": None},
        {"joined": [{"node": "n4", "address": "a;b", "procs": 8}]}, {"joined": [{}] * 65},
        {"joined": [{"node": "n4", "address": "10.0.0.4", "procs": 0}]},
        {"without": ["n"] * 65}, {"without": [3]}, {"without": ["n" * 256]},
    ],
)  # fmt: skip
def test_what_cannot_be_the_next_attempt_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(MessageError):
        parse_again({**AGAIN, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"failures": [FAILURE] * 5}, {"failures": None}, {"failures": [3]}, {"sight": []},
        {"failures": [{**FAILURE, "lines": ["x" * 301]}]},
        {"failures": [{**FAILURE, "lines": ["x"] * 21}]},
        {"failures": [{**FAILURE, "at": None}]}, {"failures": [{**FAILURE, "rank": "1"}]},
        {"check": {str(n): "" for n in range(33)}}, {"check": {"a": 3}}, {"check": None},
        {"unreached": ["n"] * 65}, {"unreached": [3]},
    ],
)  # fmt: skip
def test_what_cannot_be_after_an_attempt_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(MessageError):
        parse_after({**AFTER, **change})


def test_half_a_character_is_replaced() -> None:
    told = parse_after({**AFTER, "failures": [{**FAILURE, "lines": ["\ud83d"]}]})
    assert told["failures"][0]["lines"] == ["?"]


def test_what_is_too_long_for_a_line_is_shortened_and_keeps_the_newest_checkpoint() -> None:
    files = {f"file-{n}": "0" * 64 for n in range(300)}
    checkpoints = [{"name": f"checkpoint-{n}", "files": files} for n in range(8)]
    lines = ["\u2588" * 300] * 20
    long = {
        **AFTER,
        "failures": [{**FAILURE, "lines": lines}] * 4,
        "sight": {"workdir": "/w", "checkpoints": checkpoints},
    }
    told = fit_after(long)
    assert len(json.dumps(told)) <= AFTER_BYTES + 4096
    assert [one["name"] for one in told["sight"]["checkpoints"]] == [
        f"checkpoint-{n}" for n in range(8)
    ]
    assert all(one["files"] == {} for one in told["sight"]["checkpoints"])
    assert fit_after(AFTER) == AFTER


def test_lines_that_are_long_as_json_are_left_out_before_the_rest() -> None:
    lines = ["\N{ROCKET}" * 300] * 5
    told = fit_after({**AFTER, "failures": [{**FAILURE, "lines": lines}] * 4})
    assert len(to_json(told)) <= AFTER_BYTES
    assert [one["lines"] for one in told["failures"]] == [[]] * 4
    assert parse_after(told)["failures"][0]["exit_code"] == 1
