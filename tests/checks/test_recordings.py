"""Recordings of real GPUs, each as three equal nodes: only true findings, each with its cause."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterctl.checks.all import every_check
from clusterctl.checks.finding import Finding
from clusterctl.checks.registry import judge_all
from clusterctl.facts.parse_facts import parse_facts
from clusterctl.facts.request import FactRequest
from clusterctl.inventory import load
from clusterctl.network.choice import choose_network
from tests.facts.answering import answers

RECORDINGS = Path(__file__).parents[3] / "shared" / "recordings" / "nvidia-smi-q-x"
NODES = ("n1", "n2", "n3")
TRUE = {
    "a100-sxm4-v12": {("accelerator.mig", "fail", (0,))},
    "rtx-3080-v13": {("accelerator.busy", "warn", ())},
    "tesla-t4": {("accelerator.busy", "warn", ())},
    "gb200-lost": {("accelerator.memory", "fail", (0,)), ("accelerator.lost", "fail", (1,))},
    "gb200-ecc-injected": {("accelerator.memory", "fail", (0,))},
    "gb200-fabric-degraded": {("accelerator.fabric", "fail", (1,))},
}
"""What is wrong on the recorded machines, with its GPUs; nothing on the others."""


def judge(text: str, tmp_path: Path) -> list[Finding]:
    """Return what the rules on GPUs say of three nodes that print this."""
    others = {"kernel-log": {"lines": []}, "self": {"variables": {}}}
    printed = answers(commands={"nvidia-smi": text}, others=others)
    facts = {name: parse_facts(name, printed, FactRequest(), clock=None) for name in NODES}
    inventory = tmp_path / "hosts.yaml"
    inventory.write_text(json.dumps({"cluster": "lab", "nodes": list(NODES)}))
    cluster = load(inventory)
    # Three nodes with the same GPUs: that each has its own is another rule.
    rules = [
        rule
        for rule in every_check()
        if rule.id.startswith("accelerator.") and rule.id != "accelerator.twice"
    ]
    said = judge_all(rules, facts, choose_network(cluster, facts), cluster)
    return [finding for finding in said if finding.status not in {"pass", "skip"}]


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*.xml")), ids=lambda path: path.stem)
def test_a_recording_gives_its_true_findings_only(path: Path, tmp_path: Path) -> None:
    said = judge(path.read_text(), tmp_path)

    name = path.stem.removeprefix("qx-")
    assert {(each.check, each.status, each.gpus) for each in said} == TRUE.get(name, set())
    assert {node for each in said for node in each.nodes} in (set(), set(NODES))


def test_the_recorded_lost_gpu_fails_with_its_cause(tmp_path: Path) -> None:
    path = RECORDINGS / "gb200-lost.xml"
    if not path.exists():
        pytest.skip("the recordings are not beside this checkout")

    lost = [s for s in judge(path.read_text(), tmp_path) if s.check == "accelerator.lost"]

    assert {finding.found for finding in lost} == {"GPU is lost: 0000:0b:00.0"}
    assert all("reboot" in finding.remedy for finding in lost)
