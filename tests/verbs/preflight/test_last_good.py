"""A check is compared with the last run of its cluster that finished well, and with no other."""

from __future__ import annotations

from pathlib import Path

from clusterctl.facts.nodefacts import NodeFacts, to_document
from clusterctl.inventory.cluster import Cluster, Node, Ssh
from clusterctl.verbs.preflight.check import CheckOptions, CheckResult, judge
from clusterctl.verbs.preflight.last_good import compare_with_last_good
from clusterctl.verbs.runs.records import Records, RunRecord

CLUSTER = Cluster(name="lab", nodes=(Node(host="a", name="a", ssh=Ssh()),))


def checked(kernel: str) -> CheckResult:
    return judge(CLUSTER, {"a": NodeFacts(node="a", kernel=kernel)}, CheckOptions())


def keep(records: Records, number: int, state: str, kernel: str | None) -> str:
    run = f"lab-20260101t00000{number}-abcd"
    record = RunRecord(run=run, began=float(number), cluster=CLUSTER)
    facts = {"a": NodeFacts(node="a", kernel=kernel)} if kernel else None
    folder = records.write(record, facts=to_document(facts) if facts else None)
    if kernel == "damaged":
        (folder / "facts.json").write_text('{"nodes": [{"node": 1}]}')
    if state:
        records.write_end(record, {"state": state, "exit_code": 0, "ended_by": "job"})
    return run


def test_the_newest_run_that_finished_well_and_kept_its_facts_counts(tmp_path: Path) -> None:
    records = Records(tmp_path)
    keep(records, 1, "finished", "6.0")
    good = keep(records, 2, "finished", "6.1")
    keep(records, 3, "finished", None)  # of an older version
    keep(records, 4, "failed", "6.2")
    keep(records, 5, "", "6.3")  # it still runs
    keep(records, 6, "finished", "damaged")

    last = compare_with_last_good(checked("6.4"), records).last_good

    assert last is not None
    assert (last.run, last.began) == (good, 2.0)
    assert [change.text() for change in last.changes] == ["kernel 6.1 → 6.4"]


def test_without_a_run_that_finished_well_nothing_is_compared(tmp_path: Path) -> None:
    records = Records(tmp_path)
    keep(records, 1, "failed", "6.0")

    assert compare_with_last_good(checked("6.4"), records).last_good is None
