"""What a job needs below workdir is judged after the sync, and that verdict stays."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from clusterctl.facts.nodefacts import NodeFacts, PathFacts, Reach
from clusterctl.inventory.cluster import Cluster, Job, Node, Ssh
from clusterctl.verbs import check as checking
from clusterctl.verbs import needs
from clusterctl.verbs.check import CheckOptions, CheckResult, check_code, judge
from clusterctl.verbs.events import Event

NODE = Node(host="h", name="h", ssh=Ssh(), workdir="/w")
CLUSTER = Cluster(name="c", nodes=(NODE,), job=Job(needs=("data/x",), check=("true",)))


def ended(steps: Generator[Event, None, CheckResult]) -> CheckResult:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: CheckResult = end.value
            return result


def after_sync(facts: NodeFacts, monkeypatch: pytest.MonkeyPatch) -> CheckResult:
    known = {"h": NodeFacts(node="h", reach=Reach(state="ok"))}
    before = judge(needs.before_sync(CLUSTER), known, CheckOptions(code=False))

    def collect(
        cluster: Cluster, _pool: object, options: CheckOptions
    ) -> Generator[Event, None, CheckResult]:
        yield from ()
        return judge(cluster, {"h": facts}, options)

    monkeypatch.setattr(needs, "check", collect)
    return ended(needs.check_needs(CLUSTER, None, before))  # type: ignore[arg-type]


def test_a_node_that_is_silent_after_the_sync_stops_a_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = NodeFacts(node="h", reach=Reach(state="lost", words="cut"))
    verdict = after_sync(lost, monkeypatch)
    assert [(one.check, one.status) for one in verdict.blocking] == [("ssh.connect", "fail")]


def test_what_the_sync_did_not_bring_stays_a_failure_when_the_code_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = (PathFacts(path="/w/data/x", exists=False),)
    facts = NodeFacts(node="h", reach=Reach(state="ok"), paths=missing)
    verdict = after_sync(facts, monkeypatch)

    def nothing(*_: object, **__: object) -> Generator[Event, None, dict[str, NodeFacts]]:
        yield from ()
        return dict(verdict.facts)

    monkeypatch.setattr(checking, "run_job_check", nothing)
    both = (verdict, ended(check_code(CLUSTER, None, verdict)))  # type: ignore[arg-type]
    for one in both:
        found = {finding.status for finding in one.findings if finding.check == "storage.needs"}
        assert found == {"fail"}
