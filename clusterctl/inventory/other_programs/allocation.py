"""The Slurm allocation that this process is in: its job and its hosts."""

import os
import re

from clusterctl.inventory.ranges import BadRange, expand_hosts
from clusterctl.values import dataclass

JOB = "SLURM_JOB_ID"
"""Slurm sets it in the shell of salloc and in the script of sbatch."""
NODELISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
SBATCH = re.compile(r"^#SBATCH\s", re.MULTILINE)
"""A line of a script with options for sbatch."""
_PROGRAM = re.compile(r"^(?![ \t]*#).*?([\w./-]+\.py)\b", re.MULTILINE)


def program_in(script: str) -> str:
    """Return the first Python script that a script for sbatch names; `train.py`: none."""
    found = _PROGRAM.search(script)
    return found[1] if found else "train.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What Slurm has given to this process."""

    job: str
    """The id of the Slurm job."""
    hosts: tuple[str, ...]


def nodelist() -> tuple[str, str]:
    """Return the variable that lists the nodes, and its value; empty: there is none."""
    return next(((name, os.environ[name]) for name in NODELISTS if os.environ.get(name)), ("", ""))


def allocation() -> Allocation | None:
    """Return the allocation; None outside of one."""
    job = os.environ.get(JOB, "")
    variable, nodes = nodelist()
    if not job or not nodes:
        return None
    try:
        return Allocation(job=job, hosts=expand_hosts(nodes))
    except BadRange as error:
        found = f"{error.found} in {variable}"
        raise BadRange(wanted=error.wanted, found=found) from error
