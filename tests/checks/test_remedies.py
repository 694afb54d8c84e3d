"""A remedy is typed into a shell: whatever a node says of itself is one word in it."""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.checks.all import every_check
from clusterctl.checks.registry import CHECKS, judge_all
from clusterctl.errors import ClusterError
from clusterctl.facts.nodefacts import NodeFacts, from_document
from clusterctl.network.choice import choose_network
from tests.checks.fixture_facts import Case, cases_of

EVIL = "%; touch /tmp/pwned $(id) `id` | sh & 'x' \""
"""Follows a value as a node may give it; the sign makes it the zone of an IPv6 address."""

OURS = frozenset({"node", "hint"})
"""Fields that the controller writes itself."""

QUOTED = frozenset(
    {
        "accelerator.busy", "accelerator.driver", "deep.pairs",
        "environment.names", "environment.values", "job.check", "job.container",
        "job.packages", "network.bond",
        "network.errors", "network.flaps", "network.full-size", "network.link",
        "network.master-reach", "network.pairs", "network.rdma-fabric",
        "network.rdma-firmware", "network.rdma-gids", "network.rdma-links", "network.rdma-ports",
        "network.route", "network.subnet", "node.hostname", "node.ipc", "node.python",
        "node.session", "node.updates", "node.user", "python.activated", "python.cuda",
        "python.found", "python.launcher", "python.packages", "python.shadowed", "python.torch",
        "python.version", "storage.room",
        "storage.caches", "storage.writable",
    }
)  # fmt: skip
"""Checks whose remedies have words of a node in them."""


def fields(value: Any) -> Iterator[str]:
    """Yield the names of the fields that hold a text."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in inner:
        if isinstance(one, str) or (isinstance(one, list) and any(isinstance(e, str) for e in one)):
            yield str(key)
        if isinstance(one, (dict, list)):
            yield from fields(one)


def spoiled(value: Any, field: str, *, within: bool = False) -> Any:
    """Return the facts with each text of this field made hostile."""
    if isinstance(value, dict):
        return {key: spoiled(one, field, within=key == field) for key, one in value.items()}
    if isinstance(value, list):
        return [
            spoiled(one, field, within=within or str(n) == field) for n, one in enumerate(value)
        ]
    return value + EVIL if within and isinstance(value, str) else value


def hostile(case: Case) -> Iterator[tuple[str, dict[str, NodeFacts]]]:
    """Yield each field that holds a text with the facts in which that is made hostile.

    Such a value may be none that a fact may have.
    """
    said = from_document({"nodes": case.facts})
    within = [{key: set(fields({key: one})) for key, one in node.items()} for node in case.facts]
    for field in sorted({name for node in within for names in node.values() for name in names}):
        if field in OURS:
            continue
        with suppress(ClusterError, ValueError):
            facts = {}
            for node, names in zip(case.facts, within, strict=True):
                part = {key: node[key] for key in node if field in names[key]}
                read, name = read_spoiled(json.dumps(part), field), str(node["node"])
                facts[name] = replace(said[name], **{key: getattr(read, key) for key in part})
            yield field, facts


@functools.lru_cache(1000)
def read_spoiled(part: str, field: str) -> NodeFacts:
    """Return what a part of a node's facts is with this field made hostile; many nodes are alike.

    Raises:
        ClusterError: It is none that facts may be.
    """
    document = {"node": "", **spoiled(json.loads(part), field)}
    (read,) = from_document({"nodes": [document]}).values()
    return read


@pytest.mark.parametrize("identity", [check.id for check in every_check()])
def test_nothing_that_a_node_says_is_more_than_a_word_of_a_remedy(identity: str) -> None:
    reached = False
    for case in cases_of(identity):
        for field, facts in hostile(case):
            try:
                network = choose_network(case.cluster, facts)
                said = judge_all([CHECKS[identity]], facts, network, case.cluster)
            except (ClusterError, ValueError):
                continue  # such a value is none that a fact may have
            for finding in said:
                assert_one_word(finding.remedy, f"{case.name}: {field}")
                reached |= "pwned" in finding.remedy
    assert reached == (identity in QUOTED)


def assert_one_word(remedy: str, case: str) -> None:
    if "pwned" in remedy:
        words = [word for word in shlex.split(remedy) if "pwned" in word]
        assert all(EVIL in word for word in words), f"{case}: {remedy}"
