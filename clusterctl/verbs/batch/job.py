"""A launch that was submitted to Slurm, as it is kept with the run's record.

<state>/<cluster>/<run>/
    batch.json   what was submitted, and the id of the Slurm job
    hosts.yaml   the inventory as it was then, which the job reads
    job.sh       the script: it runs clusterctl inside of the job
    out, err     what that printed
    exit-code    what it ended with; none if Slurm ended the job
    slurm.json   what Slurm said of the end, which it forgets within minutes
    stopping     while `stop` asks its nodes: the job must not end before
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from clusterctl.model.from_json import from_json
from clusterctl.model.run_record import RunEnd
from clusterctl.state_folder import ANOTHER_FOLDER
from clusterctl.values import dataclass
from clusterctl.verbs.batch import slurm
from clusterctl.verbs.batch.slurm import SlurmState
from clusterctl.verbs.runs import run_id
from clusterctl.verbs.runs.records import BATCH, Records, write_private
from clusterctl.wire import SCHEMA, plain

FILE = BATCH
SCRIPT_FILE = "job.sh"
INVENTORY = "hosts.yaml"
_SLURM = "slurm.json"
SCRIPT = """\
#!/bin/sh
# Written by clusterctl. Slurm gives it the folder of the run, and the command to run there.
folder=$1
shift
# Where the node lacks the folder, Slurm starts in /tmp, and what is there would be mirrored.
cd "$SLURM_SUBMIT_DIR" || {
    echo "error: $(hostname) does not see the folder of the code, $SLURM_SUBMIT_DIR:" \
        "launch from a folder that all nodes share" >&2
    echo 125 >"$folder/exit-code"
    exit 125
}
# Slurm sends SIGTERM to all processes of a job that it ends, and later SIGKILL.
trap 'cut_short=1' TERM
"$@"
code=$?
[ -n "$cut_short" ] || echo "$code" >"$folder/exit-code"
# Slurm ends every step with the job, also those by which `clusterctl stop` verifies the nodes.
seconds=0
while [ -e "$folder/stopping" ] && [ "$seconds" -lt 120 ]; do
    sleep 1
    seconds=$((seconds + 1))
done
exit "$code"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJob:
    """What was submitted."""

    run: str
    cluster: str
    job: str
    """The id of the Slurm job."""
    began: float
    """When it was submitted: seconds since 1970, UTC."""
    command: tuple[str, ...] = ()
    """The job's, as it was typed or as the inventory has it."""
    name: str = ""
    """The user's own name for it."""

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"schema": SCHEMA, **plain(self)}


class BatchJobs:
    """The batch jobs of this user, from the folder of the records."""

    def __init__(self, records: Records) -> None:
        """Read them there; nothing is read yet."""
        self._records = records

    def folder(self, batch: BatchJob) -> Path:
        """Return the folder of a batch job's files."""
        return self._records.folder(batch.cluster, batch.run)

    def write(self, batch: BatchJob) -> None:
        """Keep a batch job; its folder exists."""
        write_private(self.folder(batch) / FILE, json.dumps(batch.document(), indent=1) + "\n")

    def all(self, cluster: str | None = None) -> list[BatchJob]:
        """Return all that are kept, or those of one cluster, the newest first."""
        found = [self._read(path) for path in self._records.root.glob(f"{cluster or '*'}/*/{FILE}")]
        return sorted(filter(None, found), key=lambda batch: batch.began, reverse=True)

    def find(self, run: str, *, part: bool = True, prefer: str = "") -> BatchJob | None:
        """Return the batch job that a word means, as `resolve` has it; SeveralRuns if several."""
        wanted = self._records.resolve(run, part=part, prefer=prefer)
        found = (self._read(path) for path in self._records.root.glob(f"*/{wanted}/{FILE}"))
        return next(filter(None, found), None) if wanted else None

    def inventory(self, run: str) -> Path | None:
        """Return the file with the inventory that a run was submitted with, if it was."""
        found = self._records.root.glob(f"*/{run}/{INVENTORY}") if run_id.is_word(run) else ()
        return next(iter(found), None)

    def exit_code(self, batch: BatchJob) -> int | None:
        """Return what clusterctl ended with inside of the job; None: it has not, or was killed."""
        try:
            return int((self.folder(batch) / "exit-code").read_text())
        except (OSError, ValueError):
            return None

    def slurm_state(self, batch: BatchJob) -> SlurmState:
        """Return Slurm's state of a job that has not ended by itself; its last words are kept."""
        path = self.folder(batch) / _SLURM
        state = slurm.ask(batch.job)
        if state.cut_short:
            self.keep(batch, state)
        if state.state:
            return state
        try:
            found: SlurmState = from_json(SlurmState, json.loads(path.read_text("utf-8")), _SLURM)
        except (OSError, ValueError):
            return state
        return found

    def why_ended(self, batch: BatchJob, state: SlurmState) -> str:
        """Return why Slurm ended a job, in words."""
        if state.not_begun:
            return f"{state.words}: do its nodes see {self.folder(batch)}? {ANOTHER_FOLDER}"
        return state.words

    def live(self, batch: BatchJob) -> bool:
        """Tell whether the job waits or runs; one that is being ended does not."""
        ended = self.exit_code(batch) is not None or (self.folder(batch) / _SLURM).exists()
        return not ended and self.slurm_state(batch).phase != "ended"

    def keep(self, batch: BatchJob, state: SlurmState) -> None:
        """Keep what Slurm said of a job that it ended; where that cannot be, it is forgotten."""
        text = json.dumps(plain(state)) + "\n"
        path = self.folder(batch) / _SLURM
        with suppress(OSError):
            if not path.exists() or path.read_text("utf-8") != text:
                write_private(path, text)

    def started(self, batch: BatchJob) -> bool:
        """Tell whether the job has got as far as to a plan, so that its nodes can be asked."""
        return (self.folder(batch) / "record.json").exists()

    def end(self, batch: BatchJob) -> RunEnd | None:
        """Return how the run ended, as clusterctl inside of the job saw it."""
        record = self._records.read(batch.cluster, batch.run)
        return self._records.end(record) if record else None

    def _read(self, path: Path) -> BatchJob | None:
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            batch: BatchJob = from_json(BatchJob, document, FILE)
        except (OSError, ValueError):
            return None
        named = (batch.cluster, batch.run) == (path.parent.parent.name, path.parent.name)
        return batch if named and run_id.is_word(batch.run) and batch.job.isdigit() else None
