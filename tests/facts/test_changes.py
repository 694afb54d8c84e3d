"""What changed on the nodes between two checks."""

from __future__ import annotations

from dataclasses import replace

from clusterctl.facts.changes import changes
from clusterctl.facts.gpu.accelerators import Gpu, Gpus
from clusterctl.facts.machine.system import SshStatus
from clusterctl.facts.network.interfaces import Interface
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.software.python import Package, Python

BEFORE = NodeFacts(
    node="a",
    boot_id="1",
    kernel="6.1",
    gpus=Gpus(
        tool="nvidia-smi",
        driver="560.35",
        devices=tuple(Gpu(index=i, name="H100", uuid=f"GPU-{i}") for i in range(2)),
    ),
    python=Python(
        asked="python3", version="3.11", packages=(Package(name="torch", version="2.8"),)
    ),
    interfaces=(Interface(name="eth0", addresses=("10.0.0.1/24",), mtu=9000),),
)


def told(before: NodeFacts, now: NodeFacts) -> list[str]:
    return [change.text() for change in changes({"a": before}, {"a": now})]


def test_nothing_changed() -> None:
    assert told(BEFORE, BEFORE) == []


def test_what_was_updated_replaced_or_restarted_is_told() -> None:
    assert BEFORE.gpus
    assert BEFORE.python
    now = replace(
        BEFORE,
        boot_id="2",
        gpus=replace(BEFORE.gpus, driver="570.86", devices=BEFORE.gpus.devices[:1]),
        python=replace(BEFORE.python, packages=(Package(name="peft", version="0.21"),)),
        interfaces=(Interface(name="eth0", addresses=("10.0.0.1/24",), mtu=1500),),
    )

    assert told(BEFORE, now) == [
        "restarted",
        "GPUs 2 x H100 → 1 x H100",
        "driver 560.35 → 570.86",
        "GPU 1 GPU-1 → none",
        "torch 2.8 → none",
        "peft none → 0.21",
        "MTU of eth0 9000 → 1500",
    ]


def test_what_is_unknown_at_one_time_is_no_change() -> None:
    unknown = replace(BEFORE, boot_id=None, gpus=None, python=None, interfaces=None)
    silent = NodeFacts(node="a", reach=SshStatus(state="timeout"))

    assert told(BEFORE, unknown) == told(unknown, BEFORE) == []
    assert told(BEFORE, silent) == told(silent, BEFORE) == []


def test_an_interface_that_came_or_went_is_told_by_its_addresses_alone() -> None:
    renamed = Interface(name="eth7", addresses=("10.0.0.1/24", "fe80::1/64"), mtu=1500)
    bridge = Interface(name="veth3", addresses=("fe80::2/64",), mtu=1500)

    assert told(BEFORE, replace(BEFORE, interfaces=(renamed, bridge))) == [
        "addresses of eth0 10.0.0.1/24 → none",
        "addresses of eth7 none → 10.0.0.1/24",
    ]


def test_equal_changes_fold_over_nodes() -> None:
    nodes = {name: replace(BEFORE, node=name) for name in ("a", "b", "c")}
    now = {name: replace(node, kernel="6.2") for name, node in nodes.items() if name != "b"}

    (change,) = changes(nodes, now)

    assert (change.nodes, change.text()) == (("a", "c"), "kernel 6.1 → 6.2")
