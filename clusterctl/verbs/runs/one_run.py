"""All that is known of one run: its status, and what this machine remembers of it."""

from pathlib import Path
from typing import Any

from clusterctl.values import dataclass
from clusterctl.verbs.runs.history import chain_of
from clusterctl.verbs.runs.list_runs import ListedRun, claimed_line, newest_first, recorded_line
from clusterctl.verbs.runs.records import Records, RunRecord
from clusterctl.verbs.runs.run_status import RunStatus
from clusterctl.wire import SCHEMA, plain


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRun:
    """A run in full."""

    line: ListedRun
    """As the list has it."""
    chain: tuple[str, ...]
    """The runs that it resumes, itself, and those that resume it, the oldest first."""
    status: RunStatus
    record: RunRecord | None
    """What this machine remembers of it."""
    folder: Path | None
    """Where it does."""

    def document(self) -> dict[str, Any]:
        """Return it as the JSON that `runs show --json` prints."""
        record = self.record
        return {
            "schema": SCHEMA,
            **plain(self.line),
            "chain": list(self.chain),
            "launcher": record.cluster.job.launcher if record else "",
            "source": record.source if record else "",
            "tree": record.tree if record else "",
            "options": plain(record.options) if record else {},
            "left_out": plain(record.left_out) if record else [],
            "findings": plain(record.findings) if record else [],
            "record": str(self.folder) if self.folder else None,
            "status": self.status.document(),
        }


def one_run(view: RunStatus, record: RunRecord | None, records: Records) -> OneRun:
    """Put together what is known of a run."""
    end = records.end(record) if record else None
    line = recorded_line(record, view, end) if record else claimed_line(view)
    return OneRun(
        line=newest_first([line], records)[0],
        chain=chain_of(record, records) if record else (view.run,),
        status=view,
        record=record,
        folder=records.folder(record.cluster.name, record.run) if record else None,
    )
