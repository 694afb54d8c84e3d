"""What Slurm's answers become."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.verbs.batch.slurm import SlurmState, parse_job

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


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    parse_job(text)
