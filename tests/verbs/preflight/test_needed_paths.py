"""What a job needs below workdir is judged after the sync, and that verdict stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.errors import NodeError
from clusterctl.facts.machine.system import SshStatus
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.storage.storage import PathFacts
from clusterctl.inventory.cluster import Cluster, Job, Node, Ssh
from clusterctl.verbs.events import ignore
from clusterctl.verbs.preflight import check as checking
from clusterctl.verbs.preflight import needed_paths
from clusterctl.verbs.preflight.check import CheckOptions, CheckResult, check_code, judge
from clusterctl.verbs.preflight.look_at_paths import Look

SOURCE = Path("source")
NODE = Node(host="h", name="h", ssh=Ssh(), workdir="/w")
CLUSTER = Cluster(name="c", nodes=(NODE,), job=Job(needs=("data/x",), check=("true",)))


def after_sync(facts: NodeFacts, monkeypatch: pytest.MonkeyPatch) -> CheckResult:
    known = {"h": NodeFacts(node="h", reach=SshStatus(state="ok"))}
    before = judge(needed_paths.before_sync(CLUSTER), known, CheckOptions(code=False))

    def found(_pool: object, asked: dict[str, list[str]]) -> Look:
        assert asked == {"h": ["/w/data/x"]}
        if facts.answered:
            return Look(facts={"h": facts})
        reach = facts.reach
        return Look(errors={"h": NodeError(reach.state, reach.phase, reach.words)})

    monkeypatch.setattr(needed_paths, "look", found)
    monkeypatch.setattr(needed_paths, "with_local_needs", lambda _cluster, facts, _source: facts)
    return needed_paths.check_needs(CLUSTER, None, before, SOURCE, emit=ignore)  # type: ignore[arg-type]


def test_a_node_that_is_silent_after_the_sync_stops_a_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = NodeFacts(node="h", reach=SshStatus(state="lost", words="cut"))
    verdict = after_sync(lost, monkeypatch)
    assert [(one.check, one.status) for one in verdict.blocking] == [("ssh.connect", "fail")]
    assert verdict.facts["h"] == lost


def test_what_the_sync_did_not_bring_stays_a_failure_when_the_code_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = (PathFacts(path="/w/data/x", exists=False, here="synced"),)
    facts = NodeFacts(node="h", reach=SshStatus(state="ok"), paths=missing)
    verdict = after_sync(facts, monkeypatch)
    assert not [one for one in verdict.findings if one.check == "job.check"], "judged later"

    def nothing(*_: object, **__: object) -> dict[str, NodeFacts]:
        return dict(verdict.facts)

    monkeypatch.setattr(checking, "run_job_check", nothing)
    both = (verdict, check_code(CLUSTER, None, verdict, emit=ignore))  # type: ignore[arg-type]
    for one in both:
        found = {finding.status for finding in one.findings if finding.check == "storage.needs"}
        assert found == {"fail"}


def test_only_what_lies_below_workdir_waits_for_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_both = replace(CLUSTER, job=Job(needs=("data/x", "/models/m", "/warm/y")))
    assert needed_paths.before_sync(needs_both).job.needs == ("/models/m", "/warm/y")
    known = {"h": NodeFacts(node="h", reach=SshStatus(state="ok"))}
    before = judge(needed_paths.before_sync(needs_both), known, CheckOptions(code=False))
    asked: list[dict[str, list[str]]] = []

    def found(_pool: object, paths: dict[str, list[str]]) -> Look:
        asked.append(paths)
        return Look(facts=known)

    monkeypatch.setattr(needed_paths, "look", found)
    monkeypatch.setattr(needed_paths, "with_local_needs", lambda _cluster, facts, _source: facts)
    needed_paths.check_needs(needs_both, None, before, SOURCE, emit=ignore)  # type: ignore[arg-type]
    assert asked == [{"h": ["/w/data/x"]}]


def test_where_a_sync_brings_nothing_that_is_needed_the_verdict_stays() -> None:
    elsewhere = replace(CLUSTER, job=Job(needs=("/models/m",)))
    nowhere = replace(CLUSTER, nodes=(replace(NODE, workdir=None),))
    for cluster in (elsewhere, nowhere):
        known = {"h": NodeFacts(node="h", reach=SshStatus(state="ok"))}
        before = judge(needed_paths.before_sync(cluster), known, CheckOptions(code=False))
        assert needed_paths.check_needs(cluster, None, before, SOURCE, emit=ignore) is before  # type: ignore[arg-type]


def test_what_was_known_of_a_path_before_the_sync_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = (
        NodeFacts(node="h", paths=tuple(PathFacts(path=p, exists=there) for p in paths))
        for paths, there in ((("/m",), True), (("/m", "/w/data/x"), False))
    )
    answered = replace(after, reach=SshStatus(state="ok"))
    joined = needed_paths._joined(replace(before, reach=SshStatus(state="ok")), answered)
    assert [(path.path, path.exists) for path in joined.paths] == [
        ("/m", True), ("/w/data/x", False),
    ]  # fmt: skip
