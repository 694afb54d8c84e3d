"""All checks over any facts there may be: findings that print, and unknown is never a pass."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import math
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from clusterctl.checks.all import every_check
from clusterctl.checks.machine.machines import SKEW_FAIL_S
from clusterctl.checks.registry import SSH
from clusterctl.facts.machine.system import SshStatus
from clusterctl.facts.network.pairwise import ConnectResult, PairwiseFacts
from clusterctl.facts.nodefacts import NodeFacts, from_document
from clusterctl.inventory.cluster import Cluster, Job, Node, Ssh
from clusterctl.model.from_json import DocumentError
from clusterctl.plan.launchers import LAUNCHERS
from clusterctl.report.check import print_check
from clusterctl.report.html.check import html_page
from clusterctl.report.html.frame import write
from clusterctl.verbs.preflight.check import CheckOptions, CheckResult, judge
from tests.checks.fixture_facts import read_cases
from tests.damage import ANY_TEXT, damaged_json

NAMES = ("a", "b", "c")
FIXTURES = sorted(Path(__file__).parent.glob("*/*.json"))
WORDS = (
    "10.0.0.1", "10.0.0.1/24", "10.0.0.0/8", "fd00::1/64", "::1/128", "127.0.0.1/8", "0.0.0.0/0",
    "169.254.1.1/16", "eth0", "lo", "docker0", "ib0", "/data", "/work", "a", "b", "master", "pair",
    "ok", "timeout", "refused", "foreign", "hostkey", "3.12.1", "3.9", "2.13.0+cu130", "12.8",
    "torch", "cpu", "rocm6.2", "port-29500", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG", "x86_64",
)  # fmt: skip
TEXTS = st.sampled_from(WORDS) | ANY_TEXT
INTEGERS = st.sampled_from([-(2**63), -1, 0, 1, 2, 22, 29500, 65536, 2**63]) | st.integers()

NEEDS_NO_FACT = {SSH, "environment.ranks", "job.ranks"}
"""Checks that pass a node of which nothing is known but that it answered."""


def any_of(wanted: Any) -> st.SearchStrategy[Any]:
    """Return values of an annotated type; of those that may be unknown, unknown often."""
    origin = get_origin(wanted)
    if origin is Literal:
        return st.sampled_from(get_args(wanted))
    if origin in {Union, types.UnionType}:
        inner = next(arm for arm in get_args(wanted) if arm is not type(None))
        return st.none() | any_of(inner)
    if origin is tuple:
        arms = get_args(wanted)
        if arms[-1] is Ellipsis:
            return st.lists(any_of(arms[0]), max_size=2).map(tuple)
        return st.tuples(*map(any_of, arms))
    if dataclasses.is_dataclass(wanted):
        return st.deferred(lambda: built(wanted))
    known = {str: TEXTS, int: INTEGERS, float: st.floats(), bool: st.booleans()}
    return known[wanted]


def built(wanted: Any) -> st.SearchStrategy[Any]:
    """Return values of a dataclass as JSON; each field is there or not."""
    hints = get_type_hints(wanted)
    must = {
        field.name
        for field in dataclasses.fields(wanted)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    return st.fixed_dictionaries(
        {name: any_of(hints[name]) for name in must},
        optional={name: any_of(hint) for name, hint in hints.items() if name not in must},
    )


def known_facts(listed: list[dict[str, Any]]) -> dict[str, NodeFacts]:
    """Return the facts of those nodes whose document holds any, of the others nothing."""
    found: dict[str, NodeFacts] = {}
    for name, one in zip(NAMES, listed, strict=False):
        try:
            document = json.loads(json.dumps({"nodes": [{**one, "node": name}]}))
            found |= from_document(document)
        except (DocumentError, TypeError):
            continue  # no address, no network, or another type
    return found


@functools.cache
def recorded() -> tuple[dict[str, Any], ...]:
    """Return the facts of every rule's fixtures, each of one node."""
    cases = [case["facts"] for path in FIXTURES for case in read_cases(path)]
    return tuple(one for case in cases for one in case)


@st.composite
def changed(draw: st.DrawFn) -> dict[str, Any]:
    """Return recorded facts, of which some are those of another recording or something else."""
    facts = {**draw(st.sampled_from(recorded())), **draw(st.sampled_from(recorded()))}
    if draw(st.booleans()):
        other = draw(damaged_json(facts, INTEGERS | TEXTS | st.none() | st.booleans()))
        return other if isinstance(other, dict) else {}
    return facts


