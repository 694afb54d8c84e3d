"""What the nodes' answers amount to: states, causes, proofs, and which run is meant."""

from __future__ import annotations

import io
import itertools
import math
import os
import pwd
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from rich.console import Console

from clusterctl.errors import ClusterError, CouldNotTell, NodeError, UsageError
from clusterctl.inventory.cluster import Job, Stop
from clusterctl.logs.first_cause import FirstCause
from clusterctl.model.node_run import NodeRun, Resumed
from clusterctl.model.run_record import RecordedCause, RunEnd
from clusterctl.report.console import Screen
from clusterctl.report.status import show_status
from clusterctl.transport.fanout import MultiStream
from clusterctl.transport.interface import Call, Reply, Request
from clusterctl.verbs import stop as stop_module
from clusterctl.verbs.events import Event, Progress, ignore
from clusterctl.verbs.launch.run_result import corrected_end
from clusterctl.verbs.runs import find_run, list_runs
from clusterctl.verbs.runs.history import history_of
from clusterctl.verbs.runs.records import Records, RunRecord
from clusterctl.verbs.runs.run_state import NodeAnswer, ended_by, state_of
from clusterctl.verbs.runs.run_status import RunStatus, view_of
from clusterctl.verbs.status import status
from clusterctl.verbs.stop import Stopping, StopResult, stop
from clusterctl.wire import Message, plain
from tests.fake_pool import FakePool, StreamedCall
from tests.verbs.hostile import stood_still
from tests.verbs.run_answers import (
    CLUSTER,
    RUN,
    data,
    ended,
    finish,
    happened,
    node_run,
    part,
    rank,
    read,
)

T = TypeVar("T")

DEAD = Reply.failed("b", NodeError("timeout", "connect", "no answer in 5 s"))
NO_RUN = Message({"error": {"kind": "no-run", "message": "no part here"}})


def parts(**of: dict[str, Any] | None) -> list[NodeAnswer]:
    return [
        NodeAnswer(
            node=CLUSTER.node(name),
            node_run=read(given) if given else None,
            error=None if given else NodeError("timeout", "answer"),
        )
        for name, given in of.items()
    ]


def over(by: str, state: str = "failed") -> dict[str, Any]:
    return {"end": {"state": state, "by": by, "exit_code": 1, "reason": ""}}


@pytest.mark.parametrize(
    ("a", "b", "state"),
    [
        (part("a"), part("b"), "running"),
        (part("a"), part("b", "starting"), "starting"),
        (part("a"), part("b", ranks=[rank(1, joined=False)]), "running"),
        (part("a"), part("b", "failed"), "stopping"),
        (part("a", "stopping"), part("b"), "stopping"),
        (part("a", "finished"), part("b", "finished"), "finished"),
        (part("a", "failed"), part("b", "failed", **over("peer")), "failed"),
        (part("a", "stopped"), part("b", "stopped"), "stopped"),
        (part("a", "stopped"), part("b", "failed"), "failed"),
        (part("a", "failed", **over("lost")), part("b", "lost"), "lost"),
        (part("a", "failed", **over("start-timeout")), part("b", "failed"), "failed"),
        (part("a"), None, "running"),
        (part("a", "finished"), part("b"), "running"),
        (part("a", "finished"), None, "unreachable"),
        (part("a", "stopped"), None, "unreachable"),
        (part("a", "failed"), None, "failed"),
        (part("a", "failed", **over("lost")), None, "lost"),
        (None, None, "unreachable"),
        (part("a", "finished", world_size=1), None, "finished"),
        (part("a", "finished", world_size=2), None, "unreachable"),
        # An elastic run continues without a node, if enough are left.
        (part("a", min_nodes=1), part("b", "failed", min_nodes=1), "running"),
        (part("a", "finished", min_nodes=1), part("b", "lost", min_nodes=1), "finished"),
        (part("a", "finished", min_nodes=1), None, "finished"),
        (part("a", "finished", min_nodes=2), part("b", "failed", min_nodes=2), "failed"),
        # One node alone does not make it elastic.
        (part("a", "finished", min_nodes=1), part("b", "failed"), "failed"),
    ],
)
def test_states(a: dict[str, Any] | None, b: dict[str, Any] | None, state: str) -> None:
    assert state_of(parts(a=a, b=b)) == state


def test_a_node_that_does_not_answer_is_no_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = RunStatus(run=RUN, cluster="lab", nodes=tuple(parts(a=part("a", "finished"), b=None)))
    assert (view.state, view.ended_by, view.live) == ("unreachable", "", False)
    show_status(Screen(), view)
    assert "1 of 2 nodes did not answer: what runs there is unknown" in capsys.readouterr().out
    seen = replace(view, remembered=RunEnd(state="finished", ended_by="job"))
    assert (seen.state, seen.ended_by) == ("finished", "job")
    unsure = replace(view, remembered=RunEnd(state="unreachable", ended_by="unknown"))
    assert (unsure.state, unsure.ended_by) == ("unreachable", "")


def test_a_launch_that_was_cut_off_is_named_with_what_ends_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    begun, absent = parts(a=part("a", "starting"), b=None)
    nodes = (begun, replace(absent, error=None))
    view = RunStatus(run=RUN, cluster="lab", nodes=nodes, began=time.time() - 20)
    show_status(Screen(), view)
    out = capsys.readouterr().out
    assert "b: not started yet: its env_init runs, or the launch was killed" in out
    assert f"hint: if no launch is under way: clusterctl stop {RUN}" in out
    assert not replace(view, began=time.time() - 5).never_begun(time.time())


def test_who_ended_it() -> None:
    assert ended_by(parts(a=part("a", "failed"), b=part("b", "stopped"))) == "job"
    assert ended_by(parts(a=part("a", "stopped"), b=part("b", "stopped"))) == "stop"
    timeout = part("a", "failed", **over("start-timeout"))
    assert ended_by(parts(a=timeout, b=part("b", "failed", **over("peer")))) == "start-timeout"


def at(time: float, by: str, state: str) -> dict[str, Any]:
    return {"end": {"state": state, "by": by, "exit_code": None, "reason": "", "time": time}}


def test_what_is_cleared_up_after_a_loss_was_lost_and_not_stopped() -> None:
    lost, cleared = at(10.0, "lost", "lost"), at(90.0, "stop", "stopped")
    given = parts(a=part("a", "lost", **lost), b=part("b", "stopped", **cleared))
    assert (state_of(given), ended_by(given)) == ("lost", "lost")
    late = at(99.0, "lost", "lost")
    given = parts(a=part("a", "lost", **late), b=part("b", "stopped", **cleared))
    assert (state_of(given), ended_by(given)) == ("stopped", "stop")


