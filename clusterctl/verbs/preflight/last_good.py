"""Compares a check with the last run of this cluster that finished well."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clusterctl.facts.changes import changes
from clusterctl.facts.nodefacts import from_document
from clusterctl.verbs.preflight.check import CheckResult, LastGood
from clusterctl.verbs.runs.records import Records

if TYPE_CHECKING:
    from clusterctl.verbs.runs.run_state import RunState

FINISHED: RunState = "finished"


def compare_with_last_good(result: CheckResult, records: Records) -> CheckResult:
    """Return the result with what changed since; unchanged if no run of it is known to be good."""
    for record in records.newest_first(result.cluster):
        end = records.end(record)
        if end is None or end.state != FINISHED:
            continue
        try:
            facts = from_document(records.facts(record) or {})
        except ValueError:
            continue
        if facts:
            last = LastGood(
                run=record.run, began=record.began, changes=changes(facts, result.facts)
            )
            return replace(result, last_good=last)
    return result
