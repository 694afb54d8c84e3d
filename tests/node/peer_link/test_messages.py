"""An ending that a peer reports is fit to be acted on, or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from clusterctl.node.peer_link.fields import MessageError
from clusterctl.node.peer_link.messages import (
    parse_ending,
    parse_hung,
    parse_life,
    parse_over,
    parse_slow,
    parse_time,
)
from tests.damage import ANY_JSON, damaged_json

ENDING = {
    "by": "stop", "reason": "why", "node": "w0", "exit_code": 1, "rank": None,
    "killed_by": None, "lost": None, "grace": 5.0,
}  # fmt: skip


def test_an_ending_is_passed_on_without_what_is_not_its_to_say() -> None:
    assert parse_ending({"ending": ENDING}) == ENDING
    # Of an earlier version, or of a node that would have others make a file.
    more = {"signal": None, "file": "/etc/nologin", "state": "x", "run": "another"}
    assert parse_ending({"ending": {**ENDING, **more}}) == ENDING


@pytest.mark.parametrize(
    "change",
    [{"by": "x" * 256}, {"node": "x" * 256}, {"lost": "x" * 256}, {"rank": 2**40},
     {"rank": -(2**40)}, {"exit_code": 10**400}, {"killed_by": 2**40}, {"exit_code": 1.5}],
)  # fmt: skip
def test_a_field_that_is_too_large_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(MessageError, match=next(iter(change))):
        parse_ending({"ending": {**ENDING, **change}})


def test_a_long_reason_is_cut_and_a_long_grace_is_a_day() -> None:
    ending = parse_ending({"ending": {**ENDING, "reason": "x" * 60000, "grace": 99999999}})
    assert (len(ending["reason"]), ending["grace"]) == (4096, 86400)


@pytest.mark.parametrize("value", [None, "1", [], -1, 1e300, float("nan"), 10**400])
def test_a_time_that_is_none_is_refused(value: object) -> None:
    assert parse_time({"ping": 5}, "ping") == 5.0
    with pytest.raises(MessageError, match="ping of a message"):
        parse_time({"ping": value}, "ping")


@pytest.mark.parametrize("grace", [float("nan"), -1])
def test_a_grace_that_no_timer_can_wait_is_refused(grace: float) -> None:
    with pytest.raises(ValueError, match="grace of an ending"):
        parse_ending({"ending": {**ENDING, "grace": grace}})


@given(ANY_JSON)
def test_a_run_is_over_in_a_state_that_we_know_or_the_message_is_refused(value: Any) -> None:
    assert parse_over({"over": "stopped"}) == "stopped"
    with pytest.raises(ValueError, match="state of a run that is over"):
        parse_over({"over": value})


@given(damaged_json(ENDING) | ANY_JSON)
def test_anything_else_is_refused(value: Any) -> None:
    try:
        ending = parse_ending({"ending": value})
    except ValueError:
        return
    assert all(isinstance(ending[key], str) for key in ("by", "reason", "node"))
    assert 0 <= (ending.get("grace") or 0.0) <= 86400
    assert set(ending) <= set(ENDING)
    json.dumps(ending)


@given(damaged_json({"hung": {"hung": True, "quiet_s": 300.0, "alarm": 1}}))
def test_a_judgement_is_one_or_is_refused(message: Any) -> None:
    if not isinstance(message, dict) or "hung" not in message:
        return
    try:
        judgement = parse_hung(message)
    except ValueError:
        return
    assert judgement["hung"] in (True, False)
    assert 0 <= judgement["quiet_s"] < 1e11
    assert 0 <= judgement["alarm"] < 1e11


@given(damaged_json({"ping": 1.0, "quiet": 300.0, "printed": True, "work": [[1, 2.0, 1, 1, 0, 0]]}))
def test_what_a_worker_tells_of_its_ranks_is_judged_or_refused(message: Any) -> None:
    if not isinstance(message, dict):
        return
    try:
        life = parse_life(message)
    except ValueError:
        return
    assert life["printed"] in (True, False)
    assert all(len(row) == 6 and min(row) >= 0 for row in life.get("work", []))
    assert life.get("quiet") is None or 0 <= life["quiet"] < 1e11


@given(damaged_json({"slow": [{"rank": 3, "lost": 0.4, "sure": True}]}))
def test_slow_ranks_are_read_or_refused(message: object) -> None:
    if not isinstance(message, dict) or "slow" not in message:
        return
    try:
        judged = parse_slow(message)
    except MessageError:
        return
    assert all(one["rank"] >= 0 and one["lost"] >= 0 for one in judged)
    assert all(one["sure"] in (True, False) for one in judged)