def test_status_of_a_failed_run_names_the_cause() -> None:
    failed = part("b", "failed", ranks=[rank(1, state="ended", exit_code=3)])
    pool = FakePool(
        CLUSTER,
        {
            "a": {
                "status": [Message({"node": part("a", "failed", **over("peer"))})],
                "tail": [ended("a")],
            },
            "b": {
                "status": [Message({"node": failed})],
                "tail": [
                    happened(0, "rank-ended", rank=1, exit_code=3),
                    data(1, 0, b"ValueError: no\n"),
                    ended("b", "failed"),
                ],
            },
        },
    )
    _, view = finish(status, pool, RUN, CLUSTER)
    document = view.document()
    assert document["schema"] == 1
    assert (document["run"], document["state"], document["ended_by"]) == (RUN, "failed", "job")
    assert document["first_cause"]["node"] == "b"
    assert document["first_cause"]["exit_status"] == 3
    assert [one["node"] for one in document["nodes"]] == ["a", "b"]
    assert [one["rank"] for one in document["ranks"]] == [0, 1]
    assert document["checkpoint"] is None


def test_status_says_that_there_is_no_checkpoint_yet(capsys: pytest.CaptureFixture[str]) -> None:
    answers = {"a": part("a"), "b": part("b")}
    nodes = {name: {"status": [Message({"node": one})]} for name, one in answers.items()}
    empty = [Message({"candidates": [], "knows": True})]
    cluster = replace(CLUSTER, job=replace(CLUSTER.job, checkpoints="out"))
    for looked, expected in ((cluster, "out"), (CLUSTER, None)):
        _, view = finish(
            status,
            FakePool(looked, nodes | {"a": {**nodes["a"], "checkpoints": empty}}),
            RUN,
            looked,
        )
        assert (view.document()["checkpoints"], view.document()["checkpoint"]) == (expected, None)
        show_status(Screen(), view)
        shown = capsys.readouterr().out
        none = "newest checkpoint  none yet: this run has no complete one in out"
        assert (none in shown) is (expected is not None)
        assert "printed  nothing yet" in shown


def test_status_shows_the_checkpoint_of_the_run_that_it_resumes_until_it_has_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = replace(CLUSTER, job=replace(CLUSTER.job, checkpoints="out/{run}"))
    job = replace(cluster.job, command=("train.py", "--out", "out/{run}"))
    cluster = replace(cluster, job=job)
    first = RunRecord(run="lab-first", began=1.0, cluster=cluster)
    resumed = Resumed(run="lab-first", checkpoint="/w/out/lab-first/step-10", step=10)
    second = RunRecord(run=RUN, began=2.0, cluster=cluster, resumed=resumed)
    own: dict[str, list[Message]] = {}

    def checkpoints(request: Request) -> list[Message]:
        missing = Message({"error": {"kind": "missing", "message": "cannot list it"}})
        if "which" in request.args:  # the one that it was resumed from
            return own.get("taken", [missing])
        return own.get(str(request.args["path"]), [missing])

    def show() -> tuple[dict[str, Any], str]:
        a: dict[str, Any] = {"status": [Message({"node": part("a")})]}
        a["checkpoints"] = checkpoints
        b = {"status": [Message({"node": part("b")})], "checkpoints": [one(RUN, 12)]}
        nodes = FakePool(cluster, {"a": a, "b": b})
        history = history_of(second, {"lab-first": first}.get)
        _, view = finish(status, nodes, RUN, cluster, history)
        show_status(Screen(), view)
        return view.document(), capsys.readouterr().out

    def one(run: str, step: int) -> Message:
        path = f"/w/out/{run}/step-{step}"
        head = {"name": f"step-{step}", "path": path, "step": step, "time": 1.0, "run": run}
        return Message(
            {"candidates": [{**head, "complete": True, "why": "", "hash": "", "format": ""}]}
        )

    document, shown = show()
    assert (document["checkpoints"], document["checkpoint"]) == (f"out/{RUN}", None)
    assert f"command  train.py --out out/{RUN}" in shown
    own["out/lab-first"] = [one("lab-first", 10)]
    document, shown = show()
    assert (document["checkpoint"]["step"], document["checkpoint"]["run"]) == (10, "lab-first")
    assert "step-10 (step 10) of lab-first, which this run resumes" in shown
    own["taken"] = own.pop("out/lab-first")  # in no folder of the runs
    document, shown = show()
    assert document["checkpoint"]["step"] == 10
    own["out/lab-first"] = [one("lab-first", 8)]
    document, shown = show()
    assert document["checkpoint"]["step"] == 10
    own[f"out/{RUN}"] = [one(RUN, 12)]
    document, shown = show()
    assert document["checkpoint"]["step"] == 12
    assert "which this run resumes" not in shown


