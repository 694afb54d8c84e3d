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


def resumed(run: str, path: str, step: int | None, before: RunRecord) -> RunRecord:
    came = Resumed(run=before.run, checkpoint=path, step=step)
    return RunRecord(run=run, began=before.began + 1, cluster=CLUSTER, resumed=came)


def test_what_a_rewind_left_does_not_count_though_a_run_before_it_was_resumed_from_it() -> None:
    b = resumed("b", "/w/out/step16", 16, A)
    c = resumed("c", "/w/out/step5", 5, b)
    history = history_of(c, {"a": A, "b": b}.get)
    assert history.objection(one("a", 5, "/w/out/step5")) == ""
    left = "it is of a, which was resumed from step 5"
    assert history.objection(one("a", 16, "/w/out/step16")) == left
    assert history.objection(one("c", 16, "/w/out/step16")) == ""  # written again
    d = resumed("d", "/w/out/step5", 5, c)
    again = history_of(d, {"a": A, "b": b, "c": c}.get)
    left = "it is of c, which was resumed from step 5"
    assert again.objection(one("c", 16, "/w/out/step16")) == left


def test_a_rewind_to_an_older_runs_checkpoint_leaves_the_runs_between() -> None:
    """With a folder for each run, the path tells whose it is; in one folder, who wrote it."""
    b = resumed("b-1", "/w/out/a-1/ep4.pt", 20, replace(A, run="a-1"))
    c = resumed("c-1", "/w/out/a-1/ep4.pt", 20, b)
    d = resumed("d-1", "/w/out/a-1/ep6.pt", 30, c)
    history = history_of(d, {"a-1": replace(A, run="a-1"), "b-1": b, "c-1": c}.get)
    left = "it is of c-1, which d-1 left: it was resumed from ep6.pt"
    assert history.objection(one("c-1", 30, "/w/out/c-1/ep6.pt")) == left
    assert history.objection(one("c-1", 25, "/w/out/c-1/ep5.pt")) == left
    told = {
        step: history.objection(one("a-1", step, f"/w/out/a-1/ep{step}.pt")) for step in (30, 35)
    }
    assert told == {30: "", 35: "it is of a-1, which was resumed from step 30"}
    assert history.objection(one("d-1", 35, "/w/out/d-1/ep7.pt")) == ""

    c = resumed("c", "/w/out/s20", 20, A)
    d = resumed("d", "/w/out/s30", 30, c)
    history = history_of(d, {"a": A, "c": c}.get)
    order = [one("a", 30, "/w/out/s30"), one("c", 25, "/w/out/s25"), one("a", 20, "/w/out/s20")]
    left = "it is of c, which d left: it was resumed from s30"
    assert [history.objection(each, order) for each in order] == ["", left, ""]
    order[0] = one("c", 30, "/w/out/s30")  # written again
    assert [history.objection(each, order) for each in order] == ["", "", ""]


def test_without_steps_the_order_tells_what_a_rewind_left() -> None:
    b = resumed("b", "/w/out/epoch1.pt", None, A)
    history = history_of(b, {"a": A}.get)
    order = [one("a", path=f"/w/out/epoch{n}.pt", name=f"epoch{n}.pt", epoch=n) for n in (3, 2, 1)]
    told = [history.objection(each, order) for each in order]
    assert told == ["it is of a, which was resumed from epoch1.pt"] * 2 + [""]
    # A file that the resumed run wrote again, too, tells nothing of where it began.
    last = one("b", path="/w/out/epoch1.pt", name="epoch1.pt", epoch=1)
    assert history.objection(order[1], [*order[:2], last]) == ""


def test_what_a_run_was_resumed_from_is_of_its_history_whoever_wrote_it() -> None:
    history = history_of(C, RECORDS.get)
    assert history.objection(one("", 90, "/w/out/old.pt", older=True)) == ""
    assert history.objection(one("z", 90, "/w/out/old.pt", older=True)) == ""
    # Another run has written to it since.
    told = history.objection(one("z", 90, "/w/out/old.pt"))
    assert told == "c did not write it (z ran then)"
    assert history.objection(one("", 90, "/w/out/older.pt")) != ""
    assert unrecorded("x").objection(one("x")) == ""
