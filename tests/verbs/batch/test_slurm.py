"""What Slurm's answers become."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.verbs.batch import slurm
from clusterctl.verbs.batch.job import SCRIPT, BatchJobs
from clusterctl.verbs.batch.slurm import SlurmState, parse_job
from clusterctl.verbs.batch.status import batch_status
from clusterctl.verbs.runs.records import Records
from tests.verbs.batch.test_submit import BATCH

PENDING = (
    "JobId=14 JobName=lab UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901747 Nice=0"
    " Account=(null) QOS=(null) JobState=PENDING Reason=Resources Dependency=(null) Requeue=0"
    " Restarts=0 ReqNodeList=(null) ExcNodeList=(null) NodeList= NumNodes=3-3 NumCPUs=3"
    " Command=/shared/state/lab/lab-20261123t232229-vbwg/job.sh WorkDir=/shared/a JobState=odd\n"
)
"""Of `scontrol --oneliner show job` of Slurm 22.05, shortened; the last words are a folder's."""
RUNNING = "JobId=6 JobState=RUNNING Reason=None NodeList=node[2-4] BatchHost=node2 NumNodes=3\n"


def test_a_job_that_waits_has_a_reason() -> None:
    state = parse_job(PENDING)
    assert (state.phase, state.words, state.nodes) == ("queued", "PENDING (Resources)", "")


def test_a_job_that_runs_has_nodes() -> None:
    state = parse_job(RUNNING)
    assert (state.phase, state.words, state.nodes) == ("running", "RUNNING", "node[2-4]")


@pytest.mark.parametrize(
    ("word", "phase"),
    [
        ("CONFIGURING", "queued"),
        ("COMPLETING", "running"),
        ("TIMEOUT", "ended"),
        ("NODE_FAIL", "ended"),
        ("CANCELLED", "ended"),
        ("", "ended"),
    ],
)
def test_each_word_of_slurm_is_a_phase(word: str, phase: str) -> None:
    assert SlurmState(state=word).phase == phase


@pytest.fixture
def kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[BatchJobs, Callable[[str], None]]:
    """A batch job that is kept, and what sets scontrol's answer; none: the job is unknown."""
    jobs = BatchJobs(Records(tmp_path / "state"))
    jobs.folder(BATCH).mkdir(parents=True)
    jobs.write(BATCH)
    scontrol = tmp_path / "scontrol"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def answer(text: str) -> None:
        unknown = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
        scontrol.write_text(f"#!/bin/sh\n{f'echo {text}' if text else unknown}\n")
        scontrol.chmod(0o755)

    return jobs, answer


@pytest.mark.parametrize(
    ("words", "state", "message"),
    [
        ("JobState=TIMEOUT Reason=TimeLimit", "failed", "TIMEOUT (TimeLimit)"),
        ("JobState=CANCELLED Reason=None", "stopped", "CANCELLED"),
        ("JobState=COMPLETED Reason=None", "failed", "Slurm no longer knows it"),
        ("JobState=FAILED Reason=NonZeroExitCode", "failed", "Slurm no longer knows it"),
        ("JobState=FAILED Reason=JobLaunchFailure", "failed", "FAILED (JobLaunchFailure): do its"),
    ],
)
def test_why_slurm_ended_a_job_outlives_slurms_memory(
    kept: tuple[BatchJobs, Callable[[str], None]], words: str, state: str, message: str
) -> None:
    jobs, answer = kept
    answer(words)
    jobs.slurm_state(BATCH)
    answer("")
    view = batch_status(BATCH, jobs, jobs.slurm_state(BATCH))
    assert view.remembered is not None
    assert (view.state, view.remembered.message.startswith(message)) == (state, True)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("JobState=COMPLETING Reason=TimeLimit", "TIMEOUT (TimeLimit)"),
        ("JobState=COMPLETING Reason=None", "CANCELLED"),
        ("JobState=COMPLETING Reason=Strange", "COMPLETING (Strange)"),
        ("JobState=PREEMPTED Reason=None", "PREEMPTED"),
    ],
)
def test_a_job_that_is_being_ended_is_called_what_it_will_be(
    kept: tuple[BatchJobs, Callable[[str], None]], words: str, found: str
) -> None:
    kept[1](words)
    assert slurm.ask_ending("7").words == found


def test_a_job_that_slurm_ends_writes_no_exit_code_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(SCRIPT)
    (tmp_path / "end.sh").write_text("kill $PPID; exit 5")
    for words, code in (("exit 4", "4\n"), ('. "$0/end.sh"', "")):
        (tmp_path / "exit-code").unlink(missing_ok=True)
        argv = ["sh", str(script), str(tmp_path), "sh", "-c", words, str(tmp_path)]
        subprocess.run(argv, env=os.environ | {"SLURM_SUBMIT_DIR": "/"}, check=False)
        found = tmp_path / "exit-code"
        assert (found.read_text() if found.exists() else "") == code


def test_a_job_whose_node_lacks_the_folder_of_the_code_runs_nothing(tmp_path: Path) -> None:
    """Slurm starts it in /tmp then."""
    script = tmp_path / "job.sh"
    script.write_text(SCRIPT)
    done = subprocess.run(
        ["sh", script, tmp_path, "touch", tmp_path / "ran"],
        env=os.environ | {"SLURM_SUBMIT_DIR": str(tmp_path / "home")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, (tmp_path / "exit-code").read_text()) == (125, "125\n")
    assert not (tmp_path / "ran").exists()
    assert f"does not see the folder of the code, {tmp_path}/home:" in done.stderr


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    parse_job(text)
