"""An ending that a peer reports is fit to be acted on, or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from clusterctl.node.peer_link.messages import parse_ending, parse_over
from clusterctl.node.run.processes import signal_number
from tests.damage import ANY_JSON, damaged_json

ENDING = {
    "by": "stop", "reason": "why", "node": "w0", "exit_code": 1, "rank": None,
    "grace": 5.0, "signal": "INT", "file": None, "killed_by": None, "lost": None,
}  # fmt: skip


def test_an_ending_is_passed_on_as_it_is() -> None:
    assert parse_ending({"ending": ENDING}) == ENDING


@pytest.mark.parametrize("grace", [float("nan"), float("inf"), -1, 10**400])
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
    assert signal_number(ending.get("signal") or "TERM") > 0
    assert 0 <= ending.get("grace", 0.0) < 10**9
    json.dumps(ending)
