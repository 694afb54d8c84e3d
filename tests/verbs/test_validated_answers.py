"""A node that answers what is none of ours is named; the others are shown all the same."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.report.console import Screen, make_console
from clusterctl.report.status import show_status
from clusterctl.verbs import logs
from clusterctl.verbs.events import Notice, ignore
from clusterctl.verbs.follow import LogLines, follow
from clusterctl.verbs.launch.run_result import run_result
from clusterctl.verbs.runs import find_run
from clusterctl.verbs.runs.run_log import RunLog
from clusterctl.verbs.status import status
from clusterctl.verbs.stop import stop
from clusterctl.wire import Message
from tests.damage import damaged_json
from tests.fake_pool import FakePool
from tests.verbs.run_answers import CLUSTER, RUN, data, drained, ended, happened, part

EVIL = "\x1b]0;owned\x07\x1b[2J\n[red]"

PARTS: dict[str, object] = {
    "none": None,
    "text": EVIL,
    "no run": {"state": "running"},
    "state": {**part("a"), "state": [1]},
    "ranks": part("a", ranks=None),
    "a rank": part("a", ranks=[{}]),
    "began": part("a", began=EVIL),
    "began never": part("a", began=float("inf")),
    "end": part("a", end=[1]),
    "time of end": part("a", end={"time": EVIL}),
    "supervisor": part("a", supervisor=EVIL),
    "command": part("a", command="abc"),
}


@pytest.mark.parametrize("bad", PARTS.values(), ids=PARTS.keys())
def test_a_part_that_is_none_is_named_and_the_other_nodes_shown(bad: object) -> None:
    a = {"status": [Message({"node": bad})], "runs": [Message({"runs": [bad]})]}
    b = {"status": [Message({"node": part("b")})], "runs": [Message({"runs": [part("b")]})]}
    pool = FakePool(CLUSTER, {"a": a, "b": b})
    view = status(pool, RUN, CLUSTER, emit=ignore)
    assert [node.state for node in view.nodes] == ["unreachable", "running"]
    assert "not a clusterctl message" in str(view.nodes[0].error)
    stream = io.StringIO()
    show_status(Screen(make_console(stream), make_console(stream)), view)
    assert "\x1b" not in stream.getvalue()
    found = find_run.discover(pool)
    assert [error.node for error in found.errors] == ["a"]
    assert [one.run for one in found.runs] == [RUN]


@pytest.mark.parametrize("runs", [None, "abc", 5])
def test_a_list_of_runs_that_is_none_is_named(runs: object) -> None:
    a, b = [Message({"runs": runs})], [Message({"runs": [part("b")]})]
    found = find_run.discover(FakePool(CLUSTER, {"a": {"runs": a}, "b": {"runs": b}}))
    assert [error.node for error in found.errors] == ["a"]


HEADS: dict[str, Message] = {
    "offset": Message({"data": "ranks/0.log", "rank": 0, "offset": EVIL}, b"x\n"),
    "offset before": data(0, -5, b"x\n"),
    "rank": Message({"data": "ranks/0.log", "rank": [1], "offset": 0}, b"x\n"),
    "time": data(0, 0, b"x\n", time=EVIL),
    "time never": data(0, 0, b"x\n", time=float("nan")),
    "event": Message({"event": EVIL, "file": "events.jsonl", "offset": 0, "next": 5}),
    "signal": happened(0, "rank-ended", signal=EVIL),
    "signal that ends well": happened(0, "rank-ended", signal=128),
    "exit code": happened(0, "rank-ended", rank=0, exit_code=EVIL),
    "clock": happened(0, "clock", offset_s=EVIL),
}


@pytest.mark.parametrize("bad", HEADS.values(), ids=HEADS.keys())
def test_a_piece_of_a_log_that_is_none_is_passed_over(bad: Message) -> None:
    tails: dict[str, Any] = {
        "a": {"tail": [bad, data(0, 0, b"good\n"), ended("a")]},
        "b": {"tail": [ended("b")]},
    }
    for read in (logs.read_logs, follow):
        seen, _ = drained(read, FakePool(CLUSTER, tails), RunLog(RUN, CLUSTER))
        said = [event for event in seen if isinstance(event, Notice)]
        lines = [line for event in seen if isinstance(event, LogLines) for line in event.lines]
        assert ["not a clusterctl message" in one.text for one in said] == [True]
        assert [line.line.text for line in lines] == ["good"]


@pytest.mark.parametrize("bad", HEADS.values(), ids=HEADS.keys())
def test_a_piece_of_a_log_that_is_none_is_not_collected(bad: Message, tmp_path: Path) -> None:
    tails: dict[str, Any] = {
        "a": {"tail": [bad, ended("a")]},
        "b": {"tail": [data(1, 0, b"good\n"), ended("b")]},
    }
    pool, log = FakePool(CLUSTER, tails), RunLog(RUN, CLUSTER)
    errors = logs.collect(pool, log, tmp_path, emit=ignore)
    assert [error.node for error in errors.values()] == ["a"]
    assert "not a clusterctl message" in errors["a"].message
    assert (tmp_path / "b/ranks/1.log").read_bytes() == b"good\n"


@pytest.mark.parametrize("end", [Message({"node": {"state": 5}}), Message({})])
def test_a_part_without_an_end_of_ours_is_not_taken_for_a_good_one(end: Message) -> None:
    tails: dict[str, Any] = {"a": {"tail": [end]}, "b": {"tail": [ended("b")]}}
    _, read = drained(logs.read_logs, FakePool(CLUSTER, tails), RunLog(RUN, CLUSTER))
    log = RunLog(RUN, CLUSTER)
    _, followed = drained(follow, FakePool(CLUSTER, tails), log)
    for errors in (read, followed):
        assert [error.node for error in errors.values()] == ["a"]
        assert "not a clusterctl message" in errors["a"].message
    judged = run_result(log, followed, None)
    assert (judged.exit_code, judged.ended_by) == (125, "unknown")


@pytest.mark.parametrize("bad", [{"left": "abc"}, {"left": [5]}, {"left": [], "port_holder": EVIL}])
def test_a_proof_that_is_none_proves_nothing(bad: dict[str, Any]) -> None:
    gone = Message({"gone": True, "left": [], "port_free": True})
    pool = FakePool(
        CLUSTER, {"a": {"stop": [Message({"gone": True, **bad})]}, "b": {"stop": [gone]}}
    )
    result = stop(pool, RUN, CLUSTER, emit=ignore)
    assert [node.gone for node in result.nodes] == [False, True]
    assert result.exit_code == 3


def told(kind: str, **more: Any) -> Message:
    """Return an event that does not say where it stands: each of them is taken."""
    return Message({"event": {"kind": kind, **more}})


TOLD = (
    data(0, 0, b"ValueError: no\n", time=5.0),
    told("rank-ended", rank=0, exit_code=None, signal=9, time=5.0, oom_kills=1),
    told("launcher-ended", exit_code=1, time=6.0),
    told("peer-lost", peer="b", since=4.0, time=7.0, message="gone"),
    told("supervisor-died", message="killed by signal 9", time=8.0),
    told("clock", offset_s=1.0, error_s=0.1),
    Message({"pieces": [["ranks/0.log", 0, 15, 17, 6.0, 0]]}, b"x\n"),
    ended("a", "failed"),
)


ODD = st.sampled_from([-1, 0, 128, 256, 2**63, 10**400, 0.5, EVIL, [1]])


@st.composite
def changed(draw: st.DrawFn) -> dict[str, Any]:
    """Return an end of which one number is another."""
    event = draw(st.sampled_from([one.head["event"] for one in TOLD[1:4]]))
    key = draw(st.sampled_from(["exit_code", "signal", "time", "since"]))
    return {"event": {**event, key: draw(ODD)}}


HEADS_TOLD = changed() | st.sampled_from(TOLD).flatmap(lambda one: damaged_json(one.head))


@given(st.lists(HEADS_TOLD, max_size=8))
def test_whatever_a_node_tells_of_its_run_a_first_cause_is_found_or_none(heads: list[Any]) -> None:
    log = RunLog(RUN, CLUSTER)
    strange = [Message(head, b"x\n") for head in heads if isinstance(head, dict)]
    for messages in (strange, TOLD):
        for message in messages:
            list(log.take("a", message, now=0.0))
        cause = log.first_cause()
        assert cause is not None or messages is strange
        # What a process exits with is cut to a byte: of a bad end nothing else may be left.
        assert cause is None or 0 < abs(cause.exit_status) < 256