@pytest.mark.parametrize(
    ("b_says", "shared", "named"),
    [
        ({"error": {"kind": "missing", "message": "no such file"}}, (), True),
        ({"complete": False}, (), True),
        ({"hash": "of another"}, (), True),
        ({"complete": True}, (), False),
        ({"error": {"kind": "missing", "message": "no such file"}}, ("/w",), False),
        ({"error": {"kind": "failed", "message": "slow"}}, (), False),
    ],
)
def test_status_says_that_a_node_lacks_the_newest_checkpoint(
    b_says: dict[str, Any],
    shared: tuple[str, ...],
    *,
    named: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = {"name": "s-4", "path": "/w/out/s-4", "step": 4, "time": 1.0, "run": RUN, "format": "",
           "complete": True, "why": "", "hash": ""}  # fmt: skip
    b = b_says if "error" in b_says else {"candidates": [{**one, **b_says}]}
    job = replace(CLUSTER.job, checkpoints="out")
    cluster = replace(CLUSTER, job=job, shared=shared)
    answers = {
        "a": {"checkpoints": [Message({"candidates": [one]})]},
        "b": {"checkpoints": [Message(b)]},
    }
    for name, answer in answers.items():
        answer["status"] = [Message({"node": part(name)})]
    _, view = finish(status, FakePool(cluster, answers), RUN, cluster)
    assert view.document()["checkpoint"]["missing_on"] == ("b" if named else "")
    show_status(Screen(), view)
    shown = capsys.readouterr().out
    assert "newest checkpoint  /w/out/s-4 (step 4)" in shown
    assert ("b lacks it or has another, so no restart or resume takes it" in shown) is named


def test_a_cause_shows_no_more_of_a_line_than_a_person_reads() -> None:
    long = b"x" * (3 << 20)
    tail = [
        happened(0, "rank-ended", rank=0, exit_code=3),
        data(0, 0, long + b"\nlast \xff\n"),
        ended("a", "failed"),
    ]
    a = {"status": [Message({"node": part("a", "failed")})], "tail": tail}
    b = {"status": [NO_RUN]}
    _, view = finish(status, FakePool(CLUSTER, {"a": a, "b": b}), RUN, CLUSTER)
    assert view.first_cause is not None
    assert view.first_cause.lines[-1] == "last \\xff"
    assert max(map(len, view.first_cause.lines)) < 3000
    assert view.first_cause.lines[0].endswith("x ...")


def test_status_says_which_node_did_not_answer() -> None:
    pool = FakePool(CLUSTER, {"a": {"status": [Message({"node": part("a")})]}})
    seen, view = finish(status, pool, RUN, CLUSTER)
    last = [event for event in seen if isinstance(event, Progress)][-1]
    assert (last.done, last.total, last.waiting_for) == (2, 2, ())
    assert [(one.state) for one in view.nodes] == ["running", "unreachable"]
    assert [one.node.name for one in view.silent] == ["b"]


def stopping(**answers: Any) -> tuple[list[Event], StopResult]:
    pool = FakePool(CLUSTER, {name: {"stop": answer} for name, answer in answers.items()})
    return finish(stop, pool, RUN, CLUSTER)


GONE = [Message({"stage": "asking"}), Message({"gone": True, "left": [], "port_free": True})]


def test_who_stops_may_have_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_uid: int) -> object:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    pool = FakePool(CLUSTER, {name: {"stop": GONE} for name in "ab"})
    finish(stop, pool, RUN, CLUSTER)
    assert {request.args["prevent_start"] for _, request in pool.requests} == {False}
    assert {str(request.args["reason"]) for _, request in pool.requests} == {
        f"stopped by {os.getuid()} on {socket.gethostname()}"
    }


@pytest.mark.parametrize(("grace", "told"), [(None, 7.0), (1.5, 1.5), (0.0, 0.0)])
def test_the_grace_of_the_flag_goes_before_the_jobs(grace: float | None, told: float) -> None:
    cluster = replace(CLUSTER, job=Job(stop=Stop(grace=7.0, signal="USR1", file="STOP")))
    pool = FakePool(cluster, {name: {"stop": GONE} for name in "ab"})
    finish(stop, pool, RUN, cluster, grace=grace, reason="a test", prevent_start=True)
    orders = [request.args for _, request in pool.requests]
    asked = {"grace": told, "reason": "a test", "prevent_start": True}
    assert [{name: order[name] for name in asked} for order in orders] == [asked, asked]
    assert not any({"signal", "file"} & set(order) for order in orders), "each node's job says how"
    assert [(order["run"], order["node"]) for order in orders] == [(RUN, "a"), (RUN, "b")]


@pytest.mark.parametrize(("had_run", "code"), [(False, 3), (True, 0), (None, 0)])
def test_another_machine_in_a_nodes_place_proves_nothing(
    *, had_run: bool | None, code: int
) -> None:
    there = [Message({"gone": True, "left": [], "port_free": True, "had_run": had_run})]
    pool = FakePool(CLUSTER, {"a": {"stop": there}, "b": {"stop": there}})
    _, result = finish(stop, pool, RUN, CLUSTER, launched_on={"b": "old-b"})
    assert result.exit_code == code
    failures = [node.failure for node in result.nodes]
    words = "the run was launched on old-b: this is another machine"
    assert failures == ["", words if code else ""]


def test_stop_is_verified_on_every_node() -> None:
    seen, result = stopping(a=GONE, b=GONE)
    assert result.exit_code == 0
    assert {event.node for event in seen if isinstance(event, Stopping)} == {"a", "b"}


@pytest.mark.parametrize(
    ("seen", "code"),
    [
        ({"port_free": True}, 0),
        ({"port_free": True, "gpu_free": True}, 0),
        ({"port_free": False, "port_holder": {"pid": 7, "cmd": "nc"}}, 1),
        ({"port_free": None}, 3),
        ({"port_free": True, "gpu_free": None}, 3),
        ({"port_free": True, "strangers": [{"pid": 9, "cmd": "python", "why": "holds"}]}, 3),
    ],
)
def test_the_port_and_the_gpus_are_a_part_of_the_proof(seen: dict[str, Any], code: int) -> None:
    _, result = stopping(a=[Message({"gone": True, "left": [], **seen})], b=GONE)
    assert result.exit_code == code
    assert result.nodes[0].gone == (code == 0)


def test_what_a_node_could_not_see_is_said() -> None:
    blind = {"gone": False, "left": [], "port_free": None, "gpu_free": None}
    _, result = stopping(a=[Message(blind)], b=GONE)
    assert (result.exit_code, result.nodes[0].gone) == (3, False)
    assert result.nodes[0].failure == (
        "could not see whether its port is free and its GPU memory is back"
        " and nothing of it is left"
    )
    assert (result.nodes[1].gone, result.nodes[1].failure) == (True, "")


def test_an_operation_that_refuses_proves_nothing() -> None:
    _, result = stopping(a=GONE, b=[NO_RUN])
    assert (result.exit_code, result.nodes[1].failure) == (3, "no part here")


def test_stop_on_a_node_that_does_not_answer_is_unverified() -> None:
    _, result = stopping(a=GONE, b=DEAD)
    assert result.exit_code == 3
    assert "timeout" in result.nodes[1].failure


def test_stop_is_verified_without_a_silent_node_that_the_master_says_was_left_out() -> None:
    def gone(**more: Any) -> list[Message]:
        return [Message({"gone": True, "left": [], "port_free": True, **more})]

    _, result = stopping(a=gone(left_out=["b"]), b=DEAD)
    assert (result.exit_code, result.nodes[1].left_out) == (0, True)
    assert "timeout" in result.nodes[1].failure
    _, result = stopping(a=gone(left_out=["b"]), b=gone(port_free=False))
    assert result.exit_code == 1
    _, result = stopping(a=DEAD, b=gone(left_out=["a"]))
    assert result.exit_code == 3, "only the master knows who is left out"


class Streams(FakePool):
    """A pool whose nodes give what iterators give, as it comes."""

    def __init__(self, **streams: Iterator[Message | Reply]) -> None:
        super().__init__(CLUSTER, {})
        self.answer_timeout = math.inf
        self._streams = streams

    def following(
        self, requests: Mapping[str, Request], *, tick: float, answer_timeout: float = math.inf
    ) -> MultiStream:
        self.answer_timeout = answer_timeout

        def start(name: str, _request: Request) -> Call:
            return StreamedCall(CLUSTER.node(name), self._streams[name])

        return MultiStream(start, requests, tick=min(tick, 0.05), answer_timeout=answer_timeout)


