"""A process's rank, as torchrun, guides, srun and mpirun tell it; or why it cannot be told."""

from __future__ import annotations

import re
import socket

import pytest

from train.distributed.env import RankEnv, node_name
from train.errors import LauncherEnvError

TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "6",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "2",
    "GROUP_WORLD_SIZE": "3",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
FEW = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
BATCH = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "gpu[07-08,11],login",
    "SLURM_NNODES": "2",
    "SLURM_NTASKS": "4",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
"""What the script of `sbatch --nodes=2 --ntasks-per-node=2` has."""
TASK = BATCH | {
    "SLURM_STEP_ID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}
"""What the last task of `srun` in that script has."""


def read(environment: dict[str, str], *, terminal: bool = False) -> RankEnv:
    return RankEnv.from_environment(environment, terminal=terminal)


def shape(env: RankEnv) -> tuple[int, ...]:
    return (
        env.rank, env.world_size, env.local_rank, env.local_world_size, env.node_rank, env.nodes,
    )  # fmt: skip


def test_torchruns_variables_are_read() -> None:
    env = read(TORCHRUN)
    assert shape(env) == (5, 6, 1, 2, 2, 3)
    assert env.launched
    assert env.rendezvous == "env://"
    # Each of its processes is in a task of srun, which is one a node.
    assert read(TASK | TORCHRUN) == env


def test_the_variables_of_guides_are_enough() -> None:
    assert shape(read(FEW)) == (3, 4, 0, 1, 3, 4)
    assert shape(read(FEW | {"NNODES": "2", "NODE_RANK": "1"})) == (3, 4, 1, 2, 1, 2)


def test_without_variables_it_is_a_single_process() -> None:
    assert read({"PATH": "/bin"}) == RankEnv()


@pytest.mark.parametrize(
    ("environment", "missing"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR, MASTER_PORT"),
        ({"WORLD_SIZE": "2"}, "RANK, MASTER_ADDR, MASTER_PORT"),
        ({"LOCAL_RANK": "0"}, "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "1"}, "RANK, WORLD_SIZE"),
        ({"NODE_RANK": "1", "NNODES": "2"}, "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT"),
        (BATCH | {"MASTER_ADDR": "a", "MASTER_PORT": "1"}, "RANK, WORLD_SIZE"),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}, "MASTER_ADDR, MASTER_PORT"),
        ({"PMI_SIZE": "4", "PMI_RANK": "1", "MASTER_ADDR": "a"}, "MASTER_PORT"),
    ],
)
def test_half_of_the_variables_are_refused(environment: dict[str, str], missing: str) -> None:
    with pytest.raises(LauncherEnvError, match=rf"^{missing}: expected with .*\nhint: .*torchrun"):
        read(environment)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("WORLD_SIZE", "abc", "expected a whole number from 1 on, found 'abc'"),
        ("LOCAL_WORLD_SIZE", "0", "expected a whole number from 1 on, found '0'"),
        ("GROUP_WORLD_SIZE", "0", "expected a whole number from 1 on, found '0'"),
        ("LOCAL_RANK", "-1", "expected a whole number from 0 on, found '-1'"),
        ("LOCAL_RANK", "2", "expected one below LOCAL_WORLD_SIZE, which is 2, found 2"),
        ("RANK", "6", "expected one below WORLD_SIZE, which is 6, found 6"),
    ],
)
def test_a_variable_that_is_no_such_number_is_refused(name: str, text: str, words: str) -> None:
    with pytest.raises(LauncherEnvError, match=rf"^{name}: {words}\nhint: "):
        read(TORCHRUN | {name: text})


def test_a_local_rank_needs_the_number_of_them() -> None:
    with pytest.raises(LauncherEnvError, match=r"^LOCAL_RANK: .*which is 1 if it is unset"):
        read(FEW | {"LOCAL_RANK": "3"})


