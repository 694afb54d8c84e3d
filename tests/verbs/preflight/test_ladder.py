"""What a node tells of `check --deep`: any answer of one node is facts, and no crash."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.facts.network.pairwise import PairRate
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.model.from_json import from_json
from clusterctl.network.choice import Network
from clusterctl.transport.interface import Reply
from clusterctl.verbs.preflight import ladder
from clusterctl.wire import Message, plain
from tests.verbs.run_answers import CLUSTER

CLIMB = ladder._Climb(
    cluster=CLUSTER, network=Network(), names=("a", "b"), rungs=ladder.RUNGS, rails=1
)
RAIL = {"index": 0, "right": True, "gbps": 90.0, "pairs": [None, [1e-5, 100]], "backend": "nccl"}
SUM = {"backend": "gloo", "right": True, "gbps": 9.5, "block_bytes": 4096}


def told(printed: str) -> NodeFacts:
    """Return the facts of node a after its ladder printed this."""
    data = printed.encode("utf-8", "surrogatepass")
    head = {"answers": [["command:ladder", "ok", len(data), 0, 1.0, ""]]}
    reply = Reply(node="a", messages=(Message(head, zlib.compress(data)),))
    return ladder._known(NodeFacts(node="a"), reply, CLIMB)


def test_a_node_tells_of_its_sum_and_its_pairs() -> None:
    facts = told(json.dumps({"sum": SUM, "rails": [RAIL], "blamed": [1]}))

    assert facts.ladder is not None
    assert (facts.ladder.error, facts.ladder.blamed) == ("", ("b",))
    assert [rail.fastest_gbps for rail in facts.ladder.rails] == [100.0]
    pairs = (PairRate(peer="b", round_trip_s=1e-5, gbps=100.0),)
    assert facts.across is not None
    assert facts.across.pairs == pairs
    assert facts.collective is not None
    assert (facts.collective.gbps, facts.collective.pairs) == (9.5, pairs)


@pytest.mark.parametrize(
    "document",
    [
        {"rails": [{**RAIL, "pairs": [{}]}]},
        {"rails": [{**RAIL, "pairs": [None, [1.0]]}]},
        {"rails": [{**RAIL, "pairs": [None, [1e-5, 10**400]]}]},
        {"rails": [{**RAIL, "pairs": [None, [1e-5, float("nan")]]}]},
        {"rails": [{**RAIL, "gbps": 10**400}]},
        {"rails": [{**RAIL, "nccl": [5]}]},
        {"sum": {**SUM, "gbps": 10**400}},
        {"sum": {**SUM, "gbps": float("inf")}},
        {"sum": {**SUM, "pairs": 5}},
        {"sum": [SUM]},
        {"inside": [5]},
        {"blamed": [7]},
    ],
)
def test_a_garbled_answer_is_an_error_of_that_node(document: dict[str, Any]) -> None:
    facts = told(json.dumps(document))

    assert facts.ladder is not None
    assert facts.ladder.error
    assert facts.collective is not None
    assert not facts.collective.right
    assert facts.across is None


def test_the_error_shows_a_part_of_a_huge_value() -> None:
    for value in ("x" * 100_000, [[5] * 9] * 9999, {"x" * 9999: "y" * 9999}):
        facts = told(json.dumps({"sum": {**SUM, "gbps": value}}))
        assert facts.ladder is not None
        assert 0 < len(facts.ladder.error) < 1000


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
) | st.just(10**400)


def with_one_spoiled(
    whole: dict[str, Any], parts: dict[str, st.SearchStrategy[Any]]
) -> st.SearchStrategy[dict[str, Any]]:
    """Return the document with one of its parts replaced."""
    return st.sampled_from(sorted(parts)).flatmap(
        lambda name: st.builds(lambda value: {**whole, name: value}, parts[name])
    )


PAIRS = st.lists(st.none() | st.lists(VALUES, max_size=3) | VALUES, max_size=3)
RANK = {"pairs": PAIRS | VALUES, "gbps": VALUES, "nccl": VALUES | st.lists(VALUES), "error": VALUES}
RAILS = st.lists(VALUES | with_one_spoiled(RAIL, RANK), max_size=3)


@given(with_one_spoiled({"sum": SUM, "rails": [RAIL]}, {
    "sum": VALUES | with_one_spoiled(SUM, RANK), "rails": VALUES | RAILS,
    "inside": VALUES | RAILS, **dict.fromkeys(("blamed", "gpus", "dcgm", "rungs"), VALUES),
}))  # fmt: skip
def test_any_answer_of_a_node_is_facts_that_can_be_saved(document: dict[str, Any]) -> None:
    facts = told(json.dumps(document))

    assert from_json(NodeFacts, json.loads(json.dumps(plain(facts))), "facts") == facts
