"""Follow a batch job: while it is queued, then what it prints, until it has ended."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

from clusterctl.errors import CouldNotTell
from clusterctl.values import dataclass
from clusterctl.verbs.batch.job import BatchJob, BatchJobs
from clusterctl.verbs.batch.slurm import SlurmState
from clusterctl.verbs.events import Emit, Event, Notice

READ_SECONDS = 0.3
ASK_SECONDS = 2.0
"""Between two questions to slurmctld, which serves everybody on the cluster."""
EXIT_CODE_SECONDS = 5.0
"""How long a shared filesystem may need to show the job's last file here."""
EXIT_ENDED = 125
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed(Event):
    """What the job has printed since."""

    stream: Literal["out", "err"]
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEnd:
    """How a batch job ended."""

    exit_code: int
    """What clusterctl exited with inside of the job; 125: it was ended from outside."""
    message: str = ""
    """Why, if clusterctl could not report it itself."""


def follow(batch: BatchJob, jobs: BatchJobs, *, emit: Emit) -> BatchEnd:
    """Follow to the end.

    Emits:
        `Notice` for each new state, `Printed`.
    """
    folder = jobs.folder(batch)
    files = [_Growing(folder / "out", "out"), _Growing(folder / "err", "err")]
    state, asked, ended = SlurmState(state="PENDING"), 0.0, 0.0
    said, printed = "", False
    try:
        while True:
            code = jobs.exit_code(batch)  # before the files: they are whole then
            for file in files:
                for event in file.read():
                    printed = True
                    emit(event)
            if code is not None:
                return BatchEnd(exit_code=code)
            now = time.monotonic()
            if ended and now - ended > EXIT_CODE_SECONDS:
                why = jobs.why_ended(batch, state)
                message = f"{batch.run}: Slurm job {batch.job} was ended: {why}"
                return BatchEnd(exit_code=EXIT_ENDED, message=message)
            if not ended and now - asked >= ASK_SECONDS:
                state, asked = _ask(batch, jobs, state), now
                ended = now if state.phase == "ended" else 0.0
                words = _words(batch, state)
                if words and words != said and not printed:
                    emit(Notice(text=words))
                said = words
            time.sleep(READ_SECONDS)
    finally:
        for file in files:
            file.close()


def _ask(batch: BatchJob, jobs: BatchJobs, before: SlurmState) -> SlurmState:
    """Return the state; a slurmctld that does not answer changes nothing."""
    try:
        return jobs.slurm_state(batch)
    except CouldNotTell:
        return before


def _words(batch: BatchJob, state: SlurmState) -> str:
    match state.phase:
        case "queued":
            return f"{batch.run}: Slurm job {batch.job} is queued: {state.words}"
        case "running":
            return f"{batch.run}: Slurm job {batch.job} runs on {state.nodes}"
        case _:
            return ""


class _Growing:
    """A file that another process writes, perhaps not there yet."""

    def __init__(self, path: Path, stream: Literal["out", "err"]) -> None:
        self._path, self._stream = path, stream
        self._file: BinaryIO | None = None

    def read(self) -> Iterator[Printed]:
        """Yield what is new."""
        if self._file is None:
            try:
                self._file = self._path.open("rb")
            except FileNotFoundError:
                return
        while data := self._file.read(_CHUNK):
            yield Printed(stream=self._stream, data=data)

    def close(self) -> None:
        """Close it, if it was opened."""
        if self._file is not None:
            self._file.close()
