"""What a resume takes over from the run before, and where the checkpoint goes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.errors import UsageError
from clusterctl.inventory.cluster import Job
from clusterctl.plan.options import Options
from clusterctl.verbs import resume
from clusterctl.verbs.records import RunRecord
from clusterctl.wire import plain
from tests.verbs.runs import CLUSTER, RUN

BEFORE = RunRecord(
    run=RUN,
    began=1.0,
    cluster=CLUSTER,
    options=plain(
        Options(launcher="direct", gpus=4, env=(("A", "1"),), command=("old",), master_port=1)
    ),
)


def test_the_launchs_options_are_taken_over_where_nothing_else_is_said() -> None:
    taken = resume._taken_over(BEFORE, Options(gpus=2, origins={"gpus": "--gpus"}))
    assert (taken.launcher, taken.gpus, taken.env) == ("direct", 2, (("A", "1"),))
    assert taken.origin("launcher") == f"run {RUN}"
    assert taken.origin("gpus") == "--gpus"


def test_the_command_and_the_port_are_chosen_anew() -> None:
    taken = resume._taken_over(BEFORE, Options())
    assert (taken.command, taken.master_port) == ((), None)


@pytest.mark.parametrize(
    ("command", "resume_args", "expected"),
    [
        (("a",), ("--from", "{checkpoint}"), ("a", "--from", "{checkpoint}")),
        (("a", "--x={checkpoint}"), ("--from", "{checkpoint}"), ("a", "--x={checkpoint}")),
    ],
)
def test_where_the_checkpoint_goes(
    command: tuple[str, ...], resume_args: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert resume._template(Job(command=command, resume_args=resume_args)) == expected


def test_a_job_that_cannot_be_told_is_an_error() -> None:
    with pytest.raises(UsageError, match="resume_args") as caught:
        resume._template(replace(CLUSTER.job, resume_args=("--from",)))
    assert "{checkpoint}" in (caught.value.hint or "")