def test_a_task_of_srun_is_a_rank() -> None:
    env = read(TASK)
    assert shape(env) == (3, 4, 1, 2, 1, 2)
    assert env.launched
    assert re.fullmatch(r"tcp://gpu07:\d{5}", env.rendezvous)
    first = read(TASK | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"})
    assert first.rendezvous == env.rendezvous
    assert read(TASK | {"SLURM_STEP_ID": "2"}).rendezvous != env.rendezvous, "of another step"
    assert read(TASK | {"MASTER_ADDR": "b", "MASTER_PORT": "7"}).rendezvous == "tcp://b:7"
    assert read(TASK, terminal=True) == env, "a terminal alone makes no interactive step"


@pytest.mark.parametrize(
    ("hosts", "first"),
    [("a", "a"), ("a,b", "a"), ("a[1,3]-ib,b", "a1-ib"), ("r[0-1]n[08-11]", "r0n08")],
)
def test_the_first_host_of_slurms_list_is_where_they_meet(hosts: str, first: str) -> None:
    assert read(TASK | {"SLURM_STEP_NODELIST": hosts}).rendezvous.startswith(f"tcp://{first}:")


def test_nodes_may_have_different_numbers_of_tasks() -> None:
    uneven = {"SLURM_STEP_TASKS_PER_NODE": "3,1", "SLURM_LOCALID": "0"}
    assert shape(read(TASK | uneven)) == (3, 4, 0, 1, 1, 2)
    few = {k: v for k, v in TASK.items() if not k.endswith("TASKS_PER_NODE")}
    assert shape(read(few)) == (3, 4, 1, 2, 1, 2)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"SLURM_LOCALID": "0"}, "SLURM_PROCID: expected tasks counted along each node"),
        ({"WORLD_SIZE": "8"}, "WORLD_SIZE: expected srun's 4 tasks, found 8\nhint: "),
        ({"SLURM_PROCID": "x"}, "SLURM_PROCID: expected a whole number"),
        ({"SLURM_STEP_NODELIST": "", "SLURM_JOB_NODELIST": ""}, "MASTER_ADDR: expected it, or"),
    ],
)
def test_a_task_that_cannot_be_a_rank_is_refused(changed: dict[str, str], words: str) -> None:
    with pytest.raises(LauncherEnvError, match=f"^{words}"):
        read(TASK | changed)


def test_a_task_without_its_number_is_refused() -> None:
    with pytest.raises(LauncherEnvError, match=r"^SLURM_PROCID: expected with SLURM_STEP_ID=1"):
        read({k: v for k, v in TASK.items() if k != "SLURM_PROCID"})


@pytest.mark.parametrize(
    ("environment", "terminal"),
    [
        (BATCH, False),
        (BATCH | {"SLURM_STEP_ID": "4294967291"}, False),
        (BATCH | {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "4"}, True),
        (TASK | {"SLURM_PTY_PORT": "40000"}, True),
    ],
    ids=["sbatch", "sbatch-step", "salloc", "srun --pty bash"],
)
def test_a_script_or_a_shell_is_one_process(environment: dict[str, str], *, terminal: bool) -> None:
    env = read(environment, terminal=terminal)
    assert (env.world_size, env.launched) == (1, False)
    assert env.remark.startswith("one process, though the Slurm job has 4 tasks: `srun ")


def test_a_step_of_one_task_is_one_process() -> None:
    assert read(TASK | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PTY_PORT": "1"}) == RankEnv()


def test_mpiruns_variables_are_read_where_it_is_said_where_to_meet() -> None:
    where = {"MASTER_ADDR": "a", "MASTER_PORT": "1"}
    openmpi = {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    }
    env = read(openmpi | where)
    assert shape(env) == (3, 4, 1, 2, 1, 2)
    assert env.rendezvous == "tcp://a:1"
    # mpirun in a Slurm job starts its helpers, one a node, with srun.
    assert read(openmpi | where | TASK | {"SLURM_STEP_NUM_TASKS": "2"}) == env
    assert read({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}) == RankEnv()
    # srun sets PMI's variables itself.
    assert read(TASK | {"PMI_RANK": "3", "PMI_SIZE": "4"}) == read(TASK)


def test_messages_name_the_node_as_the_inventory_does() -> None:
    assert node_name({"CLUSTERCTL_NODE": "gpu1"}) == "gpu1"
    assert node_name({}) == node_name({"CLUSTERCTL_NODE": ""}) == socket.gethostname()


@pytest.mark.parametrize("prefix", ["OMPI_COMM_WORLD", "PMI"])
def test_ranks_that_go_round_the_nodes_are_refused(prefix: str) -> None:
    """Rank 1 as the first of the second node: `mpirun --map-by node`, or Hydra's `-rr`."""
    names = {
        "OMPI_COMM_WORLD": ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"),
        "PMI": ("RANK", "SIZE"),
    }
    keys = [f"{prefix}_{name}" for name in names[prefix]]
    keys += [] if prefix != "PMI" else ["MPI_LOCALRANKID", "MPI_LOCALNRANKS"]
    where = {"MASTER_ADDR": "a", "MASTER_PORT": "1"}
    for rank, local in ((0, 0), (1, 1), (2, 0), (3, 1)):
        found = read(dict(zip(keys, (str(rank), "4", str(local), "2"), strict=True)) | where)
        assert (found.node_rank, found.local_rank) == (rank // 2, local)
    with pytest.raises(LauncherEnvError, match="found rank 1 of 4 as number 0 of a node with 2"):
        read(dict(zip(keys, ("1", "4", "0", "2"), strict=True)) | where)
