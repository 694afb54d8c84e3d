"""The nodes of a run as its master counts them."""

from __future__ import annotations

from typing import Any, cast

from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.supervisor.members import Members


def members(*, least: int = 2, most: int = 3, **more: Any) -> Members:
    job = {
        "node_rank": 0,
        "min_nodes": least,
        "elastic": {"max_nodes": most},
        "master": {"node": "a"},
        "workers": ["b"],
        **more,
    }
    return Members(cast("NodeJob", job))


def kinds(one: Members, node: str) -> list[str]:
    return [refusal.kind for refusal in one.refusal(node)]


def test_a_new_node_gets_the_next_number_and_counts_once_it_is_there() -> None:
    one = members()
    assert (kinds(one, "c"), one.admit("c"), one.nodes) == ([], 2, ["a", "b", "c"])
    assert not one.leave("b")  # c has not come: too few are left
    one.arrive("c")
    assert (kinds(one, "c"), kinds(one, "d")) == (["joined"], [])


def test_places_that_were_given_count_against_the_most() -> None:
    one = members()
    one.admit("c")
    assert (kinds(one, "d"), kinds(one, "c")) == (["full"], [])
    assert one.withdraw("c")
    assert (kinds(one, "d"), one.nodes, one.withdraw("c")) == ([], ["a", "b"], False)


def test_a_lost_node_keeps_its_number_and_is_known_if_it_does_not_come() -> None:
    one = members(least=1, most=2)
    assert kinds(one, "b") == ["joined"]
    assert one.leave("b")
    assert (kinds(one, "b"), one.admit("b")) == ([], 1)
    assert one.withdraw("b")
    assert one.nodes == ["a", "b"]


def test_nobody_joins_a_run_that_is_not_elastic_or_from_a_worker() -> None:
    assert kinds(members(least=0, elastic=None), "c") == ["not-elastic"]
    assert kinds(members(node_rank=1), "c") == ["not-elastic"]
