"""Slurm's own programs: submit a job, ask for its state, cancel it."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from clusterctl.errors import ClusterError, CouldNotTell
from clusterctl.safe_text import printable_words
from clusterctl.values import dataclass

Phase = Literal["queued", "running", "ended"]

SECONDS = 60.0
"""Longest that an answer of Slurm's is waited for; its own limit is 10 s for each message."""
_QUEUED = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
_RUNNING = frozenset(
    {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
)
_ENDING = {"TimeLimit": "TIMEOUT", "NodeDown": "NODE_FAIL", "": "CANCELLED"}
"""What Slurm will call a job that it is ending, by its reason; it says COMPLETING until then."""
_FIELD = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z:/]*)=(\S*)")
_ID = re.compile(r"[0-9]+")
_UNKNOWN = "Invalid job id"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmState:
    """What Slurm says about a job.

    https://slurm.schedmd.com/squeue.html#SECTION_JOB-STATE-CODES
    """

    state: str = ""
    """Slurm's word, such as `PENDING`; empty: Slurm no longer knows the job."""
    reason: str = ""
    """Why it waits, or why it ended; empty: none."""
    nodes: str = ""
    """In Slurm's own form, such as `gpu[01-04]`."""

    @property
    def phase(self) -> Phase:
        """What the word means; one that is not known is an end, as most of them are."""
        if self.state in _QUEUED:
            return "queued"
        return "running" if self.state in _RUNNING else "ended"

    @property
    def cut_short(self) -> bool:
        """Whether Slurm ended the job, and not the job itself."""
        own = {"", "COMPLETED"} if self.not_begun else {"", "COMPLETED", "FAILED"}
        return self.phase == "ended" and self.state not in own

    @property
    def not_begun(self) -> bool:
        """Whether Slurm could not start the script, as where a node lacks the folder of `out`."""
        return self.reason == "JobLaunchFailure"

    @property
    def words(self) -> str:
        """Return the state and the reason for a message."""
        if not self.state:
            return "Slurm no longer knows it"
        return f"{self.state} ({self.reason})" if self.reason else self.state


def parse_job(text: str) -> SlurmState:
    """Read the answer of `scontrol --oneliner show job`."""
    fields: Mapping[str, str] = dict(reversed(_FIELD.findall(text)))
    values = {
        name: "" if fields.get(key, "") in {"None", "(null)"} else fields.get(key, "")
        for name, key in (("state", "JobState"), ("reason", "Reason"), ("nodes", "NodeList"))
    }
    return SlurmState(**values)


def ask(job: str) -> SlurmState:
    """Return the state of a job."""
    done = _run(["scontrol", "--oneliner", "show", "job", job])
    if done.returncode == 0:
        return parse_job(done.stdout)
    if _UNKNOWN in done.stderr:
        return SlurmState()
    raise CouldNotTell(f"Slurm job {job}: {_words(done)}", hint="scontrol ping")


def ask_ending(job: str) -> SlurmState:
    """Return what Slurm will say about a job that it is ending."""
    state = ask(job)
    known = state.phase == "ended" or state.reason not in _ENDING
    return state if known else replace(state, state=_ENDING[state.reason])


def submit(argv: Sequence[str]) -> str:
    """Submit a job; return its id."""
    done = _run(argv)
    # `--parsable` prints `JOB` or `JOB;CLUSTER`.
    found = _ID.match(done.stdout.strip())
    if done.returncode or found is None:
        raise ClusterError(_words(done), hint="look at job.slurm in the inventory; sinfo")
    return found[0]


def cancel(job: str) -> None:
    """Ask Slurm to end a job; one that has ended is well."""
    done = _run(["scancel", job])
    if done.returncode and _UNKNOWN not in done.stderr:
        raise ClusterError(f"Slurm job {job}: {_words(done)}", hint=f"scancel {job}")


def _words(done: subprocess.CompletedProcess[str]) -> str:
    program = done.args[0]
    said = printable_words(done.stderr.encode()) or printable_words(done.stdout.encode())
    return said if said.startswith(f"{program}:") else f"{program}: {said or 'no answer'}"


def _run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False,
            encoding="utf-8", errors="replace",
        )  # fmt: skip
    except FileNotFoundError as error:
        hint = "run this on a login node of the Slurm cluster, or install slurm-client"
        raise ClusterError(f"there is no {argv[0]} on this machine", hint=hint) from error
    except subprocess.TimeoutExpired as error:
        message = f"{argv[0]}: no answer within {SECONDS:g} s"
        raise CouldNotTell(message, hint="scontrol ping") from error
