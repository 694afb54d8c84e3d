"""Refuses a job that could not be launched in the end, before any node is asked."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Generator, Iterator
from pathlib import Path

from clusterctl.errors import UsageError
from clusterctl.inventory.cluster import Cluster, Job
from clusterctl.inventory.rules import is_secret
from clusterctl.plan import launchers, nested
from clusterctl.plan.entry_script import rendezvous_assignments
from clusterctl.plan.make import require_command
from clusterctl.verbs.events import Event, Notice

_SBATCH = re.compile(r"^#SBATCH\s", re.MULTILINE)
_SCRIPT_LIMIT = 1 << 20
"""Bytes of a script that are searched for a launcher."""


def require_job(cluster: Cluster) -> None:
    """Refuse a job that no plan can be made of.

    Raises:
        UsageError: there is no command or no such launcher, the command is one itself, or the
            launcher is slurm and the nodes are not those of an allocation.
    """
    launchers.find_launcher(cluster.job.launcher)
    if cluster.job.launcher == "slurm" and cluster.nodes and cluster.slurm_job is None:
        raise UsageError(
            "launcher: expected the nodes of a Slurm allocation, found those of the inventory",
            hint="set `job: {launcher: slurm}` in the inventory, or load(path, launcher='slurm')",
        )
    require_command(cluster)
    nested.require_no_launcher(cluster)


def require_script(cluster: Cluster, source: Path) -> None:
    """Refuse to mirror a folder without the job's script, or a script without a place for it.

    Raises:
        UsageError: the command is a script, or the training program, that is not in the folder
            that is synced, or that no `workdir` takes to the nodes.
    """
    if cluster.job.command[:2] == ("-m", "train") and _lacks_train(cluster, source):
        raise UsageError(
            f"command: expected the program train in {source}, found none",
            hint="clusterctl init --with-train",
        )
    script = next(iter(cluster.job.command), "")
    if not script.endswith(".py") or Path(script).is_absolute():
        return
    syncs = any(node.workdir for node in cluster.nodes)
    exists = (source / script).exists()
    if exists and not syncs:
        raise UsageError(
            "workdir: expected the folder on the nodes that the code is mirrored to, found none",
            hint="add `workdir: /home/USER/NAME` to the inventory, or type --workdir DIR;"
            " --no-sync if the code is on the nodes",
        )
    if syncs and not exists:
        raise UsageError(
            f"command: expected the script {script} in {source}, found no such file",
            hint="cd to the folder of the code; --no-sync if only the nodes have it",
        )


def _lacks_train(cluster: Cluster, source: Path) -> bool:
    """Tell whether no `train` can be found: neither in the folder nor on a path of the job's."""
    return not (source / "train").exists() and "PYTHONPATH" not in dict(cluster.job.env)


def require_secrets(cluster: Cluster) -> None:
    """Refuse to begin without the secrets that the job is given.

    Raises:
        UsageError: a variable that `env_from` names is not set here.
    """
    missing = [name for name in cluster.job.env_from if name not in os.environ]
    if missing:
        raise UsageError(
            f"env_from: expected {', '.join(missing)} in this shell's environment, found none",
            hint=f"export {missing[0]}=..., or take it out of env_from in the inventory",
        )


def notice_job(job: Job, *, node: str | None = None) -> Iterator[Notice]:
    """Tell what is about to run, and which variables of this shell the nodes, or one, will get."""
    yield Notice(text=f"command: {shlex.join(job.command)}", node=node)
    if job.env_from:
        yield Notice(text=f"env_from: {', '.join(job.env_from)}", node=node)


def notice_secrets(cluster: Cluster) -> Iterator[Notice]:
    """Warn of what looks like a secret and would be recorded in clear.

    Reading the inventory warns of what `job.env` has there.
    """
    origins = dict(cluster.origins)
    for name, value in cluster.job.env:
        origin = origins.get(f"env.{name}")
        if origin and is_secret(name, value):
            yield Notice(
                text=f"{origin}: {name} looks like a secret, and env is recorded in clear",
                hint=f"export it in this shell, and set `env_from: [{name}]` in the inventory",
                level="warning",
            )
    if any(is_secret("", word.rpartition("=")[2]) for word in cluster.job.command):
        yield Notice(
            text="command: a word looks like a secret, and the command is recorded in clear",
            hint="let the program read it from a variable that `env_from:` names",
            level="warning",
        )


def notice_launcher(cluster: Cluster, source: Path) -> Generator[Event, None, None]:
    """Warn of a shell script in a folder that would start a launcher in every rank."""
    job, name = cluster.job, nested.script_of(cluster.job.command)
    once_a_node = job.procs_per_node == 1 and not launchers.find_launcher(job.launcher).argv
    if not name or once_a_node:
        return
    found = nested.launcher_in_script(_text(source / name))
    if found is None:
        return
    line, launcher = found
    yield Notice(
        text=f"{name}:{line}: every rank runs this script, and so starts {launcher} of its own",
        hint=f"to run it once per node: {nested.once_a_node(job.command)}",
        level="warning",
    )


def notice_batch(cluster: Cluster, source: Path) -> Iterator[Notice]:
    """Warn of a script that was written for sbatch, whose options nobody reads here."""
    if cluster.job.launcher == "slurm":
        return
    for word in cluster.job.command[:2]:
        found = _SBATCH.search(_text(source / word))
        if found is not None:
            number = found.string.count("\n", 0, found.start()) + 1
            yield Notice(
                text=f"{word}:{number}: a script for sbatch: its #SBATCH lines are not read, and"
                " the nodes are those of the inventory",
                hint="if Slurm is to choose the nodes, put those options into job.slurm:"
                " clusterctl launch --launcher slurm -- train.py",
                level="warning",
            )


def notice_rendezvous(cluster: Cluster, source: Path) -> Generator[Event, None, None]:
    """Warn of a Python script that assigns what the launcher sets for each rank."""
    job, script = cluster.job, next(iter(cluster.job.command), "")
    if not script.endswith(".py") or launchers.find_launcher(job.launcher).one_driver:
        return
    for line, name in rendezvous_assignments(_text(source / script)):
        yield Notice(
            text=f"{script}:{line}: it assigns {name}, which the launcher sets for each rank:"
            " the ranks may not meet",
            hint="remove the line, or use os.environ.setdefault",
            level="warning",
        )


def _text(path: Path) -> str:
    """Return the beginning of a file; empty for one that is on the nodes only."""
    try:
        with path.open("rb") as file:
            return file.read(_SCRIPT_LIMIT).decode("utf-8", "replace")
    except OSError:
        return ""
