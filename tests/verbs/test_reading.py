"""What each node is asked for."""

from __future__ import annotations

from clusterctl.facts.request import LISTENERS, read_arguments
from clusterctl.inventory.cluster import Cluster, Node, Ssh
from clusterctl.transport.fake import FakePool
from clusterctl.verbs.events import drive
from clusterctl.verbs.reading import Survey, read_facts, wanted_of
from clusterctl.wire import Message
from tests.verbs.runs import CLUSTER


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


def test_nodes_that_were_left_out_after_the_pool_was_made_are_not_asked() -> None:
    kept, dropped = CLUSTER.nodes
    pool = FakePool(CLUSTER, {node.name: {"survey": [Message({})]} for node in CLUSTER.nodes})
    facts = drive(read_facts(Survey(cluster=CLUSTER.with_nodes((kept,))), pool))
    assert list(facts) == [kept.name]
    assert dropped.name not in {name for name, _ in pool.requests}