NODES = st.builds(
    Node,
    host=st.sampled_from(["gpu1", "10.0.0.1", "fd00::5"]),
    name=st.just(""),
    ssh=st.just(Ssh(identity="/key")),
    gpus=st.none() | st.integers(0, 8),
    python=st.none() | st.just("/v/python"),
    workdir=st.none() | st.just("/work"),
    address=st.none() | st.sampled_from(["10.0.0.1", "fd00::1"]),
    state=st.none() | st.just("/state"),
    local=st.booleans(),
)
JOBS = st.builds(
    Job,
    launcher=st.sampled_from(list(LAUNCHERS)),
    command=st.sampled_from([(), ("train.py",), ("-m", "train")]),
    env=st.lists(st.tuples(st.sampled_from(["NCCL_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES"]), TEXTS))
    .map(dict).map(dict.items).map(tuple),
    needs=st.sampled_from([(), ("/data", "model")]),
    check=st.sampled_from([(), ("-m", "train", "--check")]),
    checkpoints=st.none() | st.just("out"),
)  # fmt: skip


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Return clusters of one to three nodes."""
    nodes = [draw(NODES) for _ in range(draw(st.integers(1, 3)))]
    return Cluster(
        name="lab",
        nodes=tuple(
            dataclasses.replace(node, name=name) for node, name in zip(nodes, NAMES, strict=False)
        ),
        shared=draw(st.sampled_from([(), ("/data",), ("/data", "/work")])),
        subnet=draw(st.none() | st.sampled_from(["10.0.0.0/24", "fd00::/64"])),
        master_port=draw(st.none() | st.just(29600)),
        same_machine=draw(st.booleans()),
        job=draw(JOBS),
    )


def judged(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> CheckResult:
    """Judge, print in every form, and hold what must hold of any verdict."""
    result = judge(cluster, facts, CheckOptions())
    json.loads(json.dumps(result.document()))
    # As standard output, which shows half a character as an escape.
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    print_check(Console(file=stream, width=80), result)
    html_page(result).encode("utf-8", "backslashreplace")

    passed = {(f.check, node) for f in result.findings if f.status == "pass" for node in f.nodes}
    names = {node.name for node in cluster.nodes}
    for finding in result.findings:
        assert set(finding.nodes) <= names
    for name, known in result.facts.items():
        for rule in every_check():
            assert rule.id == SSH or known.answered or (rule.id, name) not in passed
            if any(getattr(known, need) is None for need in rule.required_facts):
                applies = known.answered and rule.applies(known, cluster)
                assert not applies or (rule.id, name) not in passed, rule.id
        if ("node.clock", name) in passed:
            assert known.clock is not None
            assert math.isfinite(known.clock.offset_s)
            assert 0 <= known.clock.error_s <= SKEW_FAIL_S
        if ("node.arch", name) in passed:
            assert known.arch == result.facts[cluster.master.name].arch
    return result


def test_half_a_character_in_a_nodes_words_is_written_as_an_escape(tmp_path: Path) -> None:
    reach = SshStatus(state="lost", words="\ud800")
    result = judge(saved_before(), {"a": NodeFacts(node="a", reach=reach)}, CheckOptions())
    write(tmp_path / "page.html", html_page(result))
    assert "\\ud800" in (tmp_path / "page.html").read_text()


def saved_before() -> Cluster:
    node = Node(host="gpu1", name="a", ssh=Ssh(), gpus=0, workdir="/work")
    return Cluster(name="lab", nodes=(node,), shared=("/data",), job=Job(needs=("/data/model",)))


def test_a_path_that_nobody_looked_at_is_unknown_and_no_pass() -> None:
    result = judge(saved_before(), {"a": NodeFacts(node="a")}, CheckOptions())
    said = {finding.check: finding for finding in result.findings}
    for check in ("storage.shared", "storage.needs", "storage.writable"):
        assert said[check].status == "unknown"
        assert "do not have it" in said[check].found
        assert said[check].remedy == "clusterctl check"
        assert "answer" not in said[check].message
        assert "could not be read" not in said[check].message
    assert result.exit_code != 0


def test_a_node_that_is_left_out_now_is_not_blamed() -> None:
    told = ConnectResult(target="b", key="pair", address="10.0.0.2", port=1, state="refused")
    facts = {"a": NodeFacts(node="a", between=PairwiseFacts(connected=(told,)))}
    result = judge(saved_before(), facts, CheckOptions())
    assert "b" not in {name for finding in result.findings for name in finding.nodes}


@settings(max_examples=settings().max_examples // 4)
@given(clusters(), st.lists(changed(), max_size=3))
def test_recorded_facts_that_contradict_each_other(
    cluster: Cluster, listed: list[dict[str, Any]]
) -> None:
    judged(cluster, known_facts(listed))


@settings(max_examples=settings().max_examples // 10)
@given(clusters(), st.lists(built(NodeFacts), min_size=1, max_size=3))
def test_any_facts(cluster: Cluster, listed: list[dict[str, Any]]) -> None:
    judged(cluster, known_facts(listed))


@settings(max_examples=settings().max_examples // 2)
@given(clusters(), st.sampled_from(["ok", "timeout", "hostkey", "bad-output"]))
def test_nothing_known_is_no_pass(cluster: Cluster, state: str) -> None:
    """Also of paths that the inventory named after the facts were saved."""
    facts = {n.name: NodeFacts(node=n.name, reach=SshStatus(state=state)) for n in cluster.nodes}
    result = judged(cluster, facts)
    passed = {finding.check for finding in result.findings if finding.status == "pass"}
    assert passed <= NEEDS_NO_FACT, passed - NEEDS_NO_FACT
    assert result.exit_code != 0 or state == "ok"
