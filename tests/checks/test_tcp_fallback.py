"""NCCL fell back to TCP, which its speed and its missing pairs show, too: that is one finding."""

from __future__ import annotations

import json
from pathlib import Path

from clusterctl.checks.all import every_check
from clusterctl.checks.network.collectives import ACROSS, RAILS, TRANSPORT
from clusterctl.checks.registry import judge_all
from clusterctl.facts.nodefacts import from_document
from clusterctl.inventory import load
from clusterctl.network.choice import choose_network
from tests.checks.fixture_facts import read_cases

CASE = Path(__file__).parent / "deep.transport" / "tcp-though-infiniband-is-up.json"


def judged(tmp_path: Path, gbps: float, fastest: float | None) -> dict[str, list[str]]:
    """Return the worst findings of the checks on rails, by node, if the second one uses TCP."""
    case = read_cases(CASE)[0]
    for node in case["facts"]:
        node["across"] = {"backend": "nccl", "right": True, "gbps": gbps}
        node["across"]["block_bytes"] = 1 << 28
    for rail in case["facts"][1]["ladder"]["rails"]:
        rail["fastest_gbps"] = fastest
    inventory = tmp_path / "hosts.yaml"
    inventory.write_text(json.dumps(case["inventory"]))
    cluster, facts = load(inventory), from_document({"nodes": case["facts"]})
    rules = [rule for rule in every_check() if rule.id in {RAILS, TRANSPORT, ACROSS}]
    found = judge_all(rules, facts, choose_network(cluster, facts), cluster)
    wrong = [one for one in found if one.status in {"fail", "warn", "unknown"}]
    return {one.check: list(one.nodes) for one in wrong}


def test_a_fallback_to_tcp_is_reported_once(tmp_path: Path) -> None:
    """The others' network cards are not to blame either."""
    assert judged(tmp_path, 20.0, 6.0) == {"deep.transport": ["10.0.0.2"]}


def test_a_fallback_to_tcp_is_reported_also_if_it_left_no_time_for_pairs(tmp_path: Path) -> None:
    assert judged(tmp_path, 20.0, None) == {"deep.transport": ["10.0.0.2"]}


def test_a_network_that_is_slow_even_for_tcp_is_reported_where_nothing_explains_it(
    tmp_path: Path,
) -> None:
    found = judged(tmp_path, 0.5, None)

    assert found == {"deep.transport": ["10.0.0.2"], "deep.across": ["10.0.0.1"]}