def stopped_after(seconds: float, node: str) -> Iterator[Message | Reply]:
    time.sleep(seconds)
    yield Message({"stage": "asking"})
    yield Message({"gone": True, "left": [], "port_free": True, "end": True})
    yield Reply(node=node)


def stages() -> Iterator[Message | Reply]:
    while True:
        yield Message({"stage": "asking"})
        time.sleep(0.02)


def test_a_node_that_takes_long_to_reach_has_its_full_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_module, "VERIFY_SECONDS", 0.3)
    pool = Streams(a=stopped_after(0.0, "a"), b=stopped_after(1.0, "b"))
    _, result = finish(stop, pool, RUN, CLUSTER, grace=0.0)
    assert [node.failure for node in result.nodes] == ["", ""]
    assert pool.answer_timeout == 0.3


@pytest.mark.timeout(60)
def test_a_node_that_stops_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_module, "VERIFY_SECONDS", 0.3)
    pool = Streams(a=stopped_after(0.0, "a"), b=stages())
    _, result = finish(stop, pool, RUN, CLUSTER, grace=0.0)
    assert "not done in" in result.nodes[1].failure
    assert result.exit_code == 3


def test_what_is_left_is_said() -> None:
    left = {"pid": 7, "cmd": "python", "why": "stuck in the kernel (state D)"}
    _, result = stopping(a=GONE, b=[Message({"gone": False, "left": [left], "port_free": True})])
    assert result.exit_code == 1
    assert plain(result.nodes[1].left) == [left]


def cluster_runs(**of: Any) -> FakePool:
    return FakePool(
        CLUSTER,
        {
            name: {"runs": given if isinstance(given, Reply) else [Message({"runs": given})]}
            for name, given in of.items()
        },
    )


ID = "lab-20260101t000000-{}"


def named(node: str, run: str, state: str, began: float = 1.0) -> dict[str, Any]:
    return part(node, state, run=ID.format(run), began=began)


def test_the_only_live_run_is_meant_else_the_newest() -> None:
    old, live = named("a", "old1", "finished", 50.0), named("a", "liv1", "running", 10.0)
    found = find_run.discover(cluster_runs(a=[old, live], b=[named("b", "old1", "finished", 50.0)]))
    assert find_run.choose_run(found, []) == ID.format("liv1")
    found = find_run.discover(cluster_runs(a=[old], b=[named("b", "old0", "failed", 5.0)]))
    assert find_run.choose_run(found, []) == ID.format("old1")


def test_several_live_runs_are_named() -> None:
    found = find_run.discover(
        cluster_runs(a=[named("a", "one1", "running")], b=[named("b", "two2", "running")])
    )
    with pytest.raises(UsageError, match=r"one1, .*two2|two2, .*one1") as several:
        find_run.choose_run(found, [])
    assert str(several.value.hint).startswith("clusterctl status lab-")


def test_a_run_is_found_and_named_by_the_name_that_the_nodes_keep() -> None:
    one, two = named("a", "one1", "running"), named("b", "two2", "running")
    found = find_run.discover(cluster_runs(a=[{**one, "name": "base"}], b=[two]))
    assert find_run.find_named(found, "base", {}, part=True) == ID.format("one1")
    assert find_run.find_named(found, ID.format("two2"), {}, part=True) == ID.format("two2")
    assert find_run.find_named(found, "other", {}, part=True) == "other"
    with pytest.raises(UsageError, match=r"one1 \(base\)"):
        find_run.choose_run(found, [])


def test_a_node_in_place_of_a_run_is_named_as_one() -> None:
    cluster, found = CLUSTER, find_run.discover(cluster_runs(a=[], b=[]))
    with pytest.raises(ClusterError, match="run a is known neither") as told:
        find_run.nodes_of(found, "a", cluster)
    assert "its lines: clusterctl logs --node a\n" in str(told.value.hint)


def test_no_run_at_all() -> None:
    with pytest.raises(ClusterError, match="no run is known"):
        find_run.choose_run(find_run.discover(cluster_runs(a=[], b=[])), [])
    with pytest.raises(CouldNotTell, match="b: timeout"):
        find_run.choose_run(find_run.discover(cluster_runs(a=[], b=DEAD)), [])


def test_a_run_without_a_record_is_shown_with_what_its_nodes_claim_to_run() -> None:
    theirs = named("a", "liv1", "running") | {"command": ["/bin/python", "other.py", "7"]}
    found = find_run.discover(cluster_runs(a=[theirs], b=[]))
    assert found.runs[0].command == ("/bin/python", "other.py", "7")
    cluster = find_run.nodes_of(found, ID.format("liv1"), CLUSTER)
    assert [node.name for node in cluster.nodes] == ["a"]
    assert cluster.job.command == ()
    pool = FakePool(CLUSTER, {"a": {"status": [Message({"node": theirs})]}})
    _, view = finish(status, pool, ID.format("liv1"), cluster)
    assert view.command == ("/bin/python", "other.py", "7")


def test_runs_are_listed_and_rebuilt_from_the_nodes(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.write(
        RunRecord(run="kept", began=5.0, cluster=CLUSTER, resumed=Resumed(checkpoint="c"))
    )
    pool = cluster_runs(a=[named("a", "new1", "finished", 10.0)], b=[])
    listed = list_runs.runs(pool, records)
    assert [(one.run, one.state, one.nodes) for one in listed.runs] == [
        (ID.format("new1"), "finished", ("a",)),
        ("kept", "lost", ("a", "b")),
    ]
    assert listed.runs[1].checkpoint == "c"
    rebuilt = list_runs.runs(pool, records, rebuild=True)
    assert rebuilt.rebuilt == (ID.format("new1"),)
    found = records.find(ID.format("new1"))
    assert found is not None
    assert found.discovered
    assert [node.name for node in found.cluster.nodes] == ["a"]
    assert list_runs.runs(pool, records, rebuild=True).rebuilt == ()


def test_of_runs_that_a_node_invents_few_records_are_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_runs, "MOST_CLAIMED", 3)
    records, honest = Records(tmp_path), named("b", "good", "finished", 1.0)
    for first in (10, 20):
        invented = [named("a", f"ev{n}", "finished", float(n)) for n in range(first, first + 9)]
        list_runs.runs(cluster_runs(a=invented, b=[honest]), records, rebuild=True)
    assert {record.run for record in records.all("lab")} == {
        ID.format(end) for end in ("ev18", "ev17", "ev16", "good")
    }


