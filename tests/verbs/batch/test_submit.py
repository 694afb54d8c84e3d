"""The call of sbatch, and what is kept of a batch job."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from clusterctl.inventory.cluster import Cluster, Job
from clusterctl.verbs.batch.job import BatchJob, BatchJobs
from clusterctl.verbs.batch.submit import plan_submission, submit
from clusterctl.verbs.runs.records import Records

OPTIONS = (("nodes", "2"), ("partition", "a b; rm"), ("exclusive", ""), ("job-name", "mine"))
CLUSTER = Cluster(name="lab", nodes=(), job=Job(launcher="slurm", slurm=OPTIONS))
WORDS = ["launch", "-v", "--", "train.py", "$(id)"]
BATCH = BatchJob(run="lab-1", cluster="lab", job="7", began=5.0, command=("x.py",), name="mine")


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path)


def test_every_word_is_a_word_of_sbatch_and_none_passes_a_shell(records: Records) -> None:
    planned = plan_submission(CLUSTER, WORDS, records, nodes=None)
    argv = list(planned.argv)
    assert argv[0] == "sbatch"
    assert {"--nodes=2", "--partition=a b; rm", "--exclusive", "--job-name=mine"} <= set(argv)
    script = argv.index(str(planned.folder / "job.sh"))
    assert argv[script + 1 :] == [
        str(planned.folder), sys.executable, "-u", "-m", "clusterctl",
        "launch", "--run-id", planned.run, "-v", "--", "train.py", "$(id)",
    ]  # fmt: skip


def test_a_job_keeps_the_inventory_that_it_was_submitted_with(
    records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\necho 7\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    planned, jobs = plan_submission(CLUSTER, WORDS, records, nodes=None), BatchJobs(records)
    batch = submit(CLUSTER, planned, jobs, b"cluster: \xff", command=["x.py"], name="")
    kept = jobs.inventory(batch.run)
    assert kept is not None
    assert kept.read_bytes() == b"cluster: \xff"
    assert jobs.inventory("lab-2") is jobs.inventory("*") is None


def test_the_command_lines_number_of_nodes_wins_and_one_is_needed(records: Records) -> None:
    assert "--nodes=5" in plan_submission(CLUSTER, WORDS, records, nodes=5).argv
    without = replace(CLUSTER, job=Job(launcher="slurm"))
    with pytest.raises(UsageError, match=r"job\.slurm\.nodes"):
        plan_submission(without, WORDS, records, nodes=None)


def test_nodes_that_are_excluded_are_left_out_by_slurm(records: Records) -> None:
    argv = plan_submission(CLUSTER, WORDS, records, exclude="gpu[1-2]").argv
    assert "--exclude=gpu[1-2]" in argv
    job = Job(launcher="slurm", slurm=(*OPTIONS, ("exclude", "gpu7")))
    argv = plan_submission(replace(CLUSTER, job=job), WORDS, records, exclude="gpu1").argv
    assert "--exclude=gpu7,gpu1" in argv


def test_what_is_kept_is_found_by_id_and_name_and_damage_is_none(records: Records) -> None:
    jobs = BatchJobs(records)
    jobs.folder(BATCH).mkdir(parents=True)
    jobs.write(BATCH)
    assert jobs.all() == jobs.all("lab") == [BATCH]
    assert jobs.all("other") == []
    assert jobs.find("lab-1") == jobs.find("mine") == BATCH
    assert jobs.exit_code(BATCH) is None
    (jobs.folder(BATCH) / "exit-code").write_text("3\n")
    assert jobs.exit_code(BATCH) == 3
    for text in ("", "{}", '{"run": "lab-2"}', '{"run": "lab-1", "cluster": "lab", "job": "x"}'):
        (jobs.folder(BATCH) / "batch.json").write_text(text)
        assert jobs.all() == []
