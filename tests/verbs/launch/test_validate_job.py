"""What is refused before anything is asked of a node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from clusterctl.inventory.cluster import Cluster, Hang, Restart
from clusterctl.plan.effective import effective
from clusterctl.plan.options import Options
from clusterctl.verbs.launch import validate_job
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


def test_a_hung_run_that_is_to_restart_needs_restarts() -> None:
    hang = Hang(action="restart")
    with pytest.raises(UsageError, match="restart expects restarts, found none") as refused:
        validate_job.require_job(cluster(hang=hang))
    assert refused.value.hint == "--restarts 2, or --hang-action stop"
    validate_job.require_job(cluster(hang=hang, restart=Restart(max=1)))
