"""How a verdict comes from rules: causes hide effects, unknown is no pass, equal findings fold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.checks.all import every_check
from clusterctl.checks.finding import Finding, Status, fail, fold_findings, skip
from clusterctl.checks.others import highest_of_most_frequent, most_frequent, outliers
from clusterctl.checks.registry import CHECKS, SSH, Check, Facts, exit_code, judge_all
from clusterctl.facts.gpu.accelerators import Gpu, Gpus
from clusterctl.facts.machine.system import SshStatus
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster, Node, Ssh
from clusterctl.network.choice import Network, choose_network

ROOT = Path(__file__).parents[2]
NAMES = ("a", "b", "c")
CLUSTER = Cluster(name="lab", nodes=tuple(Node(host=n, name=n, ssh=Ssh()) for n in NAMES))
FACTS = {name: NodeFacts(node=name) for name in NAMES}


def says(identity: str, status: Status, *nodes: str, after: tuple[str, ...] = ()) -> Check:
    def judge(_facts: Facts, _network: Network, _cluster: Cluster) -> Iterator[Finding]:
        for node in nodes:
            yield Finding(check=identity, status=status, nodes=(node,), message="m")

    return Check(id=identity, title=identity, why="", judge=judge, explained_by=after)


def judged(*rules: Check, facts: Facts = FACTS) -> set[tuple[str, str, tuple[str, ...]]]:
    found = judge_all(rules, facts, Network(), CLUSTER)
    return {(finding.check, finding.status, finding.nodes) for finding in found}


def test_equal_findings_fold_and_the_worst_comes_first() -> None:
    one = Finding(check="x", status="warn", nodes=("a",), message="m")
    two = Finding(check="x", status="warn", nodes=("b",), message="m")
    bad = Finding(check="y", status="fail", nodes=("a",), message="m")

    assert [(f.check, f.nodes) for f in fold_findings([one, two, bad])] == [
        ("y", ("a",)),
        ("x", ("a", "b")),
    ]


def test_gpus_of_a_node_fold_and_nodes_fold_where_the_same_gpus_are_meant() -> None:
    hot = [
        Finding(status="fail", nodes=(node,), message="hot", remedy="-i {gpus}", gpus=(gpu,))
        for node, gpus in (("a", (1, 0)), ("b", (0, 1)), ("c", (7,)))
        for gpu in gpus
    ]

    assert [(f.nodes, f.gpus, f.remedy) for f in fold_findings(hot)] == [
        (("a", "b"), (0, 1), "-i 0,1"),
        (("c",), (7,), "-i 7"),
    ]


def test_a_command_needs_no_sudo_where_the_login_is_root() -> None:
    def judge(_facts: Facts, _network: Network, _cluster: Cluster) -> Iterator[Finding]:
        remedy = "sudo swapoff -a && sudo swapon -a"
        yield Finding(status="warn", nodes=NAMES, message="m", remedy=remedy)

    facts = {**FACTS, "a": NodeFacts(node="a", uid=0), "b": NodeFacts(node="b", uid=1000)}
    rule = Check(id="x", title="x", why="", judge=judge)
    found = judge_all([rule], facts, Network(), CLUSTER)

    assert [(f.nodes, f.remedy) for f in found] == [
        (("a",), "swapoff -a && swapon -a"),
        (("b", "c"), "sudo swapoff -a && sudo swapon -a"),
    ]


def test_an_effect_is_not_said_where_its_cause_was() -> None:
    cause = says("cause", "fail", "a")
    effect = says("effect", "fail", "a", "b", after=("cause",))

    assert judged(cause, effect) == {
        ("cause", "fail", ("a",)),
        ("cause", "pass", ("b", "c")),
        ("effect", "fail", ("b",)),
        ("effect", "pass", ("c",)),
    }


def test_the_effect_of_an_effect_is_not_said_either() -> None:
    rules = (
        says("one", "fail", "a"),
        says("two", "fail", "a", after=("one",)),
        says("three", "fail", "a", after=("two",)),
    )

    assert {check for check, status, _ in judged(*rules) if status == "fail"} == {"one"}


def test_a_warning_hides_nothing() -> None:
    found = judged(says("cause", "warn", "a"), says("effect", "fail", "a", after=("cause",)))

    assert ("effect", "fail", ("a",)) in found


def test_a_skip_hides_the_effects_and_one_with_a_value_is_a_note_that_hides_nothing() -> None:
    def judge(_facts: Facts, _network: Network, _cluster: Cluster) -> Iterator[Finding]:
        yield skip("a", "it has seen the cause")
        yield skip("b", "there was no time for more", found="1 of 2")

    cause = Check(id="cause", title="x", why="", judge=judge)
    effect = says("effect", "fail", *NAMES, after=("cause",))

    assert ("effect", "fail", ("b", "c")) in judged(cause, effect)


def test_a_cause_is_judged_before_its_effects() -> None:
    order = [check.id for check in every_check()]
    early = [
        (check.id, cause)
        for check in every_check()
        for cause in check.explained_by
        if order.index(cause) > order.index(check.id)
    ]

    assert not early


def test_a_dead_node_is_said_once_and_the_others_are_judged() -> None:
    facts = {**FACTS, "c": NodeFacts(node="c", reach=SshStatus(state="timeout"))}
    found = judged(says(SSH, "fail", "c"), says("other", "fail", "a", "c"), facts=facts)

    assert found == {
        (SSH, "fail", ("c",)),
        (SSH, "pass", ("a", "b")),
        ("other", "fail", ("a",)),
        ("other", "pass", ("b",)),
    }


def test_the_exit_code_follows_the_worst_status() -> None:
    assert exit_code(["pass", "skip", "warn"]) == 0
    assert exit_code(["pass", "warn"], strict=True) == 1
    assert exit_code(["pass", "skip"], strict=True) == 0
    assert exit_code(["unknown", "warn"]) == 3
    assert exit_code(["unknown", "fail"]) == 1


@pytest.mark.parametrize("rule", every_check(), ids=lambda rule: rule.id)
def test_every_check_says_how_it_is_fixed_and_where_its_facts_are_from(rule: Check) -> None:
    assert rule.fix.endswith(".")
    if rule.source.startswith("docs/"):
        assert (ROOT / rule.source).is_file()
    else:
        assert re.fullmatch(r"(https://\S+)?", rule.source)


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> dict[str, Check]:
    """Return an empty registry."""
    registry: dict[str, Check] = {}
    monkeypatch.setattr("clusterctl.checks.registry.CHECKS", registry)
    return registry


def test_a_rule_names_what_it_needs(rules: dict[str, Check]) -> None:
    @Check("all", title="x", why="")
    def of_all(cluster: Cluster, facts: Facts) -> Iterator[Finding]:
        yield fail(tuple(facts), cluster.name)

    @Check("node", title="x", why="")
    def of_node(node: NodeFacts) -> Iterator[Finding]:
        yield fail(node.node, "m", found=str(node.uid))

    @Check("gpu", title="x", why="")
    def of_gpu(node: NodeFacts, gpu: Gpu) -> Iterator[Finding]:
        yield fail(node.node, "m", found=gpu.name)

    lost = Gpu(index=1, name="lost", lost="GPU is lost")
    gpus = Gpus(tool="nvidia-smi", devices=(Gpu(index=0, name="H100"), lost))
    facts = {"a": NodeFacts(node="a", uid=1, gpus=gpus), "b": NodeFacts(node="b", uid=2)}
    said = [f for rule in rules.values() for f in rule.judge(facts, Network(), CLUSTER)]

    assert [(f.nodes, f.found or f.message) for f in said] == [
        (("a", "b"), "lab"), (("a",), "1"), (("b",), "2"), (("a",), "H100"),
    ]  # fmt: skip


def test_a_rule_that_names_something_else_is_a_fault_of_the_program(
    rules: dict[str, Check],
) -> None:
    def misspelled(nodes: Facts) -> Iterator[Finding]:
        yield fail(tuple(nodes), "m")

    with pytest.raises(AssertionError):
        Check("x", title="x", why="")(misspelled)
    assert not rules


@pytest.mark.parametrize(
    ("values", "first", "highest"),
    [([], None, None), ([1], 1, 1), ([1, 2, 2], 2, 2), ([1, 2], 1, 2), ([3, 3, 9, 9], 3, 9)],
)
def test_the_most_frequent_value(values: list[int], first: int | None, highest: int | None) -> None:
    assert (most_frequent(values), highest_of_most_frequent(values)) == (first, highest)
    named = dict(enumerate(values))
    assert list(outliers({str(k): v for k, v in named.items()})) == [
        (str(name), value, first) for name, value in named.items() if value != first
    ]


def test_a_thousand_hosts_with_one_fault_are_one_finding() -> None:
    names = [f"gpu{number}" for number in range(1, 1001)]
    nodes = tuple(Node(host=f"{name}.lab", name=name, ssh=Ssh()) for name in names)
    cluster = Cluster(name="t", nodes=nodes)
    lost = {
        name: NodeFacts(
            node=name,
            reach=SshStatus(
                state="timeout",
                phase="banner",
                words=f"{name}.lab:22: connected, then silent for 10 s",
                hint=f"try: ssh {name}.lab uptime",
            ),
        )
        for name in names
    }
    every_check()
    (found,) = judge_all([CHECKS[SSH]], lost, choose_network(cluster, lost), cluster)
    assert found.nodes == tuple(names)
    assert found.found == "banner: HOST:22: connected, then silent for 10 s"
    assert found.remedy == "try: ssh gpu1.lab uptime; likewise for the other nodes"


def test_remedies_that_name_different_hosts_besides_their_own_stay_apart() -> None:
    one = fail("gpu1", "slow", remedy="compare gpu1 with gpu3")
    two = fail("gpu2", "slow", remedy="compare gpu2 with gpu4")
    assert len(fold_findings([one, two])) == 2
    same = fail("gpu2", "slow", remedy="compare gpu2 with gpu3")
    (folded,) = fold_findings([one, same])
    assert folded.nodes == ("gpu1", "gpu2")
    assert folded.remedy == "compare gpu1 with gpu3; likewise for the other nodes"
