"""Nodes that join a run: who is refused and why, and how every verb gets to know them."""

from __future__ import annotations

import itertools
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.errors import ClusterError, CouldNotTell, NodeError
from clusterctl.inventory.cluster import Cluster, Job
from clusterctl.plan.plan import ElasticPlan
from clusterctl.transport.interface import Reply
from clusterctl.verbs.events import NodeEvent
from clusterctl.verbs.follow import LogLines, follow
from clusterctl.verbs.join import JoinOptions, JoinResult, join, remember
from clusterctl.verbs.logs import collect, read_logs
from clusterctl.verbs.runs.node_answers import node_answers
from clusterctl.verbs.runs.records import Records, RunRecord
from clusterctl.verbs.runs.run_log import RunLog
from clusterctl.verbs.stop import stop
from clusterctl.wire import Message, plain
from tests.fake_pool import FakePool
from tests.verbs.run_answers import (
    CLUSTER,
    PLAN,
    RUN,
    data,
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
    seen, followed = finish(follow(tails(), RunLog(RUN, AT_LAUNCH)))
    assert texts(seen) == {"of a", "of b"}
    assert set(followed.log.node_runs) == {"a", "b"}
    assert [node.name for node in followed.log.cluster.nodes] == ["a", "b"]
    seen_once, errors = finish(read_logs(tails(), RunLog(RUN, AT_LAUNCH)))
    assert (texts(seen_once), errors) == ({"of a", "of b"}, {})


def test_the_logs_of_a_node_that_joined_are_collected(tmp_path: Path) -> None:
    finish(collect(tails(), RunLog(RUN, AT_LAUNCH), tmp_path))
    assert (tmp_path / "b" / "ranks" / "1.log").read_bytes() == b"of b\n"


def test_some_nodes_that_were_asked_for_stay_alone() -> None:
    log = RunLog(RUN, AT_LAUNCH, some_nodes=True)
    seen, _ = finish(follow(tails(), log))
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
    assert take("a", "peer-joined", peer="elsewhere") == ""
    take("b", "supervisor-up")
    assert log.first_cause() is None


def test_stop_verifies_a_node_that_this_machine_did_not_know_of() -> None:
    answers = {"a": {**STOPPED, "nodes": ["a", "b", "unknown"]}, "b": STOPPED}
    pool = FakePool(CLUSTER, {name: {"stop": [Message(head)]} for name, head in answers.items()})
    _, result = finish(stop(pool, RUN, AT_LAUNCH))
    assert [(node.node, node.gone) for node in result.nodes] == [("a", True), ("b", True)]
    pool = FakePool(CLUSTER, {"a": {"stop": [Message(answers["a"])]}})
    _, result = finish(stop(pool, RUN, AT_LAUNCH))
    assert result.exit_code == 3


def test_status_asks_a_node_that_this_machine_did_not_know_of() -> None:
    runs = {"a": part("a", nodes=["a", "b"]), "b": part("b")}
    pool = FakePool(CLUSTER, {n: {"status": [Message({"node": one})]} for n, one in runs.items()})
    _, view = finish(node_answers(pool, RUN, AT_LAUNCH))
    assert list(view.node_runs) == ["a", "b"]


def try_join(
    pool: FakePool, inventory: Cluster = CLUSTER, *, env_from: tuple[str, ...] = ()
) -> JoinResult:
    options = JoinOptions(source=Path(), environment={}, env_from=frozenset(env_from))
    again: Any = pool.again  # a FakePool is no Pool
    steps = join(inventory, again, RUN, AT_LAUNCH, [CLUSTER.node("b")], options)
    _, (result, joined) = finish(steps)
    assert joined == ()
    return result


def pool_of(status: Any, **answers: Any) -> FakePool:
    return FakePool(CLUSTER, {"a": {"status": status, **answers}})


def live() -> list[Message]:
    return [Message({"node": part("a", master=MASTER, world_size=1)})]


def test_the_master_refuses_with_a_hint() -> None:
    error = {"kind": "full", "message": "the run is full", "hint": "clusterctl status"}
    result = try_join(pool_of(live(), join=[Message({"error": error})]))
    (node,) = result.nodes
    assert (node.state, node.message, node.hint) == (
        "refused", "the run is full", "the node suggests: clusterctl status",
    )  # fmt: skip
    assert result.exit_code == 1
    assert result.document()["run"] == RUN


def test_a_run_that_is_over_or_silent_ends_the_verb() -> None:
    over = pool_of([Message({"node": part("a", "finished", master=MASTER)})])
    with pytest.raises(ClusterError, match="over: finished"):
        try_join(over)
    with pytest.raises(CouldNotTell, match="does not answer"):
        try_join(FakePool(CLUSTER, {}))
    lost = Reply.failed("a", NodeError("timeout", "answer"))
    with pytest.raises(CouldNotTell, match="does not answer"):
        try_join(pool_of(live(), join=lost))
    with pytest.raises(ClusterError, match="not in"):
        try_join(pool_of(live()), CLUSTER.with_nodes(()).with_nodes(CLUSTER.nodes[1:]))


def test_a_node_that_claims_to_be_the_master_is_not_asked() -> None:
    parts = {
        "a": part("a", master=MASTER, world_size=1, nodes=["a", "b"]),
        "b": part("b", master={**MASTER, "node": "b"}, world_size=1),
    }
    pool = FakePool(CLUSTER, {n: {"status": [Message({"node": one})]} for n, one in parts.items()})
    with pytest.raises(ClusterError, match="expected one master, found a, b"):
        try_join(pool)
    assert {request.op for _, request in pool.requests} == {"status"}


def test_a_node_cannot_ask_for_secrets_that_the_inventory_does_not_list() -> None:
    elastic = ElasticPlan(
        max_nodes=3, job=Job(command=("x",), env_from=("AWS_KEY",)), workdir=None, gpus=None,
        subnet="",
    )  # fmt: skip
    job = {"run": RUN, "master": MASTER, "link": {}, "hostfile": "", "elastic": plain(elastic)}
    pool = pool_of(live(), join=[Message({"job": job})])
    (node,) = try_join(pool).nodes
    assert "AWS_KEY" in node.message
    assert [request.op for _, request in pool.requests] == ["status", "join"]
    damaged = pool_of(live(), join=[Message({"job": {"run": RUN}})])
    assert "cannot be read" in try_join(damaged).nodes[0].message


def test_the_record_knows_who_joined(tmp_path: Path) -> None:
    records = Records(tmp_path)
    first = replace(PLAN, nodes=PLAN.nodes[:1])
    record = RunRecord(run=RUN, began=1.0, cluster=AT_LAUNCH, plan=plain(asdict(first)))
    records.write(record)
    plan = replace(node_plan("b", 1), device="cpu")
    for _ in range(2):  # it may be lost, and join again
        record = remember(records, record, [(CLUSTER.node("b"), plan)])
    kept = records.read("lab", RUN)
    assert kept is not None
    assert [node.name for node in kept.cluster.nodes] == ["a", "b"]
    assert [node["node"] for node in kept.plan["nodes"]] == ["a", "b"]
    assert kept.cluster.left_out == ()
