"""Every rule by its fixtures: `tests/checks/<id>/<case>.json` holds facts and what is to be said.

A fixture is `about`, an `inventory` as in hosts.yaml, `facts`, and `findings` in the order in which
they are said; passes and skips need no message. Facts that are left out are unknown. `node` may
fold several names, as `gpu[1-8]`. A node's `answers` are parsed as a node's: `files` by path,
`commands` by key, `others`. Each is a text, null for a program that is not installed, or

- `{"source": NAME}`: a file in `tests/recordings` or `tests/facts/sources`,
- `"replace": {OLD: NEW}` with it: what was edited in the recording, each OLD at least once,
- `"gpus": N` with a recording of one GPU: it has N of them, each with its own UUID and address,
  of which `"gpu": {INDEX: {OLD: NEW}}` changes some,
- `"exit_code": N` of a program, with `"text"` or a source.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterctl.checks.all import every_check
from clusterctl.checks.finding import Finding
from clusterctl.checks.registry import CHECKS, judge_all
from clusterctl.facts.document import from_document
from clusterctl.inventory import load
from clusterctl.network.choice import choose_network
from clusterctl.wire import plain
from tests.checks.fixture_facts import facts_of

FOLDER = Path(__file__).parent
CASES = sorted(FOLDER.glob("*/*.json"))


@pytest.mark.parametrize("path", CASES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_a_rule_gives_the_findings_of_its_fixture_and_each_fault_has_a_remedy(
    path: Path, tmp_path: Path
) -> None:
    case = json.loads(path.read_text())
    inventory = tmp_path / "hosts.yaml"
    inventory.write_text(json.dumps(case["inventory"]))
    cluster = load(inventory)
    facts = from_document({"nodes": facts_of(case)})

    rule = CHECKS[path.parent.name]
    said = judge_all([rule], facts, choose_network(cluster, facts), cluster)

    assert [_shown(finding) for finding in said] == case["findings"]
    wrong = [plain(each) for each in said if each.status in {"fail", "warn", "unknown"}]
    for finding in wrong:
        assert all(finding[key] for key in ("message", "wanted", "found", "remedy", "nodes"))


def _shown(finding: Finding) -> dict[str, Any]:
    shown: dict[str, Any] = plain(finding)
    if finding.status in {"pass", "skip"} and not finding.found:
        return {"status": finding.status, "nodes": shown["nodes"]}
    del shown["check"]
    if not finding.gpus:
        del shown["gpus"]
    return shown


@pytest.mark.parametrize("identity", [check.id for check in every_check()])
def test_every_rule_has_a_case_that_is_well_and_one_that_is_not(identity: str) -> None:
    cases = [json.loads(path.read_text()) for path in (FOLDER / identity).glob("*.json")]
    statuses = [{finding["status"] for finding in case["findings"]} for case in cases]

    assert any(found <= {"pass", "skip"} for found in statuses)
    if identity not in {"network.interfaces", "accelerator.vbios"}:  # they only note
        assert any(found & {"fail", "warn"} for found in statuses)


def test_the_folders_are_checks() -> None:
    assert {path.parent.name for path in CASES} == {check.id for check in every_check()}
