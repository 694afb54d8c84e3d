"""Faults are named, recorded, refused where they cannot be, and healed once."""

from __future__ import annotations

import pytest

from clusterctl.errors import UsageError
from clusterctl.sandbox import gpus, sandbox
from clusterctl.sandbox.faults import registry
from tests.conftest import MakeSandbox


def test_a_misspelt_fault_is_named() -> None:
    with pytest.raises(UsageError, match="frozn") as refused:
        registry.find("frozn", "node2")
    assert refused.value.hint == "clusterctl sandbox fault node2 frozen"


def test_what_loopback_cannot_have_is_refused(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox(nodes=1, backend="loopback")
    with pytest.raises(UsageError, match="loopback"):
        box.fault("node1", "shared-unmounted")
    assert box.faults() == []


@pytest.mark.parametrize(("kind", "value"), [("port-taken", "http"), ("gpu-hung", None)])
def test_a_fault_that_was_refused_leaves_nothing_to_heal(
    make_sandbox: MakeSandbox, kind: str, value: str | None
) -> None:
    box = make_sandbox(nodes=1, backend="loopback")
    box.fault("node1", "port-taken")
    with pytest.raises(UsageError, match="expected"):
        box.fault("node1", kind, value)
    assert [one.kind for one in box.heal()] == ["port-taken"]


def test_faults_are_remembered_by_other_processes(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox(nodes=2)
    box.fault("node2", "port-dropped")
    other = sandbox.find(box.name)
    assert [(one.node, one.kind, one.value) for one in other.faults()] == [
        ("node2", "port-dropped", "29500")
    ]
    assert len(other.heal()) == 1
    assert box.heal() == []


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(sorted(set(registry.FAULTS) - {"killed"}), id="all", marks=pytest.mark.soak),
        ["frozen", "gpu-lost", "hung-mount", "interfaces-renamed", "shared-unmounted"],
    ],
)
def test_a_host_can_lose_its_power_on_top_of_any_fault(
    make_sandbox: MakeSandbox, kinds: list[str]
) -> None:
    box = make_sandbox(nodes=len(kinds), gpus=gpus.parse("H100x2"))
    names = [host.name for host in box.hosts]
    for name, kind in zip(names, kinds, strict=True):
        box.fault(name, kind)
        box.fault(name, "killed")
    box.heal()
    for name, kind in zip(names, kinds, strict=True):
        said = box.run(["ssh", name, "ls -d /shared/code; nvidia-smi -L"]).stdout
        assert said.count("NVIDIA H100") == 2, kind
        assert "/shared/code" in said, kind
    box.down()
    assert not box.layout.root.exists()
