"""Which nodes go if others of the run do not reach them."""

from __future__ import annotations

import pytest

from clusterctl.node.supervisor.decide_next import cut_off

ORDER = ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("told", "idle", "out"),
    [
        ({"b": ["c"], "c": ["b"]}, [], {"c": "it does not reach b"}),
        ({"b": ["c", "d"], "c": ["b"], "d": ["b"]}, [], {"b": "it does not reach c, d"}),
        ({"b": ["e"], "e": ["b"]}, ["b"], {"b": "it does not reach e"}),
        ({"d": ["e"], "e": ["d"]}, ["d", "e"], {}),
        ({"b": ["c", "d"], "c": [], "d": []}, [], {}),
        ({"b": ["b", "gone"]}, [], {}),
    ],
    ids=["a tie", "the fewest", "a spare first", "two spares", "one word alone", "a lie"],
)
def test_the_fewest_nodes_go_that_leave_no_dead_link(
    told: dict[str, list[str]], idle: list[str], out: dict[str, str]
) -> None:
    assert cut_off(told, ORDER, idle) == out
