"""Picking nodes by name, range and count."""

from __future__ import annotations

from unittest.mock import ANY

import pytest

from clusterctl.errors import UsageError
from clusterctl.inventory import select
from clusterctl.inventory.cluster import Cluster, Node, Ssh
from clusterctl.inventory.select import named


def node(host: str, name: str | None = None) -> Node:
    return Node(host=host, name=name or host, ssh=Ssh())


HOSTS = ("gpu07", "gpu01", "gpu02", "gpu03", "10.0.0.5")
CLUSTER = Cluster(name="lab", nodes=tuple(node(host) for host in HOSTS), file="hosts.yaml")


def picked(nodes: str | None = None, exclude: str | None = None) -> list[str]:
    return [one.name for one in select(CLUSTER, nodes, exclude).nodes]


def test_nothing_asked_for_is_all() -> None:
    assert select(CLUSTER) == CLUSTER


def test_what_is_left_out_is_still_known() -> None:
    few = select(CLUSTER, "gpu01", None)
    assert [one.name for one in few.left_out] == ["gpu07", "gpu02", "gpu03", "10.0.0.5"]
    assert few.with_nodes(CLUSTER.nodes) == CLUSTER


@pytest.mark.parametrize(
    ("nodes", "exclude", "names"),
    [
        ("2", None, ["gpu07", "gpu01"]),
        (" 5 ", None, list(HOSTS)),
        ("gpu02", None, ["gpu02"]),
        ("gpu[01-03],gpu07", None, ["gpu07", "gpu01", "gpu02", "gpu03"]),
        ("10.0.0.5,gpu01", None, ["gpu01", "10.0.0.5"]),
        (None, "gpu07", ["gpu01", "gpu02", "gpu03", "10.0.0.5"]),
        ("2", "gpu[01-02]", ["gpu07", "gpu03"]),
        ("gpu[01-03]", "gpu02", ["gpu01", "gpu03"]),
    ],
)
def test_the_order_of_the_inventory_stays(
    nodes: str | None, exclude: str | None, names: list[str]
) -> None:
    assert picked(nodes, exclude) == names


def test_the_next_node_is_the_master_where_the_first_is_left_out() -> None:
    assert select(CLUSTER, None, "gpu07").master.name == "gpu01"


@pytest.mark.parametrize(
    ("nodes", "exclude", "message", "hint"),
    [
        ("9" * 5000, None, ANY, None),
        ("0", None, "--nodes: expected 1 to 5, found 0", "--nodes 5"),
        ("6", None, "--nodes: expected 1 to 5, found 6", "--nodes 5"),
        ("5", "gpu01", "--nodes: expected 1 to 4, found 5", "--nodes 4"),
        (
            "gpu[01-02,7]",
            None,
            '--nodes: expected nodes of hosts.yaml (gpu[07,01-03],10.0.0.5), found "gpu7"',
            "--nodes gpu[01-02,07]",
        ),
        (
            "gpu8",  # as close to gpu01 as to gpu02
            None,
            '--nodes: expected nodes of hosts.yaml (gpu[07,01-03],10.0.0.5), found "gpu8"',
            None,
        ),
        (
            None,
            "xyz",
            '--exclude: expected nodes of hosts.yaml (gpu[07,01-03],10.0.0.5), found "xyz"',
            None,
        ),
        (
            "gpu[3-1]",
            None,
            '--nodes: expected the smaller number first: 1-3, found "gpu[3-1]"',
            "--nodes gpu07",
        ),
        ("", None, '--nodes: expected a name on each side of a comma, found ""', "--nodes gpu07"),
        (
            "gpu01",
            "gpu01",
            "--nodes: expected a node that is not excluded, found only gpu01",
            "--nodes gpu07",
        ),
        (
            "1",
            "gpu[01-03,07],10.0.0.5",
            "--exclude: expected a node left, found none",
            "--exclude 10.0.0.5",
        ),
    ],
)
def test_what_is_not_there_is_a_usage_error(
    nodes: str | None, exclude: str | None, message: str, hint: str | None
) -> None:
    with pytest.raises(UsageError) as caught:
        select(CLUSTER, nodes, exclude)
    assert (str(caught.value), caught.value.hint) == (message, hint)


def test_a_host_of_several_entries_names_them_all() -> None:
    nodes = (node("127.0.0.1", "127.0.0.1_2201"), node("127.0.0.1", "127.0.0.1_2202"), node("b"))
    cluster = Cluster(name="lab", nodes=nodes)
    assert named(cluster, "127.0.0.1", option="--node") == nodes[:2]
    assert named(cluster, "127.0.0.1_[2202]", option="--node") == nodes[1:2]