def test_a_rebuilt_record_has_what_the_run_was_resumed_from(tmp_path: Path) -> None:
    resumed = {"run": ID.format("old1"), "checkpoint": "/w/out/step-30", "step": 30}
    claim = {**resumed, "command": ["evil"]}
    theirs = named("a", "new1", "finished") | {"resumed": claim, "world_size": 2}
    list_runs.runs(cluster_runs(a=[theirs], b=[]), Records(tmp_path), rebuild=True)
    record = Records(tmp_path).find(ID.format("new1"))
    assert record is not None
    taken = Resumed(run=ID.format("old1"), checkpoint="/w/out/step-30", step=30)
    assert (record.resumed, record.plan["world_size"]) == (taken, 2)
    odd = theirs | {"resumed": {**claim, "checkpoint": ["/w"]}}
    found = find_run.discover(cluster_runs(a=[odd], b=[]))
    assert "runs[0].resumed.checkpoint: expected str, found ['/w']" in found.errors[0].message


def test_a_silent_node_that_took_no_part_does_not_hide_how_a_run_ended(tmp_path: Path) -> None:
    records = Records(tmp_path)
    run = ID.format("old1")
    records.write(RunRecord(run=run, began=5.0, cluster=CLUSTER.with_nodes(CLUSTER.nodes[:1])))
    old = named("a", "old1", "finished")
    tail = [Message({"node": old})]
    silent = FakePool(CLUSTER, {"a": {"runs": [Message({"runs": [old]})], "tail": tail}})
    assert [one.state for one in list_runs.runs(silent, records).runs] == ["finished"]
    assert [one.state for one in list_runs.runs(silent, Records(tmp_path / "none")).runs] == [
        "unreachable"
    ]


def test_a_run_that_no_node_and_nobody_knows_is_lost() -> None:
    view = RunStatus(run=RUN, cluster="lab", nodes=(NodeAnswer(node=CLUSTER.node("a")),))
    assert (view.state, view.live, view.known) == ("lost", False, False)


