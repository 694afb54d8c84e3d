"""The chain of a run: those that it resumes, itself, and those that resume it."""

from __future__ import annotations

from clusterctl.verbs.runs.history import history_of
from clusterctl.verbs.runs.records import Records, RunRecord


def chain_of(record: RunRecord, records: Records) -> tuple[str, ...]:
    """Return the ids of a run's chain, the oldest first.

    Where two runs resume the same one, both are in it, in the order in which they began.
    """
    before = [one.run for one in history_of(record, records.with_id).runs]
    found = dict.fromkeys(reversed(before))
    after, pending = [], [record.run]
    while pending:
        resumes = [one for one in records.resumes_of(pending.pop()) if one.run not in found]
        found |= dict.fromkeys(one.run for one in resumes)
        after += resumes
        pending += [one.run for one in resumes]
    after.sort(key=lambda one: (one.began, one.run))
    return (*reversed(before), *(one.run for one in after))
