"""What each node is asked for."""

from __future__ import annotations

import math
import time
import zlib

import pytest

from clusterctl.facts.network.ports import LISTENERS
from clusterctl.facts.parse_facts import read_arguments
from clusterctl.facts.request import CLOCK_ROUNDS
from clusterctl.inventory.cluster import Cluster, Node, Ssh
from clusterctl.verbs.events import ignore
from clusterctl.verbs.preflight.collect_facts import (
    ClockProbe,
    FactsSession,
    collect_facts,
    fact_request,
)
from clusterctl.wire import Message
from tests.fake_pool import FakeCall, FakePool
from tests.verbs.run_answers import CLUSTER


def test_only_the_master_is_asked_which_ports_are_taken() -> None:
    nodes = tuple(Node(name=name, host=name, ssh=Ssh()) for name in ("a", "b"))
    for order in (nodes, nodes[::-1]):
        cluster = Cluster(name="lab", nodes=order)
        asked = [
            node.name
            for node in nodes
            if set(LISTENERS) <= set(read_arguments(fact_request(cluster, node))["files"])
        ]
        assert asked == [cluster.master.name]


def test_nodes_that_were_left_out_after_the_pool_was_made_are_not_asked() -> None:
    kept, dropped = CLUSTER.nodes
    told = {node.name: {"collect-facts": [Message({})]} for node in CLUSTER.nodes}
    pool = FakePool(CLUSTER, told)
    facts = collect_facts(FactsSession(cluster=CLUSTER.with_nodes((kept,))), pool, emit=ignore)
    assert list(facts) == [kept.name]
    assert dropped.name not in {name for name, _ in pool.requests}


@pytest.mark.parametrize(
    "junk",
    [[Message({"step": "prepare"})], [Message({"time": 1.0})] * (CLOCK_ROUNDS + 2)],
    ids=["a strange one", "more than were asked for"],
)
def test_a_node_that_says_what_it_was_not_asked_is_heard_no_further(junk: list[Message]) -> None:
    ready, facts = Message({"clock": "ready"}), Message({"answers": []}, zlib.compress(b""))
    pool = FakePool(
        CLUSTER,
        {"a": {"collect-facts": [ready, *junk, facts]}, "b": {"collect-facts": [ready, facts]}},
    )
    reaches = {
        name: told.reach
        for name, told in collect_facts(FactsSession(cluster=CLUSTER), pool, emit=ignore).items()
    }
    assert (reaches["a"].state, reaches["b"].state) == ("bad-output", "ok")
    assert "its reply is not a clusterctl message" in reaches["a"].words


def test_a_node_that_has_told_its_facts_may_wait_for_slower_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dues: dict[str, float] = {}
    monkeypatch.setattr(
        FakeCall, "set_deadline", lambda call, seconds: dues.update({call.node.name: seconds})
    )
    ready, facts = Message({"clock": "ready"}), Message({"answers": []}, zlib.compress(b""))
    told = [ready, Message({"time": 1.0}), facts]
    pool = FakePool(CLUSTER, {name: {"collect-facts": told} for name in "ab"})
    collect_facts(FactsSession(cluster=CLUSTER), pool, emit=ignore)
    assert dues == {"a": math.inf, "b": math.inf}


@pytest.mark.parametrize(
    ("way_s", "asked"),
    [(0.01, [{}, {"enough": True}]), (1.0, [{}] * CLOCK_ROUNDS)],
    ids=["near", "far"],
)
def test_a_clock_is_asked_until_it_is_known_well_enough(
    way_s: float, asked: list[dict[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "time", lambda: now)
    call = FakeCall(Node(name="a", host="a", ssh=Ssh()), [])
    clock = ClockProbe(began=0.0)
    for _ in range(CLOCK_ROUNDS):
        clock.ask(call)
        if "enough" in call.sent[-1].head:
            break
        now += 2 * way_s
        clock.receive(now - way_s + 7)
    else:
        clock.ask(call)  # the node expects no more
    assert [message.head for message in call.sent] == asked
    assert clock.best is not None
    assert clock.best.offset_s == pytest.approx(7)
    assert clock.best.error_s == pytest.approx(way_s)
