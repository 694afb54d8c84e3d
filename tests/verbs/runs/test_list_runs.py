"""`runs` says of a run what `status` says, also if several faults ended it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from clusterctl.model.run_record import RunEnd
from clusterctl.node.run.operations.node_run import CLEARED, CLEARED_UP
from clusterctl.verbs.launch.run_result import remember_seen
from clusterctl.verbs.quarantine.blame import blamed
from clusterctl.verbs.runs import list_runs
from clusterctl.verbs.runs.records import Records, RunRecord
from clusterctl.verbs.status import status
from clusterctl.wire import Message
from tests.fake_pool import FakePool
from tests.verbs.run_answers import CLUSTER, RUN, ended, finish, happened, part


def over(by: str, state: str = "failed") -> dict[str, Any]:
    return {"state": state, "by": by, "exit_code": None, "reason": "so", "time": 9.0}


def answers(given: dict[str, Any], *events: Message) -> dict[str, list[Message]]:
    return {
        "runs": [Message({"runs": [given]})],
        "status": [Message({"node": given})],
        "tail": [*events, ended(given["node"], "failed", end=given["end"])],
    }


LOST = happened(0, "peer-lost", peer="b", since=1.0)
KILLED = happened(0, "rank-ended", rank=1, exit_code=137, signal=9)
TOLD = happened(0, "peer-bad-end", peer="b", by="rank", rank=1, exit_code=137, signal=9)
BOTH = {
    "a": answers(part("a", "failed", end=over("rank")), LOST),
    "b": answers(part("b", "failed", end=over("rank")), KILLED),
}
DEAD = {
    "a": answers(part("a", "lost", end=over("lost", "lost")), LOST),
    "b": answers(part("b", "failed", end=over("supervisor"))),
}
LATER = happened(50, "peer-lost", peer="b", since=2000.0)
FINISHED = {"a": answers(part("a", "finished"), LOST)}
"""Its ranks had ended well when it lost the other node."""
FIRST_KILLED = {"a": answers(part("a", "lost", end=over("lost", "lost")), TOLD, LATER)}


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize(
    ("nodes", "state", "by"),
    [
        (BOTH, "lost", "lost"),
        (DEAD, "lost", "lost"),
        (FINISHED, "lost", "lost"),
        (FIRST_KILLED, "failed", "job"),
    ],
)
def test_what_ended_a_run_first_decides(
    nodes: dict[str, Any], state: str, by: str, *, recorded: bool, tmp_path: Path
) -> None:
    records = Records(tmp_path)
    if recorded:
        records.write(RunRecord(run=RUN, began=1000.0, cluster=CLUSTER))
    pool = FakePool(CLUSTER, nodes)
    (listed,) = list_runs.runs(pool, records).runs
    _, shown = finish(status, pool, RUN, CLUSTER)
    assert (listed.state, shown.state, shown.ended_by) == (state, state, by)
    if recorded:
        assert listed.ended_by == by


ONE = {
    name: answers(part(name, "failed", end=over(by))) for name, by in (("a", "peer"), ("b", "rank"))
}


def test_a_run_whose_end_is_plain_costs_no_second_question(tmp_path: Path) -> None:
    pool = FakePool(CLUSTER, ONE)
    (listed,) = list_runs.runs(pool, Records(tmp_path)).runs
    assert listed.state == "failed"
    assert {request.op for _, request in pool.requests} == {"runs"}


def test_only_a_run_with_a_record_is_looked_at(tmp_path: Path) -> None:
    seen: list[RunRecord] = []
    pool, records = FakePool(CLUSTER, ONE), Records(tmp_path)
    list_runs.runs(pool, records, see=lambda record, _view: seen.append(record))
    assert seen == []  # a node could have invented it
    records.write(RunRecord(run=RUN, began=1000.0, cluster=CLUSTER))
    list_runs.runs(pool, records, see=lambda record, _view: seen.append(record))
    assert [one.run for one in seen] == [RUN]


def test_an_end_that_was_seen_once_is_known_without_the_nodes(tmp_path: Path) -> None:
    records, record = Records(tmp_path), RunRecord(run=RUN, began=1000.0, cluster=CLUSTER)
    records.write(record)
    end = None
    alone = {"a": ONE["a"], "b": answers(part("b", "running"))}
    for nodes, known in (
        (FIRST_KILLED, None),
        (alone, None),
        (ONE, "failed"),
        (FINISHED, "failed"),
    ):
        pool = FakePool(CLUSTER, nodes)
        list_runs.runs(pool, records, see=partial(remember_seen, records))
        end = records.end(record)
        assert (end and end.state) == known
    end = records.end(record)
    assert end is not None
    assert (end.ended_by, end.ended) == ("job", 9.0)


NO_RUN = Message({"error": {"kind": "no-run", "message": "no part here"}})
UNKNOWN = {"runs": [Message({"runs": []})], "status": [NO_RUN]}


def test_an_end_that_was_remembered_without_its_state_is_unknown() -> None:
    record = RunRecord(run=RUN, began=1000.0, cluster=CLUSTER)
    assert list_runs.recorded_line(record, None, RunEnd(ended=1001.0)).state == "unknown"


@pytest.mark.parametrize("remembered", [None, "unreachable", "finished"])
@pytest.mark.parametrize("dead", ["b", ""])
def test_a_run_that_no_node_tells_of_has_the_same_state(
    remembered: str | None, dead: str, tmp_path: Path
) -> None:
    records = Records(tmp_path)
    record = RunRecord(run=RUN, began=1000.0, cluster=CLUSTER)
    records.write(record)
    if remembered:
        records.write_end(record, {"state": remembered, "ended_by": "unknown"})
    pool = FakePool(CLUSTER, {name: UNKNOWN for name in "ab" if name != dead})
    (listed,) = list_runs.runs(pool, records).runs
    _, shown = finish(status, pool, RUN, CLUSTER)
    shown = replace(shown, remembered=records.end(record))
    gone = "unreachable" if dead else "lost"
    expected = "finished" if remembered == "finished" else gone
    assert (listed.state, shown.state) == (expected, expected)


@pytest.mark.parametrize("remembered", [None, "finished"])
def test_a_run_whose_nodes_have_other_names_now_is_not_lost(
    remembered: str | None, tmp_path: Path
) -> None:
    records = Records(tmp_path)
    record = RunRecord(run=RUN, began=1000.0, cluster=CLUSTER)
    records.write(record)
    if remembered:
        records.write_end(record, {"state": remembered, "ended_by": "job"})
    renamed = CLUSTER.with_nodes(
        tuple(replace(one, name=f"gpu-{one.name}") for one in CLUSTER.nodes)
    )
    pool = FakePool(renamed, {node.name: UNKNOWN for node in renamed.nodes})
    listed = list_runs.runs(pool, records)
    assert [one.state for one in listed] == [remembered or "unreachable"]
    assert [(one.node, one.hint) for one in listed.errors] == (
        [] if remembered else [(name, f"clusterctl status {RUN}") for name in "ab"]
    )


def test_a_rebuilt_run_keeps_the_name_that_its_nodes_tell(tmp_path: Path) -> None:
    records = Records(tmp_path)
    named = {n: answers(part(n, "running", name="sweep", end=None)) for n in "ab"}
    list_runs.runs(FakePool(CLUSTER, named), records, rebuild=True)
    assert records.to_resume("sweep", CLUSTER.name).run == RUN


def test_why_a_run_ended_is_not_told_by_a_node_that_was_left_out_before() -> None:
    out = {"node": "b", "attempt": 2, "why": "b: the node was lost"}
    stopped = {"state": "stopped", "by": "stop", "reason": "stopped by ada", "time": 90.0}
    again = {"attempt": 2, "attempts": 4, "left_out": [out], "end": stopped}
    nodes = {
        "a": {"status": [Message({"node": part("a", "stopped", **again)})]},
        "b": {"status": [Message({"node": part("b", "lost", end=over("lost", "lost"))})]},
    }
    _, view = finish(status, FakePool(CLUSTER, nodes), RUN, CLUSTER)
    assert (view.state, list_runs.reason_of(view, None)) == ("stopped", "stopped by ada")


def test_a_stop_blames_no_node_of_a_run_whose_machines_were_all_rebooted() -> None:
    end = {"state": "lost", "by": "lost", "reason": f"the machine was rebooted{CLEARED_UP}"}
    nodes = {name: answers(part(name, "lost", end={**end, "time": 9.0})) for name in ("a", "b")}
    _, view = finish(status, FakePool(CLUSTER, nodes), RUN, CLUSTER)
    assert (view.state, view.first_cause, blamed(view, "a")) == ("lost", None, ())
    assert list_runs.reason_of(view, None) == "the machine was rebooted; cleared up later"


def test_a_node_that_was_cleared_up_later_does_not_tell_why_the_run_ended() -> None:
    peer = {"state": "failed", "by": "peer", "reason": "a: b has been silent for 15 s", "time": 9.0}
    stopped = {"state": "stopped", "by": "lost", "reason": f"stopped by ada{CLEARED}", "time": 90.0}
    nodes = {
        "a": answers(part("a", "failed", end=peer)),
        "b": answers(part("b", "lost", end=stopped)),
    }
    _, view = finish(status, FakePool(CLUSTER, nodes), RUN, CLUSTER)
    view = replace(view, first_cause=None)  # `runs` asks for no events of an old run
    assert list_runs.reason_of(view, None) == "a: b has been silent for 15 s"
