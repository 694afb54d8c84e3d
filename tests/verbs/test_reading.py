"""What each node is asked for."""

from __future__ import annotations

from clusterctl.facts.request import LISTENERS, read_arguments
from clusterctl.inventory.cluster import Cluster, Node, Ssh
from clusterctl.verbs.reading import wanted_of


def test_only_the_master_is_asked_which_ports_are_taken() -> None:
    nodes = tuple(Node(name=name, host=name, ssh=Ssh()) for name in ("a", "b"))
    for order in (nodes, nodes[::-1]):
        cluster = Cluster(name="lab", nodes=order)
        asked = [
            node.name
            for node in nodes
            if set(LISTENERS) <= set(read_arguments(wanted_of(cluster, node))["files"])
        ]
        assert asked == [cluster.master.name]
