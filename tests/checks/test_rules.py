"""Every rule by its fixtures: `tests/checks/<id>/<name>.json` holds facts and what is to be said.

A file holds one fixture, or a list of them. A fixture is `about`, an `inventory` as in hosts.yaml
(left out: the nodes of the facts), `facts`, and `findings` in the order of the report; passes and
skips need no message. Facts that are left out are unknown. What is alike is written once:

- `node`, and `nodes` of a finding, may fold several names, as `gpu[1-8]`; so may an `index` or a
  `device` in a list, as `"index": "[0-7]"`. `"nvlinks": 18` stands for as many that are up.
- `"like": NAME` in the facts of a node: those of an earlier node, and what is different.
- `but` in place of `facts`: those of the first fixture of the file, and for some nodes what is
  different; null: without this node, or this fact. In a list a difference names the place.

A node's `answers` are parsed as a node's: `files` by path, `commands` by key, `others`. Each is a
text, null for a program that is not installed, or

- `{"source": NAME}`: a file in `tests/recordings` or `tests/facts/sources`,
- `"replace": {OLD: NEW}` with it: what was edited in the recording, each OLD at least once,
- `"gpus": N` with a recording of one GPU: it has N of them, each with its own UUID and address,
  of which `"gpu": {INDEX: {OLD: NEW}}` changes some,
- `"exit_code": N` of a program, with `"text"` or a source.
"""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.checks.all import every_check
from clusterctl.checks.finding import Finding
from clusterctl.checks.registry import CHECKS, judge_all
from clusterctl.facts.nodefacts import from_document
from clusterctl.network.choice import choose_network
from clusterctl.wire import plain
from tests.checks.fixture_facts import FOLDER, cases_of

IDENTITIES = [check.id for check in every_check()]


@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_rule_gives_the_findings_of_its_fixtures_and_each_fault_has_a_remedy(
    identity: str,
) -> None:
    for case in cases_of(identity):
        facts = from_document({"nodes": case.facts})
        network = choose_network(case.cluster, facts)
        said = judge_all([CHECKS[identity]], facts, network, case.cluster)

        assert [_shown(finding) for finding in said] == case.findings, case.name
        wrong = [plain(each) for each in said if each.status in {"fail", "warn", "unknown"}]
        told = ("message", "wanted", "found", "remedy", "nodes")
        assert all(finding[key] for finding in wrong for key in told), case.name


def _shown(finding: Finding) -> dict[str, Any]:
    shown: dict[str, Any] = plain(finding)
    if finding.status in {"pass", "skip"} and not finding.found:
        return {"status": finding.status, "nodes": shown["nodes"]}
    del shown["check"]
    if not finding.gpus:
        del shown["gpus"]
    return shown


@pytest.mark.parametrize("identity", IDENTITIES)
def test_every_rule_has_a_case_that_is_well_and_one_that_is_not(identity: str) -> None:
    statuses = [{finding["status"] for finding in case.findings} for case in cases_of(identity)]

    assert any(found <= {"pass", "skip"} for found in statuses)
    if identity != "network.interfaces":  # it only notes
        assert any(found & {"fail", "warn"} for found in statuses)


def test_the_folders_are_checks() -> None:
    assert {path.parent.name for path in FOLDER.glob("*/*.json")} == set(IDENTITIES)
