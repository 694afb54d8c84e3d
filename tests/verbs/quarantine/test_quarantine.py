"""Which nodes a launch takes, and whom `quarantine` lists, adds and removes."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.errors import LaunchRefused, UsageError
from clusterctl.inventory.cluster import Cluster, Node, Ssh
from clusterctl.model.quarantine import Quarantined
from clusterctl.verbs.quarantine import quarantine
from clusterctl.verbs.quarantine.quarantine import (
    add,
    choose,
    known_or_warned,
    left_out_notice,
    list_quarantine,
    quarantined,
    remove,
    with_quarantined,
)
from clusterctl.verbs.quarantine.store import FILE
from clusterctl.verbs.runs.records import RunRecord
from clusterctl.verbs.runs.run_status import view_of
from tests.verbs.run_answers import CLUSTER, RUN, node_run


def node(name: str) -> Node:
    return Node(host=name, name=name, ssh=Ssh(via="srun"))  # without a key to look up


LAB = Cluster(name="lab", nodes=tuple(map(node, ("gpu1", "gpu2", "gpu3", "gpu4"))), file="h.yaml")


def bad(*names: str) -> dict[str, Quarantined]:
    return {
        name: Quarantined(node=name, reason="lost", run="lab-1", since=0, until=9, age_s=3)
        for name in names
    }


def chosen(
    known: dict[str, Quarantined], nodes: str | None = None, exclude: str | None = None
) -> tuple[list[str], list[str]]:
    cluster, left_out = choose(LAB, nodes, exclude, known)
    assert {one.name for one in (*cluster.nodes, *cluster.left_out)} == {n.name for n in LAB.nodes}
    return [one.name for one in cluster.nodes], [one.node for one in left_out]


def test_a_launch_takes_the_nodes_that_are_not_in_quarantine() -> None:
    assert chosen({}) == (["gpu1", "gpu2", "gpu3", "gpu4"], [])
    assert chosen(bad("gpu1", "gpu3")) == (["gpu2", "gpu4"], ["gpu1", "gpu3"])
    assert chosen(bad("gpu1"), "gpu[1-2]") == (["gpu2"], ["gpu1"])
    assert chosen(bad("gpu1"), None, "gpu[1-2]") == (["gpu3", "gpu4"], [])
    replaced = {"gpu1": replace(bad("gpu1")["gpu1"], replaced=True)}
    assert chosen(replaced, "1") == (["gpu1"], [])


def test_a_number_of_nodes_counts_those_that_are_not_in_quarantine() -> None:
    assert chosen(bad("gpu1", "gpu3"), "2") == (["gpu2", "gpu4"], ["gpu1", "gpu3"])
    assert chosen(bad("gpu4"), "2") == (["gpu1", "gpu2"], [])
    assert chosen(bad("gpu2"), "1") == (["gpu1"], [])
    with pytest.raises(LaunchRefused) as refused:
        chosen(bad("gpu1", "gpu3"), "3")
    assert str(refused.value) == (
        "not launched: expected 3 nodes, found 2: gpu1, gpu3 are in quarantine"
    )
    assert refused.value.hint == (
        "why: clusterctl quarantine list\nif it is repaired: clusterctl quarantine remove gpu1"
    )
    with pytest.raises(UsageError, match="--nodes: expected 1 to 4, found 9"):
        chosen(bad("gpu1"), "9")
    with pytest.raises(UsageError, match="--nodes: expected 1 to 4, found 0"):
        chosen(bad("gpu1"), "0")


def test_a_spare_node_takes_no_place_of_a_node_in_quarantine() -> None:
    spared = replace(LAB, nodes=(*LAB.nodes[:3], replace(LAB.nodes[3], spare=True)))
    with pytest.raises(LaunchRefused, match="expected 3 nodes, found 2: gpu2 is in quarantine"):
        choose(spared, "3", None, bad("gpu2"))
    with pytest.raises(LaunchRefused, match="expected 1 node, found 0"):
        choose(spared, "1", None, bad("gpu1", "gpu2", "gpu3"))
    cluster, _ = choose(spared, "2", None, bad("gpu1"))
    assert [one.name for one in cluster.nodes] == ["gpu2", "gpu3"]
    cluster, _ = choose(spared, "3", None, bad("gpu2"), spares=False)  # --spares 0
    assert [one.name for one in cluster.nodes] == ["gpu1", "gpu3", "gpu4"]


def test_a_launch_without_a_node_that_is_left_is_refused() -> None:
    with pytest.raises(LaunchRefused, match="expected 1 node, found 0: gpu2 is in quarantine"):
        chosen(bad("gpu2"), "gpu2")


def test_what_is_left_out_is_told_with_its_run_and_what_to_type() -> None:
    notice = left_out_notice(bad("gpu1")["gpu1"])
    assert (
        notice.text == "left out: gpu1: in quarantine: lost (run lab-1, just now; 6 seconds left)"
    )
    assert notice.hint == "if it is repaired: clusterctl quarantine remove gpu1"


def test_nodes_are_added_listed_and_removed(tmp_path: Path) -> None:
    before = time.time()
    added = add(LAB, "gpu[1-2]", tmp_path, reason="fans", seconds=60)
    assert [(one.node, one.reason) for one in added] == [("gpu1", "fans"), ("gpu2", "fans")]
    assert before + 60 <= added.nodes[0].until <= time.time() + 60
    add(LAB, "gpu3", tmp_path)
    listed = list_quarantine(LAB, tmp_path)
    assert listed.nodes[0].node == "gpu3"  # it stays longest
    assert listed.nodes[0].reason == quarantine.BY_HAND
    assert len(listed) == 3

    found, others = remove(LAB, "gpu[1,4]", tmp_path)
    assert ([one.node for one in found], others) == (["gpu1"], ("gpu4",))
    assert sorted(quarantined(LAB, tmp_path)) == ["gpu2", "gpu3"]
    for spec in ("gpu9", "gpu1,nope", "gpu[2"):
        with pytest.raises(UsageError, match="clusterctl quarantine remove"):
            remove(LAB, spec, tmp_path)
        with pytest.raises(UsageError, match="clusterctl quarantine add"):
            add(LAB, spec, tmp_path)


def test_a_node_that_left_the_inventory_is_listed_and_can_be_removed(tmp_path: Path) -> None:
    add(LAB, "gpu1,gpu2", tmp_path)
    smaller = replace(LAB, nodes=LAB.nodes[1:])
    shown = {one.node: one.absent for one in list_quarantine(smaller, tmp_path)}
    assert shown == {"gpu1": True, "gpu2": False}
    found, _ = remove(smaller, "gpu[1-2]", tmp_path)
    assert {one.node for one in found} == {"gpu1", "gpu2"}
    assert len(list_quarantine(LAB, tmp_path)) == 0


@pytest.mark.parametrize("kind", ["proven", "discovered", "none"])
def test_a_run_that_only_its_nodes_know_puts_no_node_in(tmp_path: Path, kind: str) -> None:
    """A node could invent it."""
    noted = {"b": {"why": "Xid 79", "time": time.time()}}
    parts = {"a": node_run("a", blamed=noted), "b": node_run("b")}
    cluster = replace(CLUSTER, nodes=tuple(node(one.name) for one in CLUSTER.nodes))
    view = view_of(RUN, cluster, parts, {})
    record = RunRecord(run=RUN, began=5.0, cluster=cluster, discovered=kind == "discovered")
    shown = with_quarantined(cluster, None if kind == "none" else record, view, tmp_path)
    put_in = ["b"] if kind == "proven" else []
    assert [one.node for one in shown.quarantined] == put_in
    assert list(quarantined(cluster, tmp_path)) == put_in


def test_a_damaged_file_costs_a_check_only_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_text("{")
    assert known_or_warned(LAB, tmp_path) is None
    assert "it is damaged" in caplog.text
    assert f"mv {tmp_path / FILE}" in caplog.text
