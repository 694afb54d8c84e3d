"""What happened in a run, in words, from the events of its nodes."""

from __future__ import annotations

from typing import Any

from clusterctl.verbs.compare.timeline import attempts_began, paused_seconds, timeline
from clusterctl.verbs.quarantine.entries import Entry
from tests.verbs.compare.stories import story


def event(kind: str, time: float, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "time": time, **more}


EVENTS = {
    "a": [
        event("supervisor-up", 1001.0),
        event("rank-started", 1002.0, rank=0),
        event("peer-bad-end", 1010.0, peer="b", message="rank 1 exited"),
        event("rank-ended", 1011.0, rank=0, exit_code=143, ordered=True),
        event("end", 1012.0, state="failed", reason="b failed"),
        event("again", 1012.5, attempt=2, of=4, checkpoint="step-5", why="exit 1", without=["c"]),
        event("supervisor-up", 1020.0, attempt=2),
        event("stop-ordered", 1030.0, message="stopped by ada on desk"),
    ],
    "b": [
        event("clock", 1103.0, offset_s=100.0, error_s=0.1),
        event("supervisor-up", 1101.5, attempt=1),
        event("rank-started", 1102.0, rank=1),
        event("rank-ended", 1109.0, rank=1, exit_code=1, signal=None),
    ],
}


def test_who_did_what_when() -> None:
    record = story(by="ada on desk").record
    assert record
    entry = Entry(cluster="lab", node="b", host="b", reason="ECC", run=record.run, since=1040.0,
                  until=9000.0)  # fmt: skip
    other = Entry(cluster="lab", node="a", host="a", reason="x", run="r", since=1.0, until=2.0)
    told = [(one.time, one.nodes, one.what, one.by)
            for one in timeline(record, EVENTS, [entry, other])]  # fmt: skip
    assert told == [
        (1000.0, (), "launched on 2 nodes", "ada on desk"),
        (1001.0, ("a", "b"), "the supervisor started", ""),
        (1002.0, ("a", "b"), "ranks started", ""),
        (1009.0, ("b",), "rank 1 exited with 1", ""),
        (1010.0, ("a",), "the run fails on b: rank 1 exited", ""),
        (1012.0, ("a",), "failed: b failed", ""),
        (1012.5, ("a",), "attempt 2 of 4 follows, from step-5, without c: exit 1", ""),
        (1020.0, ("a",), "attempt 2 begins", ""),
        (1030.0, ("a",), "stop: stopped by ada on desk", "ada on desk"),
        (1040.0, ("b",), "put into quarantine: ECC", ""),
    ]
    assert attempts_began(EVENTS) == {1: 1001.0, 2: 1020.0}
    assert paused_seconds(EVENTS) == 8.0


def test_an_old_record_tells_the_host_alone() -> None:
    assert timeline(story().record, {})[0].by == "unknown user on desk"


def test_hostile_events_are_only_text() -> None:
    kinds = ("end", "again", "hung", "straggler", "rank-ended", "stop-ordered", "supervisor-up")
    evil = [
        {"kind": kind, "time": bad, "reason": "\x1b[2J" + "x" * 9000, "message": bad,
         "attempt": bad, "without": bad, "quiet_s": bad, "rank": bad}
        for kind in kinds
        for bad in (None, "x", 1e300, [1], {"a": "\x1b]0;t\x07"}, True)
    ]  # fmt: skip
    told = timeline(None, {"a": evil})
    assert told
    assert all("\x1b" not in one.what and len(one.what) <= 300 for one in told)
