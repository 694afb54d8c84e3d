"""A run's history: the runs that it resumes, and which checkpoints are of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clusterctl.model.checkpoint import NodeCheckpoint
from clusterctl.model.from_json import from_json
from clusterctl.model.node_run import Resumed
from clusterctl.verbs.runs.history import history_of, unrecorded
from clusterctl.verbs.runs.records import RunRecord
from tests.verbs.hostile import candidate
from tests.verbs.run_answers import CLUSTER

A = RunRecord(run="a", began=1.0, cluster=CLUSTER, plan={"world_size": 2})
B = RunRecord(
    run="b", began=2.0, cluster=CLUSTER,
    resumed=Resumed(run="a", checkpoint="/w/out/step-30", step=30),
)  # fmt: skip
C = RunRecord(
    run="c", began=3.0, cluster=CLUSTER,
    resumed=Resumed(run="b", checkpoint="out/old.pt"),
)  # fmt: skip
RECORDS = {record.run: record for record in (A, B, C)}


def one(run: str, step: int | None = None, path: str = "/w/out/x", **more: Any) -> NodeCheckpoint:
    value: NodeCheckpoint = from_json(
        NodeCheckpoint, {**candidate(), "run": run, "step": step, "path": path, **more}, "one"
    )
    return value


def test_the_chain_is_followed_to_its_first_run() -> None:
    history = history_of(C, RECORDS.get)
    assert [(run.run, run.began) for run in history.runs] == [("c", 3.0), ("b", 2.0), ("a", 1.0)]
    assert history.runs[2].world_size == 2


def test_a_run_whose_record_is_deleted_is_still_an_ancestor() -> None:
    history = history_of(C, {"c": C}.get)
    assert [(run.run, run.began) for run in history.runs] == [("c", 3.0), ("b", None)]


def test_a_record_that_leads_back_to_itself_ends_the_chain() -> None:
    loop = replace(A, resumed=Resumed(run="b"))
    assert len(history_of(B, {"a": loop, "b": B}.get).runs) == 2


def test_checkpoints_of_the_chain_are_of_the_history() -> None:
    history = history_of(C, RECORDS.get)
    assert [history.objection(one(run, 20)) for run in "abc"] == ["", "", ""]
    assert (
        history.objection(one("z", older=True, recorded=True))
        == "it was written before c began (z wrote it)"
    )
    assert history.objection(one("z")) == "c did not write it (z ran then)"
    assert (
        history.objection(one("", beside=["c", "z"]))
        == "c and z ran at that time, and nothing says which wrote it"
    )
    assert history.objection(one("", older=True)) == "it was written before c began"
    assert history.objection(one("")) == "c did not write it"


def test_what_an_ancestor_wrote_after_the_step_that_was_taken_is_another_history() -> None:
    history = history_of(B, RECORDS.get)
    assert history.objection(one("a", 30)) == ""
    assert history.objection(one("a", 60)) == "it is of a, which was resumed from step 30"
    assert history.objection(one("b", 60)) == ""
    again = replace(C, resumed=Resumed(run="b", checkpoint="/w/out/step-20", step=20))
    earlier = history_of(again, RECORDS.get)
    assert earlier.objection(one("a", 25)) == "it is of a, which was resumed from step 20"


def test_what_a_run_was_resumed_from_is_of_its_history_whoever_wrote_it() -> None:
    history = history_of(C, RECORDS.get)
    assert history.objection(one("", 90, "/w/out/old.pt")) == ""
    assert history.objection(one("", 90, "/w/out/older.pt")) != ""
    assert unrecorded("x").objection(one("x")) == ""