def test_a_refused_launch_is_not_the_newest_run(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.write(RunRecord(run=ID.format("ref1"), began=99.0, cluster=CLUSTER))
    found = find_run.discover(cluster_runs(a=[named("a", "old1", "finished", 5.0)], b=[]))
    assert find_run.choose_run(found, records.all()) == ID.format("old1")


def test_a_later_run_of_another_machine_is_not_passed_by(tmp_path: Path) -> None:
    records = Records(tmp_path)
    mine = RunRecord(run=ID.format("old1"), began=5.0, cluster=CLUSTER)
    records.write(mine)
    old, new = (named("a", end, "stopped", at) for end, at in (("old1", 5.0), ("new1", 9.0)))
    find_run.require_newest(cluster_runs(a=[old], b=[]), mine, records)
    pool = cluster_runs(a=[old, new], b=[])
    with pytest.raises(UsageError, match="new1, which another machine began") as refused:
        find_run.require_newest(pool, mine, records)
    assert f"clusterctl resume {mine.run} --checkpoint latest" in str(refused.value.hint)
    records.write(replace(mine, run=ID.format("new1"), began=9.0))
    find_run.require_newest(pool, mine, records)


def test_a_node_does_not_choose_where_the_controller_writes(tmp_path: Path) -> None:
    evil = [part("a", run=name) for name in ("../../evil", "other-20260101t000000-aaaa", "/x")]
    pool = cluster_runs(a=evil, b=[])
    assert find_run.discover(pool).runs == ()
    assert list_runs.runs(pool, Records(tmp_path), rebuild=True).rebuilt == ()
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_no_node_knows_is_as_it_was_remembered() -> None:
    nodes = (NodeAnswer(node=CLUSTER.node("a")),)
    remembered = RunEnd(state="failed", ended_by="start", message="a: command not found: x")
    view = RunStatus(run=RUN, cluster="lab", nodes=nodes, remembered=remembered)
    assert (view.state, view.ended_by) == ("failed", "start")
    alive = RunStatus(
        run=RUN, cluster="lab", nodes=tuple(parts(a=part("a"))), remembered=remembered
    )
    assert alive.state == "running"


def test_a_node_that_shows_later_that_it_was_lost_corrects_the_record(
    capsys: pytest.CaptureFixture[str],
) -> None:
    message = "exited with 1: Connection closed"
    echo = RecordedCause(node="a", rank=0, kind="exit", message=message)
    remembered = RunEnd(run=RUN, state="failed", ended_by="job", exit_code=1, first_cause=echo)
    nodes = tuple(parts(a=part("a", "failed"), b=part("b", "lost")))
    # By the clock of a node that is far from right.
    lost = FirstCause(node="b", time=-7e9, kind="node-lost", message="the machine was rebooted")
    view = RunStatus(run=RUN, cluster="lab", nodes=nodes, remembered=remembered, first_cause=lost)
    corrected = corrected_end(view)
    assert corrected is not None
    assert (corrected.state, corrected.ended_by, corrected.exit_code) == ("lost", "lost", 125)
    assert corrected.corrected is not None
    assert corrected.corrected.why == "b: the machine was rebooted"
    assert corrected.corrected.was.first_cause == echo
    again = replace(view, remembered=corrected)
    assert corrected_end(again) is None
    show_status(Screen(), again)
    assert (
        "corrected: it was recorded as failed, ended by job: a: exited" in capsys.readouterr().out
    )
    silent = tuple(parts(a=part("a", "failed"), b=None))
    for unsure in (replace(view, nodes=silent), replace(view, first_cause=None)):
        assert corrected_end(unsure) is None


def test_a_node_that_was_cut_off_and_finished_corrects_the_record() -> None:
    lost = RecordedCause(node="b", kind="node-lost", message="no answer")
    remembered = RunEnd(run=RUN, state="lost", ended_by="lost", exit_code=125, first_cause=lost)
    nodes = tuple(parts(a=part("a", "finished"), b=part("b", "finished")))
    view = RunStatus(run=RUN, cluster="lab", nodes=nodes, remembered=remembered)
    corrected = corrected_end(view)
    assert corrected is not None
    assert (corrected.state, corrected.exit_code, corrected.first_cause) == ("finished", 0, None)
    assert corrected.corrected is not None
    assert corrected.corrected.was.first_cause == lost
    assert corrected_end(replace(view, remembered=corrected)) is None
    silent = tuple(parts(a=part("a", "finished"), b=None))
    assert corrected_end(replace(view, nodes=silent)) is None


def test_of_nodes_that_lost_each_other_the_one_that_was_lost_from_here_counts() -> None:
    def lost(node: str, time: float) -> RecordedCause:
        return RecordedCause(node=node, kind="node-lost", message=f"{node} is lost", time=time)

    cause = FirstCause(node="a", time=4.0, kind="node-lost", message="b lost the connection to it")
    nodes = tuple(parts(a=part("a", "lost"), b=part("b", "lost")))
    view = RunStatus(run=RUN, cluster="lab", nodes=nodes, first_cause=cause)
    remembered = RunEnd(run=RUN, state="lost", ended_by="lost", first_cause=lost("b", 5.0))
    seen = view.with_remembered(remembered)
    assert seen.first_cause is not None
    assert (seen.first_cause.node, seen.first_cause.message) == ("b", "b is lost")
    assert corrected_end(seen) is None
    waited = "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation"
    echo = FirstCause(node="a", rank=0, time=4.0, kind="exit", message="", lines=(waited,))
    for one in (echo, replace(echo, node="b", rank=1)):
        assert replace(view, first_cause=one).with_remembered(remembered) == seen
    own = replace(echo, lines=("ValueError: bad sample 17",))
    assert replace(view, first_cause=own).with_remembered(remembered).first_cause == own
    same = replace(remembered, first_cause=lost("a", 5.0))
    for other in (None, replace(remembered, first_cause=None), same):
        assert view.with_remembered(other).first_cause == cause
    either = replace(cause, message="it and b lost the connection to each other: no answer")
    seen = replace(view, first_cause=either).with_remembered(same)
    assert seen.first_cause is not None
    assert seen.first_cause.message == "a is lost"
    assert str(seen) == f"{RUN}: lost (ended by lost); first cause: a: a is lost"


def test_status_tells_how_long_it_ran_and_what_was_printed_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def answers(age_a: float, age_b: float, **more: Any) -> list[NodeAnswer]:
        lines = {
            name: {"rank": "ab".index(name), "line": f"step of {name}", "age_s": age}
            for name, age in (("a", age_a), ("b", age_b))
        }
        given = {name: part(name, last=line, **more) for name, line in lines.items()}
        return parts(**given)

    live = RunStatus(run=RUN, cluster="lab", nodes=tuple(answers(200.0, 12.0)), began=1000.0)
    assert live.ended is None
    show_status(Screen(), live)
    shown = capsys.readouterr().out
    assert "printed  12 s ago: [b:1] step of b" in shown
    assert "ended" not in shown
    assert live.document()["last_line"]["node"] == "b"
    end = {"state": "finished", "by": "rank", "time": 7300.0, "over": 7900.0}
    over = {"state": "finished", "end": end}
    done = RunStatus(run=RUN, cluster="lab", nodes=tuple(answers(9, 9, **over)), began=1000.0)
    show_status(Screen(), done)
    shown = capsys.readouterr().out
    assert "began    1970-01-01T00:16:40Z" in shown
    assert "ended    1970-01-01T02:11:40Z" in shown
    assert "after 1 h 55 min" in shown
    assert done.document()["ended"] == 7900.0
    del end["over"]  # a node's earlier version
    earlier = RunStatus(run=RUN, cluster="lab", nodes=tuple(answers(9, 9, **over)), began=1000.0)
    assert earlier.document()["ended"] == 7300.0


def test_status_tells_how_far_it_is_how_fast_and_whether_it_is_silent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def show(last: dict[str, Any], **more: Any) -> tuple[dict[str, Any], str]:
        view = RunStatus(run=RUN, cluster="lab", nodes=tuple(parts(a=part("a", last=last, **more))))
        show_status(Screen(), view)
        return view.document(), capsys.readouterr().out

    line = {"rank": 0, "line": "saving", "age_s": 4.0, "every_s": 0.5}
    told = {
        "lines": ["step 30/100", "saving"],
        "earlier": {"lines": ["step 10/100"], "age_s": 14.0},
    }
    document, shown = show({**line, **told})
    assert document["progress"] == {
        "step": 30, "total": 100, "epoch": None, "epochs": None, "of_epoch": False,
        "steps_per_s": 2.0, "eta_s": 34.5, "loss": None, "tokens_per_s": None,
    }  # fmt: skip
    assert "  progress step 30/100, 2 steps/s, 34 s left\n" in shown
    assert "printed  4 s ago (usually every 0.5 s): [a:0] saving" in shown
    assert set(document["last_line"]) == {"node", "rank", "line", "age_s", "every_s"}
    assert "restarts" not in shown
    document, shown = show({**line, "lines": ["loading"]}, ranks=[rank(0, restarts=2)])
    assert (document["progress"], document["restarts"]) == (None, 2)
    assert "  restarts 2\n" in shown
    _, shown = show({"rank": 0, "line": "step 3", "age_s": 4.0})  # of a node's earlier version
    assert "  progress step 3\n" in shown
    ended = {**line, "lines": ["ValueError: a traceback"]}
    document, shown = show(ended, progress={"step": 10, "total": 90})  # as `runs` shows it
    assert "  progress step 10/90\n" in shown
    over = {"state": "finished", "end": {"state": "finished"}}
    document, shown = show({**line, **told}, **over)
    assert document["progress"]["eta_s"] is None
    assert "usually" not in shown
    waits = {"until": 9e9, "since": 1.0, "why": "b was lost"}
    assert show({**line, **told}, waits=waits)[0]["progress"]["eta_s"] is None


def test_status_shows_what_ranks_use_and_gpus_only_if_there_are_some(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")

    def show(*used: dict[str, Any] | None) -> str:
        given = zip("ab", used, strict=True)
        answers = parts(**{name: part(name, usage=one) for name, one in given})
        show_status(Screen(), RunStatus(run=RUN, cluster="lab", nodes=tuple(answers)))
        return capsys.readouterr().out

    mib = 1 << 20
    each = [{"rank": n, "memory_bytes": (n + 1) * 512 * mib, "cpu_percent": 91 + n} for n in (0, 1)]
    cpu = {"processes": 5, "memory_bytes": 9 * mib, "cpu_percent": 200, "ranks": each, "gpus": None}
    shown = show(cpu, None)
    assert "512 MiB to 1.0 GiB" in shown
    assert "91 % to 92 %" in shown
    assert "GPUs" not in shown
    gpu = {"index": 0, "percent": 97, "memory_used_bytes": 1 << 30, "memory_total_bytes": 8 << 30}
    shown = show(cpu, {"processes": 1, "memory_bytes": 7 * mib, "gpus": [gpu]})
    assert "1 at 97 %, 1 of 8 GiB" in shown
    assert "7 MiB" in shown  # of a node's earlier version
    assert "CPU" not in show(None, None)


def test_only_a_node_without_a_recorded_end_is_shown_as_lost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended = part("a", state="lost", end={"state": "lost", "by": "lost", "reason": "b was silent"})
    nodes = tuple(parts(a=ended, b=part("b", state="lost")))
    show_status(Screen(), RunStatus(run=RUN, cluster="lab", nodes=nodes))
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert ["a", "failed"] in rows
    assert ["b", "lost"] in rows


def test_a_last_line_that_is_none_of_ours_is_no_answer() -> None:
    strange = part("a", last={"rank": 0, "line": 7, "age_s": 1})
    a = {"status": [Message({"node": strange})]}
    _, view = finish(status, FakePool(CLUSTER, {"a": a}), RUN, CLUSTER)
    assert "node.last.line: expected str, found 7" in str(view.nodes[0].error)


def test_a_launch_that_was_refused_is_listed_by_what_refused_it(tmp_path: Path) -> None:
    records = Records(tmp_path)
    record = RunRecord(run=ID.format("ref1"), began=99.0, cluster=CLUSTER)
    records.write(record)
    records.write_end(record, {"state": "failed", "ended_by": "busy"})
    (listed,) = list_runs.runs(cluster_runs(a=[], b=[]), records).runs
    assert (listed.state, listed.ended_by) == ("failed", "busy")


class _Endless(FakePool):
    """A pool in which the log of `b` never ends."""

    def __init__(self, said: Message) -> None:
        failed = part("a", "failed", ranks=[rank(0, state="ended", exit_code=3)])
        wrong = happened(0, "rank-ended", rank=0, exit_code=3)
        super().__init__(
            CLUSTER,
            {
                "a": {"status": [Message({"node": failed})], "tail": [wrong, ended("a", "failed")]},
                "b": {"status": [Message({"node": part("b", "failed", **over("peer"))})]},
            },
        )
        self._said = said

    def following(
        self, requests: Mapping[str, Request], *, tick: float, answer_timeout: float = math.inf
    ) -> MultiStream:
        def start(name: str, request: Request) -> Call:
            if name == "b":
                return StreamedCall(CLUSTER.node(name), itertools.repeat(self._said))
            return self._start(name, request)

        return MultiStream(start, requests, tick=tick, answer_timeout=answer_timeout)


@pytest.mark.parametrize(
    "said", [Message({"event": 5}), data(1, 0, b"more\n")], ids=["nonsense", "lines"]
)
@pytest.mark.timeout(60)
def test_a_log_that_never_ends_does_not_hold_status_up(
    said: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterctl.verbs.runs.node_answers.ANSWER_SECONDS", 1.0)
    _, view = finish(status, _Endless(said), RUN, CLUSTER)
    assert view.state == "failed"
    assert view.first_cause is not None
    assert view.first_cause.node == "a"


HUNG = {"since": 1000.0, "quiet_s": 300.0, "alarm": 1}


@pytest.mark.parametrize("ended", [False, True])
def test_why_a_run_is_hung_is_told_by_the_stacks_that_its_nodes_kept(*, ended: bool) -> None:
    end = over("hang") if ended else {}
    known = {name: part(name, "failed" if ended else "running", hung=HUNG, **end) for name in "ab"}
    kept = {name: stood_still(name) for name in "ab"}
    kept["b"]["ranks"][0]["processes"][0]["state"] = "T"
    kept["b"]["ranks"][0]["quiet_s"] = 300.0
    kept["b"]["time"] = time.time() - 3600
    pool = FakePool(
        CLUSTER,
        {
            name: {
                "status": [Message({"node": known[name]})],
                "tail": [data(0, 0, b""), Message({})],
                "dump": [Message({"dump": kept[name], "state": known[name]["state"]})],
            }
            for name in "ab"
        },
    )
    view = status(pool, RUN, CLUSTER, emit=ignore)
    asked = [request.args for _, request in pool.requests if request.op == "dump"]
    assert [args["kept"] for args in asked] == [True, True]
    assert view.verdict
    assert view.verdict.since_s is not None
    assert (view.verdict.since_s > 3600) is not ended  # it has been quiet ever since
    assert view.document()["verdict"]["text"] == view.verdict.text
    console = Console(file=(stream := io.StringIO()), width=200)
    show_status(Screen(console, console), view)
    assert f"why      {view.verdict.text}\n" in stream.getvalue()


@pytest.mark.parametrize(("stacks", "named"), [(True, True), (True, False), (False, False)])
def test_a_run_that_waited_in_vain_tells_which_rank_lived_on(*, stacks: bool, named: bool) -> None:
    ends = {"a": over("rank"), "b": over("peer")}
    ends["b"]["end"]["stacks"] = stacks
    kept = {name: {**stood_still(name), "timed_out": named and name == "b"} for name in "ab"}
    pool = FakePool(
        CLUSTER,
        {
            name: {
                "status": [Message({"node": part(name, "failed", **ends[name])})],
                "tail": [data(0, 0, b""), Message({})],
                "dump": [Message({"dump": kept[name], "state": "failed"})],
            }
            for name in "ab"
        },
    )
    view = status(pool, RUN, CLUSTER, emit=ignore)
    assert (view.verdict is not None and view.verdict.ranks == (1,)) is named
    assert any(request.op == "dump" for _, request in pool.requests) is stacks


SLOW = {"rank": 1, "since": 1000.0, "lost_percent": 41, "reason": "GPU 0: too hot", "where": ""}


@pytest.mark.parametrize(("state", "told"), [("running", True), ("stopping", False)])
def test_a_rank_that_keeps_the_others_waiting_has_a_column(state: str, *, told: bool) -> None:
    known = {"a": node_run("a"), "b": node_run("b", state, stragglers=[SLOW])}
    view = view_of(RUN, CLUSTER, known, {})
    assert view.document()["stragglers"] == ([{**SLOW, "node": "b"}] if told else [])
    console = Console(file=(stream := io.StringIO()), width=200)
    show_status(Screen(console, console), view)
    sentence = "the others wait 41 % of the time for rank 1 on b: GPU 0: too hot\n"
    assert (sentence in stream.getvalue()) is told
    rows = [line.split() for line in stream.getvalue().splitlines()]
    assert any(row[:1] == ["node"] and "slow" in row for row in rows) is told
    assert any(row[:1] == ["b"] and row[-3:] == ["1", "(41", "%)"] for row in rows) is told


AGAIN = {
    "attempt": 2, "checkpoint": "/c/4", "step": 4, "at": 1.0, "why": "rank 1 died", "without": [],
}  # fmt: skip


@pytest.mark.parametrize(
    ("state", "more", "told"),
    [
        ("running", {"attempt": 2}, "  attempt  2 of 4\n"),
        ("starting", {"again": AGAIN}, "  next     attempt 2 in 0 s: rank 1 died\n"),
        (
            "failed",
            {"end": {"state": "failed", "by": "rank", "no_restart": "it was attempt 4 of 4"}},
            "not started again: it was attempt 4 of 4\n",
        ),
    ],
)
def test_status_tells_which_attempt_it_is_and_what_follows(
    state: str, more: dict[str, Any], told: str
) -> None:
    known = {name: node_run(name, state, attempts=4, **more) for name in "ab"}
    view = view_of(RUN, CLUSTER, known, {})
    console = Console(file=(stream := io.StringIO()), width=200)
    show_status(Screen(console, console), view)
    assert told in stream.getvalue()
    document = view.document()
    assert (document["attempt"], document["attempts"]) == (more.get("attempt", 1), 4)
    assert document["again"] == more.get("again")
    assert document["no_restart"] == more.get("end", {}).get("no_restart")


LEFT_OUT = {"node": "b", "attempt": 1, "why": "b: the node was lost", "spare": "c"}


@pytest.mark.parametrize(
    ("b", "shown"),
    [
        (None, "left out"),
        (node_run("b", "lost", attempts=4), "left out"),
        (node_run("b", "failed", end={"state": "failed", "by": "rank"}), "left out"),
        (node_run("b", "stopping", attempts=4), "stopping"),
    ],
)
@pytest.mark.parametrize("state", ["running", "finished"])
def test_a_node_that_was_left_out_does_not_decide(
    b: NodeRun | None, shown: str, state: str
) -> None:
    known = {"a": node_run("a", state, attempt=2, attempts=4, left_out=[LEFT_OUT])}
    known |= {"b": replace(b, ranks=known["a"].ranks, rank0=0)} if b else {}
    errors = {} if b else {"b": NodeError("timeout", "connect", "no answer in 5 s")}
    view = view_of(RUN, CLUSTER, known, errors)
    assert (view.state, view.silent, view.first_cause) == (state, (), None)
    first, second = view.document()["nodes"]
    assert (first["state"], second["state"]) == (state, shown)
    assert (first["left_out"], second["left_out"]) == (None, LEFT_OUT)
    assert (second["rank0"], second["ranks"]) == ((0, 1) if shown == "stopping" else (None, 0))
    console = Console(file=(stream := io.StringIO()), width=200)
    show_status(Screen(console, console), view)
    assert "after attempt 1: b: the node was lost; c has its place\n" in stream.getvalue()


def test_only_the_master_leaves_nodes_out() -> None:
    master = {"node": "a"}
    liar = node_run("b", "finished", attempt=9, attempts=9, left_out=[{**LEFT_OUT, "node": "a"}])
    failed = node_run("a", "failed", master=master)
    view = view_of(RUN, CLUSTER, {"b": replace(liar, master=failed.master), "a": failed}, {})
    assert (view.state, view.nodes[0].left_out) == ("failed", None)


@pytest.mark.parametrize(("spare", "shown"), [("running", "standby"), ("lost", "lost")])
def test_a_spare_node_does_not_decide(spare: str, shown: str) -> None:
    a = node_run("a", "finished", attempts=4, spares=["b"])
    view = view_of(RUN, CLUSTER, {"a": a, "b": node_run("b", spare, standby=True)}, {})
    assert (view.state, view.nodes[1].state) == ("finished", shown)
    assert view.live is (spare == "running"), "its supervisor is there"


@pytest.mark.parametrize(
    ("a", "b", "state"),
    [
        (node_run("a", hung=HUNG), node_run("b", hung=HUNG), "hung"),
        (node_run("a", hung=HUNG), node_run("b"), "hung"),  # the other has not heard of it yet
        (node_run("a", "stopping", hung=HUNG), node_run("b", hung=HUNG), "stopping"),
        (node_run("a", false_alarms=2), node_run("b"), "running"),
    ],
)
def test_a_run_is_hung_while_it_lives(a: NodeRun, b: NodeRun, state: str) -> None:
    view = view_of(RUN, CLUSTER, {"a": a, "b": b}, {})
    document = view.document()
    assert (view.live, document["state"]) == (True, state)
    assert document["hung"] == (HUNG if state == "hung" else None)
    assert document["false_alarms"] == a.false_alarms
    console = Console(file=(stream := io.StringIO()), width=200)
    show_status(Screen(console, console), view)
    told = f"stacks   clusterctl dump {RUN}\n" in stream.getvalue()
    assert told is (state == "hung")
    assert ("resumed  2 times" in stream.getvalue()) is (a.false_alarms == 2)


@pytest.mark.parametrize(
    ("a", "b", "named"),
    [
        ("", "", ""),
        ("trains-alone", "", "a"),
        ("never-met", "", ""),  # too brief to be seen on a
        ("never-met", "never-met", "a,b"),
    ],
)
def test_nodes_that_train_alone_are_named(
    a: str, b: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {"a": node_run("a", "finished", alone=a), "b": node_run("b", "finished", alone=b)}
    view = view_of(RUN, CLUSTER, runs, {})
    assert ",".join(view.alone) == named
    assert view.document()["alone"] == list(view.alone)
    whose = "their" if "," in named else "its"
    line = f"  alone    {named}: no connection of {whose} ranks to another node was seen"
    show_status(Screen(), view)
    assert (line in capsys.readouterr().out) is bool(named)


def test_the_jobs_own_patterns_tell_how_far_and_how_fast_it_is() -> None:
    line = "Epoch 2 | Step 16/50 | Whole Step 66/200 | Loss 1.67"
    last = {
        "rank": 0, "line": line, "age_s": 1.0, "lines": [line],
        "own": {"step": 66, "total": 200},
        "earlier": {"lines": [line], "age_s": 11.0, "own": {"step": 46, "total": 200}},
    }  # fmt: skip
    view = RunStatus(run=RUN, cluster="lab", nodes=tuple(parts(a=part("a", last=last))))
    pace = view.pace
    assert pace is not None
    assert (pace.step, pace.total, pace.steps_per_s, pace.of_epoch) == (66, 200, 2.0, False)
    assert pace.eta_s == pytest.approx(67, abs=2)
    del last["own"]
    view = RunStatus(run=RUN, cluster="lab", nodes=tuple(parts(a=part("a", last=last))))
    assert view.pace is not None
    assert view.pace.step == 16
