"""What is noticed of a job before anything is asked of a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from clusterctl.errors import LaunchRefused, UsageError
from clusterctl.inventory.cluster import Cluster, Restart
from clusterctl.plan.effective import effective
from clusterctl.plan.options import Options
from clusterctl.transport.pool import Pool
from clusterctl.verbs.events import Event, Notice
from clusterctl.verbs.launch import launch, notice_job
from clusterctl.verbs.launch.options import LaunchOptions
from tests.fake_pool import FakePool
from tests.verbs.run_answers import CLUSTER


def cluster(**job: object) -> Cluster:
    return replace(CLUSTER, job=replace(CLUSTER.job, **job))  # type: ignore[arg-type]


def test_the_longest_time_is_told_in_hours_and_minutes() -> None:
    told: list[Event] = []
    notice_job.notice_job(cluster(max_time=5400.0).job, emit=told.append)
    assert "max_time: the run is stopped after 1:30:00 (h:mm:ss)" in [
        one.text for one in told if isinstance(one, Notice)
    ]


NESTED = "cd src\nexport A=1\nCUDA_VISIBLE_DEVICES=0 \\\n  torchrun --nproc_per_node=1 train.py\n"


def noticed(given: Cluster, folder: Path, *, force: bool = True) -> list[Notice]:
    return notices(notice_job.notice_words, given, folder, force=force)


def notices(tell: Callable[..., object], *args: Any, **more: Any) -> list[Notice]:
    events: list[Event] = []
    tell(*args, **more, emit=events.append)
    return [event for event in events if isinstance(event, Notice)]


def test_a_launcher_inside_a_script_is_refused_with_the_command_to_type(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(NESTED)
    given = cluster(command=("bash", "train.sh", "--lr", "1"))
    with pytest.raises(
        UsageError, match=r"^train\.sh:3: every rank runs this script, and so"
    ) as no:
        noticed(given, tmp_path, force=False)
    again = "launch --launcher direct --procs-per-node 1 -- bash train.sh --lr 1"
    assert str(no.value.hint).splitlines()[0].endswith(again)
    (said,) = noticed(given, tmp_path)
    assert said.text == str(no.value)
    assert noticed(effective(given, Options(launcher="direct", procs_per_node=1)), tmp_path) == []
    assert noticed(effective(given, Options(procs_per_node=1)), tmp_path)
    assert noticed(cluster(command=("bash", "elsewhere.sh")), tmp_path) == []


def test_without_a_sync_a_script_of_this_folder_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(NESTED)
    given = cluster(command=("bash", "train.sh"))
    events: list[Event] = []
    options = LaunchOptions(source=tmp_path, sync=False)
    with pytest.raises(LaunchRefused):  # no node answers
        launch.prepare(given, cast(Pool, FakePool(given, {})), options, emit=events.append)
    said = next(e for e in events if isinstance(e, Notice) and e.level == "warning")
    assert said.text.startswith("train.sh:3: every rank runs this script")


def test_a_script_that_assigns_the_rendezvous_is_noticed_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text('import os\nos.environ["MASTER_ADDR"] = "localhost"\n')
    (tmp_path / "train.sh").write_text("python -u train.py --lr 1\n")
    for command in (("train.py", "--lr", "1"), ("bash", "train.sh"), ("nohup", "./train.sh")):
        (said,) = noticed(cluster(command=command), tmp_path)
        assert said.text.startswith("train.py:2: it assigns MASTER_ADDR, which the launcher sets")
        assert said.hint == "remove the line, or use os.environ.setdefault"
        with pytest.raises(UsageError, match=r"train.py:2: .* meet on their own node only"):
            noticed(cluster(command=command), tmp_path, force=False)
    one = replace(cluster(command=("train.py",)), nodes=CLUSTER.nodes[:1])
    assert len(noticed(one, tmp_path, force=False)) == 1
    nodes = tuple(replace(node, workdir="/code") for node in CLUSTER.nodes)
    there = replace(cluster(command=("/code/./train.py",)), nodes=nodes)
    assert [each.text[:11] for each in noticed(there, tmp_path)] == ["train.py:2:"]
    assert noticed(cluster(command=("train.py",), launcher="ray"), tmp_path) == []
    assert noticed(cluster(command=("-m", "train")), tmp_path) == []
    assert noticed(cluster(command=("elsewhere.py",)), tmp_path) == []


def test_a_program_that_starts_ranks_of_one_node_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("elastic_launch(\n    LaunchConfig(1, 1, 8), f)()\n")
    with pytest.raises(UsageError, match=r"LaunchConfig starts 1 node: each") as refused:
        noticed(cluster(command=("train.py",)), tmp_path, force=False)
    assert "call the function itself" in str(refused.value.hint)
    one = replace(CLUSTER, nodes=CLUSTER.nodes[:1], job=replace(CLUSTER.job, command=("train.py",)))
    assert noticed(one, tmp_path, force=False) == []


def test_what_a_program_does_in_each_rank_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("a('--local_rank')\nset_device(args.local_rank)\n")
    given = cluster(command=("train.py",))
    (flag,) = noticed(given, tmp_path, force=False)
    assert flag.text.startswith("train.py:1: it takes --local-rank, which torchrun does not give")
    (tmp_path / "train.py").write_text("import submitit\nexecutor.submit(f)\n")
    with pytest.raises(UsageError, match=r"train.py:2: it submits a job to Slurm"):
        noticed(given, tmp_path, force=False)


def test_a_program_that_meets_at_localhost_is_noticed_with_its_line(tmp_path: Path) -> None:
    text = 'import torch.distributed as d\nd.init_process_group("gloo", "tcp://127.0.0.1:29500")\n'
    (tmp_path / "train.py").write_text(text)
    (said,) = noticed(cluster(command=("train.py",)), tmp_path)
    assert said.text.startswith("train.py:2: the ranks meet at tcp://127.0.0.1:29500")
    one = replace(CLUSTER, nodes=CLUSTER.nodes[:1], job=replace(CLUSTER.job, command=("train.py",)))
    assert noticed(one, tmp_path) == []


HF = "hf_abcdefghijklmnopqrstuvwxyz012345"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (Options(env=(("HF_TOKEN", "x"),)), ["--env: HF_TOKEN looks like a secret"]),
        (Options(env=(("KEY_FILE", HF),)), ["--env: KEY_FILE looks like a secret"]),
        (Options(env=(("LR", "1"),)), []),
        (Options(env=(("HF_TOKEN", ""),)), []),
        (
            Options(env=(("HF_TOKEN", "x"),), origins={"env.HF_TOKEN": "run lab-1"}),
            ["run lab-1: HF_TOKEN looks like a secret"],
        ),
        (Options(command=("train.py", f"--token={HF}")), ["command: a word looks like a secret"]),
        (Options(command=("train.py", "--token", HF)), ["command: a word looks like a secret"]),
        (Options(command=("train.py", "--token", "x")), []),
    ],
)
def test_what_would_be_recorded_in_clear_is_noticed_wherever_it_comes_from(
    options: Options, told: list[str]
) -> None:
    given = effective(cluster(env=(("API_KEY", "as the inventory has it"),)), options)
    said = notices(notice_job.notice_secrets, given)
    assert [notice.text.split(",")[0] for notice in said] == told
    assert {notice.level for notice in said} <= {"warning"}
    assert HF not in repr(said)


def test_spare_nodes_are_left_out_of_a_run_without_restarts() -> None:
    *others, last = cluster().nodes
    inventory = replace(cluster(), nodes=(*others, replace(last, spare=True)))
    said: list[Notice] = []
    left = notice_job.without_unused_spares(inventory, emit=said.append)  # type: ignore[arg-type]
    assert [node.name for node in left.nodes] == [node.name for node in others]
    assert last.name in said[0].text
    restarted = replace(inventory, job=replace(inventory.job, restart=Restart(max=1)))
    assert notice_job.without_unused_spares(restarted, emit=said.append) == restarted  # type: ignore[arg-type]
    assert len(said) == 1


def test_restarts_that_would_begin_from_the_start_are_noticed() -> None:
    def warned(**job: object) -> list[str]:
        given = cluster(restart=Restart(max=3), **job).job
        return [one.text for one in notices(notice_job.notice_restarts, given)]

    for words in ((), ("--from={checkpoint}",)):
        (no_folder,) = warned(resume_args=words)
        assert "job.checkpoints is not set" in no_folder
    (no_words,) = warned(checkpoints="out")
    assert "has no {checkpoint}" in no_words
    assert warned(checkpoints="out", resume_args=("--from={checkpoint}",)) == []
    filled = cluster(restart=Restart(max=3), checkpoints="out", command=("t.py", "/out/5")).job
    assert not notices(notice_job.notice_restarts, filled, ("t.py", "{checkpoint}"))
    assert not notices(notice_job.notice_restarts, cluster().job)
    elastic = cluster(launcher="torchrun", launcher_args=("--nnodes=1:2",)).job
    assert not notices(notice_job.notice_restarts, elastic)
    (notice,) = notices(
        notice_job.notice_restarts, replace(elastic, resume_args=("--from={checkpoint}",))
    )
    assert "starts the ranks of an elastic run again without job.resume_args" in notice.text


def test_a_script_for_sbatch_is_told_from_others(tmp_path: Path) -> None:
    (tmp_path / "job.slurm").write_text("#!/bin/bash\n#SBATCH --nodes=2\nsrun python t.py\n")
    (tmp_path / "job.sh").write_text("echo '#SBATCH'\n# SBATCH\n")
    for command in (("job.slurm",), ("bash", "job.slurm", "x")):
        (notice,) = notices(notice_job.notice_batch, cluster(command=command), tmp_path)
        assert notice.text.startswith("job.slurm:2: a script for sbatch: its #SBATCH lines")
        assert notice.hint.endswith("clusterctl launch --launcher slurm -- t.py")
        by_slurm = cluster(command=command, launcher="slurm")
        assert not notices(notice_job.notice_batch, by_slurm, tmp_path)
    other = cluster(command=("bash", "job.sh"))
    assert not notices(notice_job.notice_batch, other, tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ("--out", "ck2"),
        ("--output_dir=runs/a",),
        ("hydra.run=x", "save_dir=ck2"),
        ("--ckpt-path", "/c"),
    ],
)
def test_output_that_is_not_in_the_folder_of_the_checkpoints_is_noticed(
    words: tuple[str, ...],
) -> None:
    def said(*command: str, checkpoints: str | None = "ckpt") -> list[Notice]:
        job = cluster(command=("t.py", *command), checkpoints=checkpoints).job
        return notices(notice_job.notice_folder, job)

    (notice,) = said(*words)
    value = words[-1].rpartition("=")[2]
    assert f" {value}, and job.checkpoints is ckpt: status, resume and" in notice.text
    assert notice.hint == f"in the inventory: job: {{checkpoints: {value}}}"
    assert not said(*words, "--save", "other/ckpt")
    assert not said(*words, checkpoints=None)


def test_output_that_is_no_folder_of_checkpoints_is_not_noticed() -> None:
    words = ("t.py", "--out", "log.json", "--outliers", "x", "--output-dir", "--save")
    assert not notices(notice_job.notice_folder, cluster(command=words, checkpoints="ckpt").job)


def test_a_folder_of_its_own_is_named() -> None:
    words = ("t.py", "--out", "ckpt/{run}")
    (notice,) = notices(notice_job.notice_folder, cluster(command=words, checkpoints="ckpt").job)
    assert notice.text == "checkpoints: ckpt/{run}, which the command names below ckpt"
    assert notice.level == "info"
