"""Which changes of the inventory's job a resume reports, and how it names the way to use them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.inventory.cluster import Cluster, Hang, Job, Restart
from clusterctl.inventory.settings import keys_of
from clusterctl.model.node_run import Resumed
from clusterctl.plan.effective import effective
from clusterctl.plan.options import Options
from clusterctl.verbs.runs.recorded_job import changed, completed, report_job
from clusterctl.verbs.runs.records import RunRecord
from clusterctl.wire import plain
from tests.verbs.run_answers import CLUSTER

HOSTS = Path("hosts.yaml")
JOB = Job(
    command=("train.py",),
    env=(("LR", "1"), ("SEED", "7")),
    env_from=("HF_TOKEN",),
    launcher_args=("--tee", "3"),
    needs=("data",),
)
LAB = replace(CLUSTER, job=JOB)


def launched(options: Options, lab: Cluster = LAB, **more: object) -> RunRecord:
    """Return the record of a run that was launched with options on an inventory."""
    made = RunRecord(
        run="lab-1", began=1.0, cluster=effective(lab, options), options=plain(options)
    )
    return replace(made, **more)  # type: ignore[arg-type]


def none(_run: str) -> None:
    return None


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(launcher="direct", procs_per_node=2, command=("other.py",)),
        Options(env=(("LR", "2"), ("NEW", "1"), ("HF_TOKEN", "x"))),
        Options(max_restarts=3, start_timeout=5.0, debug=True),
        Options(hang_after=60.0, restarts=2),
        Options(launcher_args=("--log-dir", "logs")),
    ],
)
def test_what_a_flag_set_at_the_launch_is_no_change(options: Options) -> None:
    assert changed(launched(options), JOB, Options(), none) == []
    # Nor when the record was written and read.
    read = RunRecord.from_document(launched(options).document())
    assert changed(read, JOB, Options(), none) == []


@pytest.mark.parametrize("options", [Options(), Options(launcher="direct", env=(("X", "1"),))])
def test_each_changed_key_is_named(options: Options) -> None:
    now = replace(
        JOB, command=("new.py",), env=(("LR", "2"),), launcher_args=(), needs=(), env_from=("A",)
    )
    assert changed(launched(options), now, Options(), none) == [
        "launcher_args", "command", "env_from", "needs", "env.LR", "env.SEED",
    ]  # fmt: skip
    given = Options(command=("z.py",), env=(("LR", "3"), ("SEED", "3")))
    assert changed(launched(options), now, given, none) == ["launcher_args", "env_from", "needs"]


def test_a_flag_of_the_launch_that_the_inventory_has_now_is_no_change() -> None:
    now = replace(JOB, launcher="direct")
    assert changed(launched(Options(launcher="direct")), now, Options(), none) == []


def test_checkpoints_that_the_run_was_launched_without_are_taken_and_no_change() -> None:
    now = replace(JOB, checkpoints="out", resume_args=("--from", "{checkpoint}"))
    assert changed(launched(Options()), now, Options(), none) == []
    then = replace(LAB, job=replace(JOB, checkpoints="old"))
    assert changed(launched(Options(), then), now, Options(), none) == ["checkpoints"]


@pytest.mark.parametrize("key", sorted(keys_of(Job)))
def test_a_change_of_every_key_of_the_job_is_named(key: str) -> None:
    old, new = ({key: (("NAME", value),)} for value in ("old", "new"))
    then = launched(Options(), replace(LAB, job=Job(command=("x",))))
    then = replace(then, cluster=replace(LAB, job=replace(JOB, **old)))  # type: ignore[arg-type]
    found = changed(then, replace(JOB, **new), Options(), none)  # type: ignore[arg-type]
    # A resume is submitted with the inventory's options of sbatch.
    assert found == {"slurm": [], "env": ["env.NAME"]}.get(key, [key])


def resumed(run: str, origin: str) -> RunRecord:
    """Return the record of a run that resumed `run`, its command with the checkpoint in it."""
    plan = Options(command=("train.py", "--from", "/out/7"), origins={"command": origin})
    return replace(launched(plan), run="lab-2", resumed=Resumed(run=run, command=("train.py",)))


def test_the_command_of_a_resumed_run_is_that_of_the_first_run() -> None:
    again = resumed("lab-1", "run lab-1")
    now = replace(JOB, command=("new.py",))
    cases: list[tuple[RunRecord | None, Job, list[str]]] = [
        (launched(Options()), JOB, []),
        (launched(Options()), now, ["command"]),
        (launched(Options(command=("typed.py",))), now, []),
        (None, now, []),
    ]
    for first, job, expected in cases:
        find: Callable[[str], RunRecord | None] = {"lab-1": first}.get
        assert changed(again, job, Options(), find) == expected
    typed = resumed("lab-1", "after `--`")
    assert changed(typed, now, Options(), {"lab-1": launched(Options())}.get) == []


@pytest.mark.parametrize(
    ("command", "typed"), [(("new.py", "--steps", "3 0"), "new.py --steps '3 0'"), ((), "COMMAND")]
)
def test_the_warning_has_the_new_command_to_type(
    command: tuple[str, ...], typed: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        report_job(HOSTS, launched(Options()), replace(JOB, command=command), Options(), none)
    (told,) = caplog.messages
    assert told.endswith(f"(to use the new: -- {typed})")


def test_a_new_place_of_checkpoints_is_used_by_its_path(caplog: pytest.LogCaptureFixture) -> None:
    then = replace(JOB, checkpoints="/old", resume_args=("--old", "{checkpoint}"))
    now = replace(JOB, checkpoints="/new", resume_args=("--from", "{checkpoint}"))
    with caplog.at_level(logging.WARNING):
        report_job(HOSTS, launched(Options(), replace(CLUSTER, job=then)), now, Options(), none)
    (told,) = caplog.messages
    words = "--checkpoint PATH; -- train.py --from '{checkpoint}'"
    assert told.endswith(f"(to use the new: {words})")


def test_one_warning_names_the_keys_and_how_to_use_the_new_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = replace(JOB, env=(("LR", "2"),), needs=())
    with caplog.at_level(logging.WARNING):
        report_job(HOSTS, launched(Options()), now, Options(), none)
    (told,) = caplog.messages
    assert told == (
        "hosts.yaml: job.needs, job.env.LR, job.env.SEED changed since lab-1 was launched; using"
        " the run's (to use the new: --env NAME=VALUE; a new launch for job.needs)"
    )
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        report_job(HOSTS, launched(Options()), JOB, Options(), none)
        report_job(HOSTS, launched(Options(), discovered=True), now, Options(), none)
    assert caplog.messages == []


def test_what_the_run_said_of_its_checkpoints_stays_and_the_rest_is_the_inventorys() -> None:
    then = Job(checkpoints="out")
    now = Job(
        checkpoints="elsewhere",
        resume_args=("--from", "{checkpoint}"),
        needs=("data",),
        check=("true",),
        command=("new",),
    )
    job, added = completed(then, now)
    assert (job.checkpoints, job.resume_args, job.command) == ("out", now.resume_args, ())
    assert (job.needs, job.check) == (now.needs, now.check)
    assert added == ("job.needs", "job.check", "job.resume_args")
    assert completed(then, Job()) == (then, ())


def test_other_restarts_are_reported_unless_a_flag_sets_them_now() -> None:
    now = replace(JOB, restart=Restart(max=3))
    assert changed(launched(Options()), now, Options(), none) == ["restart"]
    assert changed(launched(Options()), now, Options(restarts=5), none) == []


def test_a_changed_limit_of_a_hang_is_reported_unless_a_flag_sets_it_now() -> None:
    now = replace(JOB, hang=Hang(after=60.0))
    assert changed(launched(Options()), now, Options(), none) == ["hang"]
    assert changed(launched(Options()), now, Options(hang_after=60.0), none) == []
