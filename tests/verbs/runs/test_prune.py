"""Old runs are deleted, and none that lives or may live."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from clusterctl.errors import NodeError
from clusterctl.model.node_run import Resumed
from clusterctl.transport.interface import Reply, Request
from clusterctl.verbs.runs.prune import NAMED, RECENT, Kept, Pruned, prunable, prune
from clusterctl.verbs.runs.records import Records, RunRecord
from clusterctl.wire import Message
from tests.fake_pool import FakePool
from tests.verbs.run_answers import CLUSTER, part

ID = "lab-20260101t000000-{}"
DEAD = Reply.failed("b", NodeError("timeout", "connect"))


def over(node: str, run: str, began: float, state: str = "finished") -> dict[str, Any]:
    return part(node, state, run=ID.format(run), began=began)


def pruned(
    records: Records, keep: int, *, every: bool = False, **of: Any
) -> tuple[Pruned, list[str]]:
    """Prune a cluster whose nodes know these runs; return with the runs that nodes deleted."""
    asked: list[str] = []

    def delete(request: Request) -> list[Message]:
        runs = request.args["runs"]
        assert isinstance(runs, list)
        asked.extend(runs)
        return [Message({"removed": runs, "kept": {}})]

    answers = {
        name: {"runs": given if isinstance(given, Reply) else [Message({"runs": given})]}
        | {"prune": delete}
        for name, given in of.items()
    }
    pool = FakePool(CLUSTER, answers)
    result = prune(pool, records, prunable(pool, records, keep=keep, every=every))
    return result, sorted(set(asked))


def test_the_newest_ended_runs_and_every_live_one_stay(tmp_path: Path) -> None:
    records = Records(tmp_path)
    old, new, live = ID.format("old1"), ID.format("new1"), ID.format("liv1")
    for run, began in ((old, 1.0), (new, 2.0), (live, 0.5)):
        records.write(RunRecord(run=run, began=began, cluster=CLUSTER))
    a = [over("a", "old1", 1.0), over("a", "new1", 2.0), over("a", "liv1", 0.5, "running")]
    b = [over("b", "old1", 1.0, "failed"), over("b", "new1", 2.0)]
    result, asked = pruned(records, 1, a=a, b=b)
    assert (result.removed, asked) == ((old,), [old])
    assert [kept.run for kept in result.kept] == [live]
    assert {record.run for record in records.all()} == {new, live}


def test_a_run_that_a_node_may_still_have_is_left_alone(tmp_path: Path) -> None:
    records = Records(tmp_path)
    result, asked = pruned(records, 0, a=[over("a", "one1", 1.0)], b=DEAD)
    assert (result.removed, asked) == ((), [])
    assert [error.node for error in result.errors] == ["b"]
    lost = over("b", "one1", 1.0, "lost")
    result, asked = pruned(records, 0, a=[over("a", "one1", 1.0)], b=[lost])
    assert (result.removed, asked) == ((), [])
    assert (
        result.kept[0].why == f"it has not ended on b; end it first: clusterctl stop {lost['run']}"
    )


def test_a_node_that_was_rebooted_has_nothing_left_to_stop(tmp_path: Path) -> None:
    lost = {**over("b", "one1", 1.0, "lost"), "supervisor": {"pid": 1, "rebooted": True}}
    result, asked = pruned(Records(tmp_path), 0, a=[over("a", "one1", 1.0)], b=[lost])
    assert (result.removed, result.kept, asked) == ((lost["run"],), (), [lost["run"]])


def test_a_run_that_is_only_remembered_goes_once_it_is_settled(tmp_path: Path) -> None:
    records = Records(tmp_path)
    now = time.time()
    ages = {"old1": now - 1e6, "new1": now - 5, "ref1": now - 4}
    for run, began in ages.items():
        records.write(RunRecord(run=ID.format(run), began=began, cluster=CLUSTER))
    refused = records.read("lab", ID.format("ref1"))
    assert refused is not None
    records.write_end(refused, {"state": "failed"})
    result, _ = pruned(records, 0, every=True, a=[], b=[])
    assert set(result.removed) == {ID.format("old1"), ID.format("ref1")}
    assert result.kept == (Kept(run=ID.format("new1"), why="no node knows how it ended"),)


def test_a_run_that_no_node_knows_any_more_is_shown_as_lost(tmp_path: Path) -> None:
    records = Records(tmp_path)
    for run in ("old1", "old2"):
        records.write(RunRecord(run=ID.format(run), began=1.0, cluster=CLUSTER))
    ended = records.read("lab", ID.format("old2"))
    assert ended is not None
    records.write_end(ended, {"state": "failed"})
    none = {"runs": [Message({"runs": []})]}
    plan = prunable(FakePool(CLUSTER, {"a": none, "b": none}), records, keep=0)
    assert {one.short: one.state for one in plan.runs} == {"old1": "lost", "old2": "failed"}


def test_named_and_recent_runs_stay_unless_every_old_one_is_to_go(tmp_path: Path) -> None:
    records = Records(tmp_path)
    runs = {"old1": (1.0, ""), "bas1": (2.0, "base"), "new1": (time.time() - 480, "")}
    for run, (began, name) in runs.items():
        one = RunRecord(run=ID.format(run), began=began, cluster=CLUSTER, options={"name": name})
        records.write(one)
        records.write_end(one, {"state": "finished"})
    result, asked = pruned(records, 0, a=[], b=[])
    assert (result.removed, asked) == ((ID.format("old1"),), [ID.format("old1")])
    assert {(kept.run, kept.why) for kept in result.kept} == {
        (ID.format("bas1"), NAMED),
        (ID.format("new1"), RECENT),
    }
    result, _ = pruned(records, 0, every=True, a=[], b=[])
    assert set(result.removed) == {ID.format("bas1"), ID.format("new1")}


def test_finding_what_would_go_deletes_nothing(tmp_path: Path) -> None:
    records = Records(tmp_path)
    run = ID.format("old1")
    records.write(RunRecord(run=run, began=1.0, cluster=CLUSTER))
    runs = {"runs": [Message({"runs": [over("a", "old1", 1.0)]})]}
    pool = FakePool(CLUSTER, {"a": runs, "b": runs})
    plan = prunable(pool, records, keep=0)
    assert [(one.run, one.short) for one in plan.runs] == [(run, "old1")]
    assert {request.op for _, request in pool.requests} == {"runs"}
    assert records.read("lab", run) is not None


def test_a_run_that_a_reboot_ended_needs_no_stop(tmp_path: Path) -> None:
    records = Records(tmp_path)
    dead = {"pid": 1, "alive": False, "beat_age_s": None, "rebooted": True}
    a, b = over("a", "old1", 1.0, "failed"), {**over("b", "old1", 1.0, "lost"), "supervisor": dead}
    result, _ = pruned(records, 0, a=[a], b=[b])
    assert (result.removed, result.kept) == ((ID.format("old1"),), ())


def test_what_a_node_could_not_delete_is_still_remembered(tmp_path: Path) -> None:
    records = Records(tmp_path)
    run = ID.format("one1")
    records.write(RunRecord(run=run, began=1.0, cluster=CLUSTER))
    runs = {"runs": [Message({"runs": [over("a", "one1", 1.0)]})]}
    refusal = [Message({"removed": [], "kept": {run: "something of it is left here"}})]
    gone = [Message({"removed": [run], "kept": {}})]
    pool = FakePool(CLUSTER, {"a": runs | {"prune": refusal}, "b": runs | {"prune": gone}})
    result = prune(pool, records, prunable(pool, records, keep=0))
    assert result.kept == (Kept(run=run, why="a: something of it is left here"),)
    assert records.read("lab", run) is not None


def test_a_record_with_a_name_that_leads_elsewhere_deletes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "state"
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "record.json").write_text("{}")
    records = Records(root)
    records.write(RunRecord(run="kept", began=1.0, cluster=CLUSTER))
    records.remove("lab", "../../precious")
    records.remove("..", "precious")
    assert (precious / "record.json").exists()


def test_a_run_that_one_which_stays_was_resumed_from_stays_too(tmp_path: Path) -> None:
    records = Records(tmp_path)
    before = {"old1": None, "old2": "old1", "new1": "old2", "old3": None, "end1": "old3"}
    for began, (run, resumed) in enumerate(before.items(), 1):
        goes_back = Resumed(run=ID.format(resumed), checkpoint="/c") if resumed else None
        one = RunRecord(
            run=ID.format(run),
            began=float(began) if run != "new1" else 9.0,
            cluster=CLUSTER,
            resumed=goes_back,
        )
        records.write(one)
        records.write_end(one, {"state": "finished"})
    result, asked = pruned(records, 1, every=True, a=[], b=[])
    assert set(result.removed) == set(asked) == {ID.format("old3"), ID.format("end1")}
    assert {kept.run: kept.why for kept in result.kept} == {
        ID.format("old2"): f"{ID.format('new1')} was resumed from it",
        ID.format("old1"): f"{ID.format('old2')} was resumed from it",
    }
