"""What is refused before anything is asked of a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from clusterctl.errors import LaunchRefused, UsageError
from clusterctl.inventory.cluster import Cluster, Hang, Restart
from clusterctl.plan.effective import effective
from clusterctl.plan.options import Options
from clusterctl.transport.pool import Pool
from clusterctl.verbs.events import Event, Notice
from clusterctl.verbs.launch import launch, validate_job
from clusterctl.verbs.launch.options import LaunchOptions
from tests.fake_pool import FakePool
from tests.verbs.run_answers import CLUSTER


def cluster(**job: object) -> Cluster:
    return replace(CLUSTER, job=replace(CLUSTER.job, **job))  # type: ignore[arg-type]


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    given = cluster(env_from=("HF_TOKEN",))
    with pytest.raises(UsageError, match="HF_TOKEN"):
        validate_job.require_secrets(given)
    monkeypatch.setenv("HF_TOKEN", "")
    validate_job.require_secrets(given)


def test_what_the_command_line_sets_is_not_taken_from_the_shell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    options = Options(env=(("HF_TOKEN", "x"),))
    given = effective(cluster(env_from=("HF_TOKEN", "PATH")), options)
    validate_job.require_secrets(given)
    assert given.job.env_from == ("PATH",)


def test_a_script_that_is_not_in_the_folder_is_refused_before_its_folder_is_mirrored(
    tmp_path: Path,
) -> None:
    nodes = tuple(replace(node, workdir="/code") for node in CLUSTER.nodes)
    given = replace(cluster(command=("job.py",)), nodes=nodes)
    with pytest.raises(UsageError, match=r"the script job\.py in .*, found no such file"):
        validate_job.require_script(given, tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "train.py").touch()
    typo = replace(given, job=replace(given.job, command=("sub/trian.py",)))
    with pytest.raises(UsageError) as refused:
        validate_job.require_script(typo, tmp_path)
    assert str(refused.value.hint).startswith("sub/train.py is there; cd to the folder")
    for command in (("/opt/job.py",), ("-m", "job")):
        validate_job.require_script(
            replace(given, job=replace(given.job, command=command)), tmp_path
        )
    (tmp_path / "job.py").touch()
    validate_job.require_script(given, tmp_path)
    (tmp_path / "run.sh").touch()
    alone = replace(given, job=replace(given.job, command=("run.sh", "a b")))
    with pytest.raises(
        UsageError, match=r"expected a program, found the script run\.sh"
    ) as refused:
        validate_job.require_runnable(alone.job.command, tmp_path)
    assert refused.value.hint == "-- bash run.sh 'a b'"
    here = replace(given, job=replace(given.job, command=("./run.sh",)))
    with pytest.raises(UsageError, match=r"may not be run \(chmod \+x\)"):
        validate_job.require_runnable(here.job.command, tmp_path)
    (tmp_path / "run.sh").chmod(0o755)
    validate_job.require_runnable(here.job.command, tmp_path)


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (("train.py --steps 5",), "-- train.py --steps 5"),
        (("torchrun train.py ",), "-- torchrun train.py"),
        (("train", "--steps", "5"), "-- train.py --steps 5"),
        (("tool", "a b"), "-- -m tool 'a b'"),
    ],
)
def test_what_is_no_program_gets_the_words_to_type(
    command: tuple[str, ...], hint: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "__main__.py").touch()
    (tmp_path / "with space").touch()
    with pytest.raises(UsageError) as refused:
        validate_job.require_runnable(command, tmp_path)
    assert refused.value.hint == hint
    for other in (("with space",), ("sh", "-c", "a b"), ("python",), ("nothing",)):
        validate_job.require_runnable(other, tmp_path)


def test_the_longest_time_is_told_in_hours_and_minutes() -> None:
    told: list[Event] = []
    validate_job.notice_job(cluster(max_time=5400.0).job, emit=told.append)
    assert "max_time: the run is stopped after 1:30:00 (h:mm:ss)" in [
        one.text for one in told if isinstance(one, Notice)
    ]


def test_a_number_of_gpus_for_nodes_that_use_none_is_refused() -> None:
    nodes = tuple(replace(node, gpus=0) for node in CLUSTER.nodes)
    none = replace(CLUSTER, nodes=nodes)
    given = effective(none, Options(gpus=2, origins={"gpus": "--gpus"}))
    with pytest.raises(UsageError, match="--gpus: expected no number of GPUs") as refused:
        validate_job.require_job(given)
    assert "--procs-per-node 2" in str(refused.value.hint)
    one_has = replace(given, nodes=(replace(given.nodes[0], gpus=None), *given.nodes[1:]))
    validate_job.require_job(one_has)
    validate_job.require_job(effective(none, Options(gpus=0, origins={"gpus": "--gpus"})))


def test_a_script_without_a_folder_for_it_on_the_nodes_is_refused(tmp_path: Path) -> None:
    given = cluster(command=("job.py",))
    nodes = tuple(replace(node, workdir=None) for node in given.nodes)
    validate_job.require_script(replace(given, nodes=nodes), tmp_path)  # the nodes may have it
    (tmp_path / "job.py").touch()
    with pytest.raises(UsageError, match="workdir: expected the folder on the nodes") as caught:
        validate_job.require_script(replace(given, nodes=nodes), tmp_path)
    assert "--workdir DIR" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("launcher", "args", "found"),
    [
        ("torchrun", ("--standalone",), "--standalone"),
        ("torchrun", ("--tee", "3", "--nnodes=1"), "--nnodes=1"),
        ("torchrun", ("--rdzv_endpoint", "localhost:1"), "--rdzv_endpoint localhost:1"),
        ("torchrun", ("--nproc_per_node=2",), "--nproc_per_node=2"),
        ("accelerate", ("--num_machines", "1"), "--num_machines 1"),
        ("torchrun", ("--tee", "3", "--rdzv-backend=c10d", "--nnodes=1:4"), ""),
        ("torchrun", (f"--nnodes={len(CLUSTER.nodes)}", "--max-restarts=3"), ""),
        ("accelerate", ("--config_file", "a.yaml", "--mixed_precision", "bf16"), ""),
        ("ray", ("--standalone",), ""),
    ],
)
def test_arguments_of_the_launcher_leave_the_ranks_to_the_plan(
    launcher: str, args: tuple[str, ...], found: str
) -> None:
    given = cluster(command=("job.py",), launcher=launcher, launcher_args=args)
    if not found:
        validate_job.require_job(given)
        return
    with pytest.raises(UsageError, match=f"leave the nodes and ranks to the plan, found {found}$"):
        validate_job.require_job(given)


NESTED = "cd src\nexport A=1\nCUDA_VISIBLE_DEVICES=0 \\\n  torchrun --nproc_per_node=1 train.py\n"


def noticed(given: Cluster, folder: Path, *, force: bool = True) -> list[Notice]:
    return notices(validate_job.notice_words, given, folder, force=force)


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


def test_what_only_a_condition_starts_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("if true; then torchrun train.py; fi\n")
    (said,) = noticed(cluster(command=("bash", "train.sh")), tmp_path, force=False)
    assert (said.level, said.text[:11]) == ("warning", "train.sh:1:")


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
    given = cluster(command=("train.py", "--rank", "0"))
    flag, rank = noticed(given, tmp_path, force=False)
    assert flag.text.startswith("train.py:1: it takes --local-rank, which torchrun does not give")
    assert rank.text.startswith("command: train.py gets --rank 0 on every node")
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
    said = notices(validate_job.notice_secrets, given)
    assert [notice.text.split(",")[0] for notice in said] == told
    assert {notice.level for notice in said} <= {"warning"}
    assert HF not in repr(said)


def test_restarts_of_a_variable_number_of_nodes_are_refused() -> None:
    elastic = cluster(launcher_args=("--nnodes=1:2",))
    validate_job.require_job(elastic)
    restarted = replace(elastic, job=replace(elastic.job, restart=Restart(max=3)))
    with pytest.raises(UsageError, match="expected 0 with a variable number of nodes, found 3"):
        validate_job.require_job(restarted)
    validate_job.require_job(cluster(restart=Restart(max=3)))


def test_spares_that_no_restart_could_use_are_refused() -> None:
    def given(*, count: int = 1, most: int = 3, least: int = 0, **job: object) -> Cluster:
        restart = Restart(max=most, min_nodes=least)
        return effective(cluster(restart=restart, **job), Options(spares=count))

    validate_job.require_job(given())
    validate_job.require_job(given(launcher="direct", count=0, least=1))
    for refused, why in (
        (given(launcher="ray"), "spares: .* found the launcher ray, whose nodes are fixed"),
        (given(count=0, least=1, launcher="ray"), "min_nodes: .* found the launcher ray"),
        (given(most=0), "spares: expected at least one restart, found --restarts 0"),
        (given(launcher_args=("--nnodes=1",)), "without --nnodes|leave the nodes and ranks"),
    ):
        with pytest.raises(UsageError, match=why):
            validate_job.require_job(refused)
    never = effective(cluster(), Options(min_nodes=2))
    with pytest.raises(UsageError, match="min_nodes: expected at least one restart") as found:
        validate_job.require_job(never)
    assert found.value.hint == "--restarts 3, or leave out --min-nodes"
    validate_job.require_job(given(count=0, least=99))  # as a resume on fewer nodes may have it
    with pytest.raises(UsageError, match="--spares: expected fewer than the"):
        given(count=99)


def test_spare_nodes_are_left_out_of_a_run_without_restarts() -> None:
    *others, last = cluster().nodes
    inventory = replace(cluster(), nodes=(*others, replace(last, spare=True)))
    said: list[Notice] = []
    left = validate_job.without_unused_spares(inventory, emit=said.append)  # type: ignore[arg-type]
    assert [node.name for node in left.nodes] == [node.name for node in others]
    assert last.name in said[0].text
    restarted = replace(inventory, job=replace(inventory.job, restart=Restart(max=1)))
    assert validate_job.without_unused_spares(restarted, emit=said.append) == restarted  # type: ignore[arg-type]
    assert len(said) == 1


def test_a_hung_run_that_is_to_restart_needs_restarts() -> None:
    hang = Hang(action="restart")
    with pytest.raises(UsageError, match="restart expects restarts, found none") as refused:
        validate_job.require_job(cluster(hang=hang))
    assert refused.value.hint == "--restarts 2, or --hang-action stop"
    validate_job.require_job(cluster(hang=hang, restart=Restart(max=1)))


def test_restarts_that_would_begin_from_the_start_are_noticed() -> None:
    def warned(**job: object) -> list[str]:
        given = cluster(restart=Restart(max=3), **job).job
        return [one.text for one in notices(validate_job.notice_restarts, given)]

    for words in ((), ("--from={checkpoint}",)):
        (no_folder,) = warned(resume_args=words)
        assert "job.checkpoints is not set" in no_folder
    (no_words,) = warned(checkpoints="out")
    assert "has no {checkpoint}" in no_words
    assert warned(checkpoints="out", resume_args=("--from={checkpoint}",)) == []
    filled = cluster(restart=Restart(max=3), checkpoints="out", command=("t.py", "/out/5")).job
    assert not notices(validate_job.notice_restarts, filled, ("t.py", "{checkpoint}"))
    assert not notices(validate_job.notice_restarts, cluster().job)
    elastic = cluster(launcher="torchrun", launcher_args=("--nnodes=1:2",)).job
    assert not notices(validate_job.notice_restarts, elastic)
    (notice,) = notices(
        validate_job.notice_restarts, replace(elastic, resume_args=("--from={checkpoint}",))
    )
    assert "starts the ranks of an elastic run again without job.resume_args" in notice.text


def test_a_script_for_sbatch_is_told_from_others(tmp_path: Path) -> None:
    (tmp_path / "job.slurm").write_text("#!/bin/bash\n#SBATCH --nodes=2\nsrun python t.py\n")
    (tmp_path / "job.sh").write_text("echo '#SBATCH'\n# SBATCH\n")
    for command in (("job.slurm",), ("bash", "job.slurm", "x")):
        (notice,) = notices(validate_job.notice_batch, cluster(command=command), tmp_path)
        assert notice.text.startswith("job.slurm:2: a script for sbatch: its #SBATCH lines")
        assert "clusterctl launch --launcher slurm" in notice.hint
        by_slurm = cluster(command=command, launcher="slurm")
        assert not notices(validate_job.notice_batch, by_slurm, tmp_path)
    other = cluster(command=("bash", "job.sh"))
    assert not notices(validate_job.notice_batch, other, tmp_path)
