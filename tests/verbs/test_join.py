"""Nodes that join a run: who is refused and why, and how every verb gets to know them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from clusterctl.errors import ClusterError, CouldNotTell, NodeError, UsageError
from clusterctl.inventory.cluster import Cluster, Job
from clusterctl.plan.certificate import make_identity
from clusterctl.plan.node_job import node_job
from clusterctl.plan.plan import ElasticPlan
from clusterctl.transport.interface import Reply
from clusterctl.verbs.events import Event, NodeEvent, Notice, ignore
from clusterctl.verbs.follow import LogLines, follow
from clusterctl.verbs.join.join import JoinOptions, _Newcomer, _Refused, join, remember
from clusterctl.verbs.join.result import JoinResult
from clusterctl.verbs.logs import collect, read_logs
from clusterctl.verbs.runs.node_answers import node_answers
from clusterctl.verbs.runs.proof import prove
from clusterctl.verbs.runs.records import Records, RunRecord
from clusterctl.verbs.runs.run_log import RunLog
from clusterctl.verbs.runs.run_status import RunStatus
from clusterctl.verbs.stop import stop
from clusterctl.wire import Message, plain
from tests.fake_pool import FakePool
from tests.verbs.run_answers import (
    CLUSTER,
    PLAN,
    RUN,
    data,
    drained,
    ended,
    finish,
    happened,
    node_plan,
    part,
)

AT_LAUNCH = CLUSTER.with_nodes(CLUSTER.nodes[:1])
"""What this machine knows: the run was launched on a alone."""
MASTER = {"node": "a", "address": "10.0.0.1", "port": 29500}
STOPPED = {"gone": True, "left": [], "port_free": True, "gpu_free": True}


def tails() -> FakePool:
    a = [happened(0, "peer-joined", peer="b"), data(0, 0, b"of a\n"), ended("a")]
    return FakePool(CLUSTER, {"a": {"tail": a}, "b": {"tail": [data(1, 0, b"of b\n"), ended("b")]}})


def texts(events: list[Any]) -> set[str]:
    found = [event.lines for event in events if isinstance(event, LogLines)]
    return {line.line.text for lines in found for line in lines}


def test_who_follows_or_reads_gets_the_lines_of_a_node_that_joined() -> None:
    log = RunLog(RUN, AT_LAUNCH)
    seen, _ = drained(follow, tails(), log)
    assert texts(seen) == {"of a", "of b"}
    assert set(log.node_runs) == {"a", "b"}
    assert [node.name for node in log.cluster.nodes] == ["a", "b"]
    seen_once, errors = drained(read_logs, tails(), RunLog(RUN, AT_LAUNCH))
    assert (texts(seen_once), errors) == ({"of a", "of b"}, {})


def test_the_logs_of_a_node_that_joined_are_collected(tmp_path: Path) -> None:
    finish(collect, tails(), RunLog(RUN, AT_LAUNCH), tmp_path)
    assert (tmp_path / "b" / "ranks" / "1.log").read_bytes() == b"of b\n"


def test_some_nodes_that_were_asked_for_stay_alone() -> None:
    log = RunLog(RUN, AT_LAUNCH, some_nodes=True)
    seen, _ = drained(follow, tails(), log)
    assert texts(seen) == {"of a"}


def test_a_node_that_was_lost_is_read_on_and_its_earlier_ends_are_no_cause() -> None:
    log = RunLog(RUN, CLUSTER)
    offsets = itertools.count(0, 50)

    def take(node: str, kind: str, **more: Any) -> str:
        events = list(log.take(node, happened(next(offsets), kind, **more), now=0.0))
        (found,) = [event for event in events if isinstance(event, NodeEvent)]
        return log.newcomer(found.event)

    assert take("a", "peer-joined", peer="b") == ""  # it is read already
    assert take("b", "supervisor-died", message="killed") == ""
    assert log.first_cause() is not None
    assert take("a", "peer-left", peer="b") == ""
    assert take("a", "peer-joined", peer="b") == "b"
    assert take("a", "peer-joined", peer="b") == ""
    assert take("a", "peer-joined", peer="b", standby=True) == "b"  # of a run that waited for it
    assert take("a", "peer-joined", peer="elsewhere") == ""
    take("b", "supervisor-up")
    assert log.first_cause() is None


def test_stop_verifies_a_node_that_this_machine_did_not_know_of() -> None:
    answers = {"a": {**STOPPED, "nodes": ["a", "b", "unknown"]}, "b": STOPPED}
    pool = FakePool(CLUSTER, {name: {"stop": [Message(head)]} for name, head in answers.items()})
    _, result = finish(stop, pool, RUN, AT_LAUNCH)
    assert [(node.node, node.gone) for node in result.nodes] == [("a", True), ("b", True)]
    pool = FakePool(CLUSTER, {"a": {"stop": [Message(answers["a"])]}})
    _, result = finish(stop, pool, RUN, AT_LAUNCH)
    assert result.exit_code == 3


def test_status_asks_a_node_that_this_machine_did_not_know_of() -> None:
    runs = {"a": part("a", nodes=["a", "b"]), "b": part("b")}
    pool = FakePool(CLUSTER, {n: {"status": [Message({"node": one})]} for n, one in runs.items()})
    _, view = finish(node_answers, pool, RUN, AT_LAUNCH)
    assert list(view.node_runs) == ["a", "b"]


ELASTIC = replace(
    PLAN,
    nodes=tuple(replace(node, address="10.0.0.1") for node in PLAN.nodes),
    elastic=ElasticPlan(max_nodes=3, subnet=""),
)
LAUNCHED = RunRecord(
    run=RUN,
    began=1.0,
    cluster=replace(AT_LAUNCH, job=Job(command=("train.py",))),
    plan=plain(replace(ELASTIC, nodes=ELASTIC.nodes[:1])),
)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    """The records of this machine, which has launched nothing."""
    return Records(tmp_path / "state")


def job_of_master(**launched: str) -> dict[str, Any]:
    """Return what the master keeps."""
    job = node_job(
        ELASTIC,
        ELASTIC.master,
        make_identity(RUN),
        job=LAUNCHED.cluster.job,
        state=None,
        launched=launched,
    )
    kept: dict[str, Any] = json.loads(json.dumps(job))
    return kept | {"argv": ["evil"]}


def try_join(
    pool: FakePool, records: Records, inventory: Cluster = CLUSTER, *, nodes: str = "b"
) -> JoinResult:
    options = JoinOptions(source=Path(), environment={})
    again: Any = pool.again  # a FakePool is no Pool
    joining = [CLUSTER.node(name) for name in nodes]
    return join(inventory, again, RUN, AT_LAUNCH, joining, options, records, emit=ignore)


def pool_of(status: Any, **answers: Any) -> FakePool:
    return FakePool(CLUSTER, {"a": {"status": status, **answers}})


def live() -> list[Message]:
    return [Message({"node": part("a", master=MASTER, world_size=1)})]


def test_the_master_refuses_with_a_hint(records: Records) -> None:
    error = {"kind": "full", "message": "the run is full", "hint": "clusterctl status"}
    result = try_join(pool_of(live(), join=[Message({"error": error})]), records)
    (node,) = result.nodes
    assert (node.state, node.message, node.hint) == (
        "refused", "the run is full", "the node suggests: clusterctl status",
    )  # fmt: skip
    assert result.exit_code == 1
    assert result.document()["run"] == RUN


def test_a_run_that_is_over_or_silent_ends_the_verb(records: Records) -> None:
    for state, hint in (
        ("finished", None),  # nothing is left to train
        ("stopped", f"clusterctl resume {RUN} --checkpoint latest"),
    ):
        over = pool_of([Message({"node": part("a", state, master=MASTER)})])
        with pytest.raises(ClusterError, match=f"over: {state}") as caught:
            try_join(over, records)
        assert caught.value.hint == hint
    one_silent = pool_of(
        [Message({"node": part("a", "finished", master=MASTER, nodes=["a", "b"])})]
    )
    with pytest.raises(ClusterError, match="over: finished"):
        try_join(one_silent, records)
    with pytest.raises(CouldNotTell, match="does not answer"):
        try_join(FakePool(CLUSTER, {}), records)
    lost = Reply.failed("a", NodeError("timeout", "answer"))
    with pytest.raises(CouldNotTell, match="does not answer"):
        try_join(pool_of(live(), join=lost), records)
    with pytest.raises(ClusterError, match="not in"):
        try_join(pool_of(live()), records, CLUSTER.with_nodes(()).with_nodes(CLUSTER.nodes[1:]))


def test_a_node_that_claims_to_be_the_master_is_not_asked(records: Records) -> None:
    parts = {
        "a": part("a", master=MASTER, world_size=1, nodes=["a", "b"]),
        "b": part("b", master={**MASTER, "node": "b"}, world_size=1),
    }
    pool = FakePool(CLUSTER, {n: {"status": [Message({"node": one})]} for n, one in parts.items()})
    with pytest.raises(ClusterError, match="expected one master, found a, b"):
        try_join(pool, records)
    assert {request.op for _, request in pool.requests} == {"status"}


def tried(pool: FakePool) -> list[str]:
    return [request.op for _, request in pool.requests]


def test_a_damaged_job_of_the_master_is_refused(records: Records) -> None:
    records.write(LAUNCHED)
    damaged = pool_of(live(), join=[Message({"job": {"run": RUN}})])
    assert "what its master a runs is refused: job" in try_join(damaged, records).nodes[0].message
    assert tried(damaged) == ["status", "join"]


def signed(records: Records, **changes: Any) -> dict[str, str]:
    return prove(replace(LAUNCHED, **changes), ELASTIC, records.root)


def forged(records: Records) -> dict[str, str]:
    proof = signed(records)
    return {**proof, "record": proof["record"].replace("train.py", "evil.py")}


def of_another_run(records: Records) -> dict[str, str]:
    return signed(records, run="lab-20260101t000000-efgh")


def of_another_machine(records: Records) -> dict[str, str]:
    return prove(LAUNCHED, ELASTIC, records.root.parent / "another")


@pytest.mark.parametrize(
    "launched", [lambda _records: {}, forged, of_another_run, of_another_machine]
)
def test_without_a_record_a_job_without_a_proof_is_refused(
    records: Records, launched: Callable[[Records], dict[str, str]]
) -> None:
    pool = pool_of(live(), join=[Message({"job": job_of_master(**launched(records))})])
    (node,) = try_join(pool, records).nodes
    assert node.state == "refused"
    assert f"this machine did not launch {RUN}" in node.message
    assert node.hint == f"on the machine that launched it: clusterctl join {RUN} --nodes b"
    assert tried(pool) == ["status", "join"]


def test_a_record_that_nodes_made_up_is_no_proof(records: Records) -> None:
    records.write(replace(LAUNCHED, discovered=True))
    pool = pool_of(live(), join=[Message({"job": job_of_master()})])
    assert "did not launch" in try_join(pool, records).nodes[0].message


def test_with_a_proof_the_command_and_the_secrets_names_are_shown_before_anything_starts(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(command=("train.py", "a b"), env_from=("TOKEN", "KEY"))
    launched = replace(LAUNCHED, cluster=replace(LAUNCHED.cluster, job=job))
    proof = prove(launched, ELASTIC, records.root)
    kept = node_job(
        ELASTIC, ELASTIC.master, make_identity(RUN), job=job, state=None, launched=proof
    )
    pool = pool_of(live(), join=[Message({"job": json.loads(json.dumps(kept))})])
    monkeypatch.delenv("TOKEN", raising=False)
    seen: list[Event] = []
    with pytest.raises(UsageError, match="env_from: expected TOKEN"):
        join(
            CLUSTER, cast("Any", pool.again), RUN, AT_LAUNCH, [CLUSTER.node("b")],
            JoinOptions(source=Path(), environment={}), records, emit=seen.append,
        )  # fmt: skip
    told = [event.text for event in seen if isinstance(event, Notice)]
    assert told == ["command: train.py 'a b'", "env_from: TOKEN, KEY"]
    assert tried(pool) == ["status", "join"]


def test_each_node_that_joins_is_recorded_whatever_becomes_of_the_next(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    records.write(LAUNCHED)

    def join_or_fail(newcomer: Any, _run: str, _view: RunStatus) -> Any:
        if newcomer.node.name == "a":
            raise CouldNotTell("the master does not answer", hint="clusterctl check")
        return LAUNCHED, newcomer.node, node_plan("b", 1)

    monkeypatch.setattr("clusterctl.verbs.join.join._Newcomer.join", join_or_fail)
    result = try_join(pool_of(live()), records, nodes="ba")
    assert [(one.node, one.state, one.hint) for one in result.nodes] == [
        ("b", "joined", ""),
        ("a", "unreachable", "clusterctl check"),
    ]
    kept = records.read("lab", RUN)
    assert kept is not None
    assert [node.name for node in kept.cluster.nodes] == ["a", "b"]
    with pytest.raises(CouldNotTell):
        try_join(pool_of(live()), records, nodes="ab")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), _Refused("the node is busy: run X")])
def test_a_master_that_falls_silent_hides_no_error(records: Records, error: BaseException) -> None:
    let_in = {"job": {}, "node_rank": 1, "nodes": ["a", "b"], "link_port": 1}
    silent = Reply.failed("a", NodeError("timeout", "answer"))
    pool = pool_of([], join=lambda ask: silent if "withdraws" in ask.args else [Message(let_in)])
    options = JoinOptions(source=Path(), environment={})
    newcomer = _Newcomer(
        CLUSTER,
        cast("Any", pool.again),
        CLUSTER.node("a"),
        CLUSTER.node("b"),
        options,
        records,
        CLUSTER,
        ignore,
    )
    with pytest.raises(type(error)) as caught, newcomer._admitted(RUN):
        raise error
    assert caught.value is error
    assert [request.args.get("withdraws") for _, request in pool.requests] == [None, True]


def test_the_record_knows_who_joined(records: Records) -> None:
    plan = replace(node_plan("b", 1), device="cpu")
    kept: RunRecord | None = LAUNCHED
    for _ in range(2):  # it may be lost, and join again
        assert kept is not None
        remember(records, kept, CLUSTER.node("b"), plan)
        kept = records.read("lab", RUN)
    assert kept is not None
    assert [node.name for node in kept.cluster.nodes] == ["a", "b"]
    assert [node["node"] for node in kept.plan["nodes"]] == ["a", "b"]
    assert kept.cluster.left_out == ()
