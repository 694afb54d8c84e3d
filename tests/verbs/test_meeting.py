"""Whom nodes try, whatever order they answered in."""

from __future__ import annotations

from types import SimpleNamespace

from clusterctl.inventory.cluster import Cluster, Node, Ssh
from clusterctl.network.choice import Network
from clusterctl.verbs import meeting
from clusterctl.verbs.meeting import ALL_PAIRS


def test_of_many_nodes_each_tries_the_master_though_it_answered_last() -> None:
    names = [f"n{i}" for i in range(ALL_PAIRS + 4)]
    nodes = tuple(Node(host=name, name=name, ssh=Ssh()) for name in names)
    survey = SimpleNamespace(cluster=Cluster(name="lab", nodes=nodes), word="a" * 32)
    heard = meeting._Meeting(
        survey=survey,  # type: ignore[arg-type]
        network=Network(nodes=dict.fromkeys(names, SimpleNamespace(address="10.0.0.1"))),  # type: ignore[arg-type]
        facts={},
    )
    for name in reversed(names):
        key = "master" if name == names[0] else "pair"
        bound = {"key": key, "address": "10.0.0.1", "port": 1}
        heard.prepared[name] = {"bound": [bound], "written": []}
    for name in names[1:]:
        tried = [target["target"] for target in meeting._targets(heard, name)["targets"]]
        assert names[0] in tried
        assert len(tried) < ALL_PAIRS
