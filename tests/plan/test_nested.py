"""Launchers in a job's command or script are recognized, and the command to type is given."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from clusterctl.errors import UsageError
from clusterctl.inventory.cluster import Cluster, Job
from clusterctl.plan import nested
from clusterctl.plan.effective import effective
from clusterctl.plan.options import Options
from tests.plan.conftest import node

LAB = Cluster(name="lab", nodes=(node(0), node(1)))


def refused(command: str, cluster: Cluster = LAB) -> UsageError:
    given = effective(cluster, Options(command=tuple(shlex.split(command))))
    with pytest.raises(UsageError) as caught:
        nested.require_no_launcher(given)
    return caught.value


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("torchrun --nproc_per_node=4 --nnodes 2 train.py --lr 1", "--gpus 4 -- train.py --lr 1"),
        ("/venv/bin/torchrun --standalone --nproc-per-node gpu x.py", "-- x.py"),
        ("torchrun --nnodes=1 --nproc_per_node 8 x.py", "--nodes 1 --gpus 8 -- x.py"),
        ("python -m torch.distributed.run --nproc_per_node 2 -m x -q", "--gpus 2 -- -m x -q"),
        ("-m torch.distributed.launch --use_env x.py", "-- x.py"),
        ("python3.11 -u -m torch.distributed.run --no-python ./x.sh", "-- ./x.sh"),
        ("env OMP_NUM_THREADS=1 torchrun --max-restarts 3 x.py", "--max-restarts 3 -- x.py"),
        ("torchrun --rdzv_endpoint h:1 --master_port 7 x.py", "--master-port 7 -- x.py"),
        ("accelerate launch --num_processes 8 --machine_rank 0 x.py a", "--gpus 4 -- x.py a"),
        (
            "accelerate launch --mixed_precision bf16 x.py",
            "--env ACCELERATE_MIXED_PRECISION=bf16 -- x.py",
        ),
        (
            "deepspeed --num_gpus=8 --hostfile hf x.py --deepspeed ds.json",
            "--gpus 8 -- x.py --deepspeed ds.json",
        ),
        ("mpirun -np 16 --allow-run-as-root python -u x.py --a", "--gpus 8 -- x.py --a"),
        ("srun --ntasks-per-node=8 python -m train", "--gpus 8 -- -m train"),
        ("mpirun -np 16 --mca btl_tcp_if_include eth0 python x.py", "--gpus 8 -- x.py"),
        ("torchrun --nproc_per_node ² x.py", "-- x.py"),
        ("env -u X torchrun x.py", "-- x.py"),
        ("python -W ignore -m torch.distributed.run x.py", "-- x.py"),
        ("python /venv/bin/torchrun x.py", "-- x.py"),
    ],
)  # fmt: skip
def test_a_launcher_is_refused_with_the_command_to_type(command: str, wanted: str) -> None:
    error = refused(command)
    assert str(error).startswith("command: expected the training program, found the launcher")
    assert error.hint == f"clusterctl launch {wanted}"


def test_processes_on_cpus_are_no_gpus() -> None:
    cpus = LAB.with_nodes((node(0, gpus=0), node(1, gpus=0)))
    assert refused("torchrun --nproc_per_node 3 x.py", cpus).hint == (
        "clusterctl launch --procs-per-node 3 -- x.py"
    )


def test_what_has_no_counterpart_is_named() -> None:
    error = refused("torchrun --tee 3 --nproc_per_node=2 --monitor-interval=5 x.py --tee")
    assert "clusterctl has no option for --tee 3 --monitor-interval=5" in str(error)
    assert error.hint == "clusterctl launch --gpus 2 -- x.py --tee"


def test_the_inventorys_command_is_named_as_that() -> None:
    lab = replace(LAB, job=Job(command=("torchrun", "x.py")))
    with pytest.raises(UsageError, match=r"^job\.command: expected"):
        nested.require_no_launcher(lab)


@pytest.mark.parametrize(
    "command",
    ["train.py --launcher torchrun", "-m train", "bash train.sh", "python -u x.py torchrun",
     "./torchrun.py", "accelerate env", "python", ""],
)  # fmt: skip
def test_other_programs_are_not(command: str) -> None:
    given = effective(LAB, Options(command=tuple(shlex.split(command))))
    nested.require_no_launcher(given)


def test_a_launcher_is_a_choice_with_a_process_a_node() -> None:
    given = effective(LAB, Options(command=("torchrun", "x.py"), procs_per_node=1))
    nested.require_no_launcher(given)


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("torchrun x.py", (1, "torchrun")),
        ("#!/bin/bash\nset -e\nexec python -m torch.distributed.run x.py", (3, "torchrun")),
        ("A=1 B='x y' /opt/bin/torchrun x.py", (1, "torchrun")),
        ("cd a && accelerate  launch x.py", (1, "accelerate launch")),
        ('LAUNCHER="torchrun --nproc 8"\n$LAUNCHER x.py', (1, "torchrun")),
        ("if true; then\n  deepspeed x.py\nfi", (2, "deepspeed")),
        ("A=1 \\\n  torchrun \\\n  x.py", (1, "torchrun")),
        ("# torchrun x.py\npython x.py --deepspeed ds.json", None),
        ("pip install deepspeed\npython x.py  # no torchrun here", None),
        ("echo use torchrun instead", None),
        ("", None),
    ],
)  # fmt: skip
def test_a_script_that_starts_a_launcher_is_known_by_its_line(
    script: str, found: tuple[int, str] | None
) -> None:
    assert nested.launcher_in_script(script) == found


@pytest.mark.parametrize(
    ("command", "script"),
    [("bash -e train.sh x", "train.sh"), ("./run.sh", "./run.sh"), ("/bin/sh a/b.sh", "a/b.sh"),
     ("train.py --hook x.sh", ""), ("bash -c 'torchrun x.py'", "")],
)  # fmt: skip
def test_the_script_of_a_command(command: str, script: str) -> None:
    assert nested.script_of(tuple(shlex.split(command))) == script
