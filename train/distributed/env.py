"""This process's rank and node, from the launcher's environment; without torch.

torchrun's variables are read; those of srun and mpirun are first turned into them. Names and forms
of Slurm's are those of the manual pages of srun and sbatch, "output environment variables".
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from train.errors import LauncherEnvError

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TORCHRUNS = (
    *NEEDED, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "GROUP_WORLD_SIZE",
    "NNODES", "NUM_NODES",
)  # fmt: skip
"""What only a program with several ranks has; one of them alone is half a launch."""
OPENMPI = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}
PMI = {
    "RANK": "PMI_RANK",
    "WORLD_SIZE": "PMI_SIZE",
    "LOCAL_RANK": "MPI_LOCALRANKID",
    "LOCAL_WORLD_SIZE": "MPI_LOCALNRANKS",
}
"""Of Hydra, the mpirun of MPICH and Intel MPI."""
NOT_TASKS = frozenset({"4294967290", "4294967291"})
"""Slurm's numbers for the shell of salloc and for the script of sbatch, in SLURM_STEP_ID."""
PORTS = range(15000, 30000)
"""Below the ports that Linux gives to outgoing connections (from 32768 on)."""
START = "start with clusterctl launch, torchrun or srun"


def node_name(environment: Mapping[str, str] = os.environ) -> str:
    """Return this node's name for messages: the inventory's under clusterctl, else the host's."""
    return environment.get("CLUSTERCTL_NODE") or socket.gethostname()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnv:
    """This process among the ranks, from the launcher's environment."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    nodes: int = 1
    launched: bool = False
    """Whether a launcher set the variables; without them this is a single process."""
    rendezvous: str = "env://"
    """Where ranks meet, as a torch init method."""
    remark: str = ""
    """A remark for the user on how it was started."""

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] = os.environ, *, terminal: bool | None = None
    ) -> RankEnv:
        """Read torchrun's variables, those that guides set by hand, or srun's and mpirun's."""
        if terminal is None:
            terminal = sys.stdin is not None and sys.stdin.isatty()
        if "RANK" not in environment:
            theirs = _of_mpi(environment) or _of_slurm(environment, terminal=terminal)
            if theirs:
                host = theirs["MASTER_ADDR"]
                host = f"[{host}]" if ":" in host else host
                return cls._of(theirs, f"tcp://{host}:{theirs['MASTER_PORT']}")
        if not any(name in environment for name in TORCHRUNS):
            return cls(remark=_single_process_remark(environment))
        return cls._of(environment, "env://")

    @classmethod
    def _of(cls, environment: Mapping[str, str], rendezvous: str) -> RankEnv:
        missing = [name for name in NEEDED if name not in environment]
        if missing:
            there = ", ".join(name for name in TORCHRUNS if name in environment)
            said = f"expected with the other distributed variables ({there}), found unset"
            raise _refused(f"{', '.join(missing)}: {said}", f"{START}, or unset {there}")
        world_size = _number(environment, "WORLD_SIZE", least=1)
        rank = _number(environment, "RANK")
        if rank >= world_size:
            said = f"expected one below WORLD_SIZE, which is {world_size}, found {rank}"
            raise _refused(f"RANK: {said}", "ranks are counted from 0")
        nodes = _number(environment, "GROUP_WORLD_SIZE", "NNODES", "NUM_NODES", least=1, default=0)
        each = _number(
            environment,
            "LOCAL_WORLD_SIZE",
            least=1,
            default=world_size // nodes if nodes and world_size % nodes == 0 else 1,
        )
        local_rank = _number(environment, "LOCAL_RANK", default=rank % each)
        if local_rank >= each:
            unset = "" if "LOCAL_WORLD_SIZE" in environment else " if it is unset"
            said = f"expected one below LOCAL_WORLD_SIZE, which is {each}{unset}"
            hint = f"{START}, or set LOCAL_WORLD_SIZE to the ranks of this node"
            raise _refused(f"LOCAL_RANK: {said}, found {local_rank}", hint)
        says_node = "GROUP_RANK" in environment or "NODE_RANK" in environment
        if not says_node and world_size % each == 0 and local_rank != rank % each:
            found = f"rank {rank} of {world_size} as number {local_rank} of a node with {each}"
            raise _refused(
                f"RANK: expected ranks counted along each node, found {found}",
                "mpirun --map-by slot --rank-by slot (Open MPI); without -rr (Hydra)",
            )
        return cls(
            rank=rank,
            world_size=world_size,
            local_rank=local_rank,
            local_world_size=each,
            node_rank=_number(environment, "GROUP_RANK", "NODE_RANK", default=rank // each),
            nodes=nodes or max(1, world_size // each),
            launched=True,
            rendezvous=rendezvous,
        )


def _refused(problem: str, hint: str) -> LauncherEnvError:
    return LauncherEnvError(f"{problem}\nhint: {hint}")


def _number(
    environment: Mapping[str, str], *keys: str, least: int = 0, default: int | None = None
) -> int:
    """Return the number of the first of the keys that is set."""
    key = next((key for key in keys if key in environment), None)
    if key is None and default is not None:
        return default
    text = environment.get(key or keys[0], "")
    found = int(text) if re.fullmatch(r"\d{1,9}", text, re.ASCII) else -1
    if found < least:
        said = f"expected a whole number from {least} on, found {text!r}"
        raise _refused(f"{key or keys[0]}: {said}", START)
    return found


def _of_mpi(environment: Mapping[str, str]) -> dict[str, str] | None:
    """Return torchrun's variables from mpirun's; None for a single process."""
    # mpirun may start its own helpers with srun, whose tasks are not the ranks; and srun may set
    # PMI's variables, which then are its own tasks'.
    tasks = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_STEP_NUM_TASKS"}
    sruns = all(environment.get(PMI[key]) == environment.get(tasks[key]) for key in tasks)
    names = OPENMPI if OPENMPI["WORLD_SIZE"] in environment else {} if sruns else PMI
    if not names or environment.get(names["WORLD_SIZE"], "1") == "1":
        return None
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in environment]
    if missing:
        size = f"{names['WORLD_SIZE']}={environment[names['WORLD_SIZE']]}"
        raise _refused(
            f"{', '.join(missing)}: expected with mpirun's {size}, found unset",
            f"{START}; or export "
            "MASTER_ADDR (the host of rank 0) and MASTER_PORT (a free port there) and give both "
            "on: `mpirun -x MASTER_ADDR -x MASTER_PORT …` (Open MPI), `mpirun -genvall …` (Hydra)",
        )
    found = {key: environment[name] for key, name in names.items() if name in environment}
    return found | {key: environment[key] for key in TORCHRUNS if key in environment}


def _of_slurm(environment: Mapping[str, str], *, terminal: bool) -> dict[str, str] | None:
    """Return torchrun's variables from those of a task of srun; None if this is none.

    The script of sbatch and the shell of salloc or `srun --pty` have most of a task's variables,
    but the user or the script starts one process.
    """
    step = environment.get("SLURM_STEP_ID", environment.get("SLURM_STEPID"))
    if step is None or step in NOT_TASKS:
        return None
    if terminal and "SLURM_PTY_PORT" in environment:
        return None
    names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")
    size = _number(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", least=1, default=1)
    if size == 1:
        return None
    missing = [name for name in names if name not in environment]
    if missing:
        said = f"expected with SLURM_STEP_ID={step}, found unset"
        hint = "srun sets them; does a script unset them?"
        raise _refused(f"{', '.join(missing)}: {said}", hint)
    rank, local, node = (_number(environment, name) for name in names)
    nodes = _number(
        environment, "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", least=1
    )
    each = _tasks_of_nodes(environment, size, nodes)
    if node >= len(each) or rank != sum(each[:node]) + local:
        said = f"expected tasks counted along each node ({each} on the nodes)"
        found = f"task {rank} as number {local} of node {node}"
        raise _refused(f"SLURM_PROCID: {said}, found {found}", "srun --distribution=block")
    given = environment.get("WORLD_SIZE", str(size))
    if given != str(size):
        message = f"WORLD_SIZE: expected srun's {size} tasks, found {given}"
        raise _refused(message, f"unset WORLD_SIZE, or srun --ntasks={given}")
    variables = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": local,
        "LOCAL_WORLD_SIZE": each[node],
        "GROUP_RANK": node,
        "GROUP_WORLD_SIZE": nodes,
        "MASTER_ADDR": environment.get("MASTER_ADDR") or _first_host(environment),
        "MASTER_PORT": environment.get("MASTER_PORT") or _port(environment, step),
    }
    return {name: str(value) for name, value in variables.items()}


def _tasks_of_nodes(environment: Mapping[str, str], size: int, nodes: int) -> list[int]:
    """Return how many tasks each node has, from Slurm's `4(x2),3`."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE", environment.get("SLURM_TASKS_PER_NODE"))
    each: list[int] = []
    for part in (text or "").split(","):
        if match := re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part):
            each += [int(match[1])] * int(match[2] or 1)
    if sum(each) == size:
        return each
    usual = _number(environment, "SLURM_NTASKS_PER_NODE", least=1, default=-(-size // nodes))
    return [min(usual, size - first) for first in range(0, size, usual)]


def _first_host(environment: Mapping[str, str]) -> str:
    """Return the first host of Slurm's list, `gpu[07-09,12],login` → `gpu07`."""
    names = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    text = next((environment[name] for name in names if environment.get(name)), "")
    host = re.match(r"(?:[^\[,]|\[[^\]]*\])*", text)
    found = re.sub(r"\[(\w+)[^\]]*\]", r"\1", host[0]) if host else ""
    if not found:
        said = f"expected it, or one of {', '.join(names)}, found none"
        raise _refused(f"MASTER_ADDR: {said}", "export MASTER_ADDR, the host of task 0")
    return found


def _port(environment: Mapping[str, str], step: str) -> int:
    """Return a port that other jobs and other steps of this one probably do not have."""
    job = environment.get("SLURM_JOB_ID", environment.get("SLURM_JOBID", "0"))
    number = int(job) * 7 + int(step) if job.isdigit() and step.isdigit() else 0
    return PORTS[number % len(PORTS)]


def _single_process_remark(environment: Mapping[str, str]) -> str:
    """Return a remark on a single process in an allocation that was made for more."""
    tasks = environment.get("SLURM_NTASKS", "1")
    if tasks == "1" or environment.get("SLURM_STEP_NUM_TASKS") == "1":
        return ""
    return f"one process, though the Slurm job has {tasks} tasks: `srun python -m train` starts all"
