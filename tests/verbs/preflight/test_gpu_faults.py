"""`check` over real hosts with GPUs: healthy ones are well, a fault names its node and GPU only."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.sandbox import sandbox
from clusterctl.sandbox.backend import SandboxSpec
from clusterctl.sandbox.gpus import DRIVER, Gpus
from clusterctl.sandbox.sandbox import Sandbox
from tests.conftest import need_netns

CHECK = [sys.executable, "-m", "clusterctl", "check", "--json", "--only", "accelerator"]
WRONG = {"fail", "warn", "unknown"}

pytestmark = pytest.mark.netns


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    """Return four hosts with eight idle GPUs each."""
    need_netns()
    spec = SandboxSpec(nodes=4, gpus=Gpus(model="H100", count=8))
    made = sandbox.up(f"gpus{os.getpid()}", spec)
    yield made
    made.down()


def checked(box: Sandbox) -> tuple[int, list[dict[str, Any]]]:
    done = box.run(CHECK)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["findings"]


def log_of(box: Sandbox, node: str) -> Path:
    return box.backend.layout.host(node) / "bin" / "nvidia-smi.xml"


def test_eight_idle_gpus_at_pcie_generation_1_are_well_and_cost_no_warning(box: Sandbox) -> None:
    code, findings = checked(box)

    assert "<current_link_gen>1<" in log_of(box, "node1").read_text()
    assert [each for each in findings if each["status"] in WRONG] == []
    assert code == 0
    passed = {each["check"].partition(".")[2] for each in findings if each["status"] == "pass"}
    assert {"health", "memory", "throttle", "pcie", "fabric", "power", "twice"} <= passed


def off(tag: str) -> tuple[str, str]:
    name = f"clocks_event_reason_{tag}"
    return f"<{name}>Not Active</{name}>", f"<{name}>Active</{name}>"


FAULTS = {
    "accelerator.health": ("<gpu_recovery_action>None<", "<gpu_recovery_action>Reset<"),
    "accelerator.memory": ("<remapped_row_failure>No<", "<remapped_row_failure>Yes<"),
    "accelerator.throttle": off("hw_thermal_slowdown"),
    "accelerator.temperature": ("<gpu_temp>34 C<", "<gpu_temp>66 C<"),
    "accelerator.power": ("<current_power_limit>700.00 W<", "<current_power_limit>350.00 W<"),
    "accelerator.ecc": ("<current_ecc>Enabled<", "<current_ecc>Disabled<"),
    "accelerator.persistence": ("<persistence_mode>Enabled<", "<persistence_mode>Disabled<"),
    "accelerator.mig": ("<current_mig>Disabled<", "<current_mig>Enabled<"),
    "accelerator.compute-mode": ("<compute_mode>Default<", "<compute_mode>Prohibited<"),
    "accelerator.pcie": ("<current_link_width>16x<", "<current_link_width>8x<"),
    # On another node than `accelerator.memory`, which explains it.
    "accelerator.memory-history": (
        "<dram_uncorrectable>0</dram_uncorrectable>\n        <sram_threshold",
        "<dram_uncorrectable>4</dram_uncorrectable>\n        <sram_threshold",
    ),
    "accelerator.fabric": ("<state>Completed<", "<state>In Progress<"),
    "accelerator.driver": (f"<driver_version>{DRIVER}<", "<driver_version>550.54.15<"),
}

DRIVER_OF_ALL = "accelerator.driver"
"""It is a fault of the whole node."""


def test_each_fault_of_one_gpu_is_one_finding_on_its_node(box: Sandbox) -> None:
    names = [host.name for host in box.hosts]
    parts = {node: log_of(box, node).read_text().split("<gpu id=") for node in names}
    healthy = {node: "<gpu id=".join(each) for node, each in parts.items()}
    expected: set[tuple[str, str, tuple[int, ...]]] = {(DRIVER_OF_ALL, "node4", ())}
    places = [(node, gpu) for gpu in range(8) for node in ("node2", "node3")]
    for check, (old, new) in FAULTS.items():
        node, gpu = ("node4", -1) if check == DRIVER_OF_ALL else places.pop(0)
        assert old in parts[node][gpu + 1]
        parts[node][gpu + 1] = parts[node][gpu + 1].replace(old, new, 1)
        expected.add((check, node, (gpu,) if gpu >= 0 else ()))
    for node, each in parts.items():
        log_of(box, node).write_text("<gpu id=".join(each))
    try:
        code, findings = checked(box)
    finally:
        for node, text in healthy.items():
            log_of(box, node).write_text(text)

    wrong = [each for each in findings if each["status"] in WRONG]
    said = [(f["check"], *f["nodes"], tuple(f.get("gpus", ()))) for f in wrong]
    assert sorted(said) == sorted(expected)
    assert all(each["remedy"] for each in wrong)
    assert code == 1


def test_the_same_gpu_in_two_containers(box: Sandbox) -> None:
    log = log_of(box, "node3")
    healthy = log.read_text()
    log.write_text(log_of(box, "node1").read_text())
    try:
        code, findings = checked(box)
    finally:
        log.write_text(healthy)

    wrong = [each for each in findings if each["status"] in WRONG]
    assert {(each["check"], *each["nodes"]) for each in wrong} == {
        ("accelerator.twice", "node1", "node3")
    }
    assert code == 1
