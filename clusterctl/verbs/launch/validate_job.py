"""Refuses a job that could not be launched in the end, before any node is asked."""

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from clusterctl.errors import UsageError
from clusterctl.inventory.cluster import Cluster, Job
from clusterctl.node.launchers.context import argument
from clusterctl.node.launchers.known import REPLANNED
from clusterctl.node.notify.deliver import problem_of
from clusterctl.plan import launchers
from clusterctl.plan.command.calls import SCRIPTS
from clusterctl.plan.command.launcher_flags import start_of
from clusterctl.plan.command.nested import require_no_launcher
from clusterctl.plan.make import require_command


def require_job(cluster: Cluster) -> None:
    """Refuse a job that no plan can be made of."""
    launchers.find_launcher(cluster.job.launcher)
    if cluster.job.launcher == "slurm" and cluster.nodes and cluster.slurm_job is None:
        raise UsageError(
            "launcher: expected the nodes of a Slurm allocation, found those of the inventory",
            hint="set `job: {launcher: slurm}` in the inventory, or load(path, launcher='slurm')",
        )
    require_command(cluster)
    require_no_launcher(cluster)
    _require_gpus(cluster)
    _require_planned_ranks(cluster)
    _require_fixed_nodes(cluster.job)
    _require_restarts(cluster.job)
    _require_replaceable(cluster)


def _require_restarts(job: Job) -> None:
    """Raise UsageError for a run that is to start again once it is hung, but never restarts."""
    if job.hang.action == "restart" and not job.restart.max:
        raise UsageError(
            "hang_action: restart expects restarts, found none",
            hint="--restarts 2, or --hang-action stop",
        )


def _require_fixed_nodes(job: Job) -> None:
    """Raise UsageError for restarts of a run whose number of nodes may change."""
    if job.restart.max and launchers.find_launcher(job.launcher).elastic(job.args) is not None:
        raise UsageError(
            f"restarts: expected 0 with a variable number of nodes, found {job.restart.max}:"
            f" {job.launcher} starts the ranks of such a run again itself",
            hint="--restarts 0, or a fixed --nnodes in launcher_args",
        )


def _require_replaceable(cluster: Cluster) -> None:
    """Raise UsageError for spare nodes, min_nodes or a wait that no restart could use."""
    job, least = cluster.job, cluster.job.restart.min_nodes
    if cluster.nodes and not cluster.active:
        raise UsageError(
            "nodes: expected one that is no spare, found only spares",
            hint="--spares 0 lets them have ranks",
        )
    typed = dict(cluster.origins)
    for key, count in (("spares", len(cluster.spares)), ("min_nodes", least)):
        if count and not job.restart.max and key in typed:
            raise UsageError(
                f"{key}: expected at least one restart, found --restarts 0",
                hint=f"--restarts 3, or leave out {typed[key]}",
            )
    if not (cluster.spares or least or job.restart.wait) or not job.restart.max:
        return
    what, off = "restart.wait", "set job.restart.wait to 0"
    if cluster.spares or least:
        what = "spares" if cluster.spares else "min_nodes"
        off = "--spares 0" if cluster.spares else "--min-nodes 0"
    if job.launcher not in REPLANNED or cluster.by_slurm:
        why = "Slurm's allocation" if cluster.by_slurm else f"the launcher {job.launcher}"
        raise UsageError(
            f"{what}: expected nodes of the inventory and one of the launchers"
            f" {', '.join(sorted(REPLANNED))}, found {why}, whose nodes are fixed",
            hint=off,
        )
    if argument(job.args, "--nnodes"):
        raise UsageError(
            f"{what}: expected launcher_args without --nnodes, found {shlex.join(job.args)}:"
            " the number of nodes may change",
            hint=f"take --nnodes out of launcher_args, or {off}",
        )


def _require_gpus(cluster: Cluster) -> None:
    """Raise UsageError for a number of GPUs on nodes that use none: it would change nothing."""
    flag = cluster.origin("gpus", "")
    without = [node for node in cluster.nodes if node.gpus == 0 and node.gpus_limit]
    # A resume has its run's, whatever that run did with them.
    if flag.startswith("--") and without and len(without) == len(cluster.nodes):
        count = without[0].gpus_limit
        raise UsageError(
            f"{flag}: expected no number of GPUs where the inventory has `gpus: 0`, found {count}",
            hint=f"--procs-per-node {count} in place of {flag} {count} starts ranks on CPUs",
        )


_PLANNED = frozenset({
    "--standalone", "--nproc-per-node", "--node-rank", "--master-addr", "--rdzv-endpoint",
    "--num-machines", "--num-processes", "--machine-rank", "--main-process-ip",
})  # fmt: skip
"""Options of torchrun and accelerate that would override the plan's nodes and ranks."""


def _require_planned_ranks(cluster: Cluster) -> None:
    """Raise UsageError if the launcher's arguments are for other nodes or ranks than the plan's."""
    program = {"torchrun": ("torchrun",), "accelerate": ("accelerate", "launch")}
    words = program.get(cluster.job.launcher)
    start = start_of((*words, *cluster.job.args)) if words else None
    for flag, value, written in start.flags if start else ():
        fixed = flag == "--nnodes" and value.isdecimal() and int(value) != len(cluster.active)
        if flag in _PLANNED or (fixed and cluster.nodes):
            raise UsageError(
                "launcher_args: expected options that leave the nodes and ranks to the plan,"
                f" found {shlex.join(written)}",
                hint=f"take {written[0]} out of launcher_args; --nodes N and --gpus N choose both",
            )


def require_runnable(command: tuple[str, ...], source: Path) -> None:
    """Refuse what the nodes could not start as typed: a script, a name without .py, a whole line.

    Raises:
        UsageError: it is no program; with `bash` in front, or as several words, it is.
    """
    script, *args = command or ("",)
    if " " in script.strip() and not args and not (source / script).exists():
        raise UsageError(
            f"command: expected words, found a whole line in quotes: {script!r}",
            hint=f"-- {script.strip()}",
        )
    if re.fullmatch(r"\w+", script) and not shutil.which(script):
        words = [f"{script}.py"] if (source / f"{script}.py").is_file() else ["-m", script]
        if words[0] != "-m" or (source / script / "__main__.py").is_file():
            raise UsageError(
                f"command: expected a program, found {script}, which is one of Python in {source}",
                hint=f"-- {shlex.join((*words, *args))}",
            )
    # Without a slash it would be looked for in PATH; the copy on the nodes has the same mode.
    runs = "/" in script and os.access(source / script, os.X_OK)
    here = script.endswith(SCRIPTS) and not Path(script).is_absolute()
    if here and not runs and (source / script).is_file():
        raise UsageError(
            f"command: expected a program, found the script {script} of {source}"
            + (", which may not be run (chmod +x)" if "/" in script else ""),
            hint=f"-- {shlex.join(('bash', script, *args))}",
        )


def require_script(cluster: Cluster, source: Path) -> None:
    """Refuse to mirror a folder without the job's script, or a script without a place for it."""
    if cluster.job.command[:2] == ("-m", "train") and _lacks_train(cluster, source):
        raise UsageError(
            f"command: expected the program train in {source}, found none",
            hint="clusterctl init --with-train",
        )
    script = "".join(cluster.job.command[:1])
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
        import difflib  # noqa: PLC0415  (only where a word is wrong)

        files = (source / script).parent.glob("*.py")
        there = (str(Path(script).parent / file.name) for file in files)
        near = "".join(difflib.get_close_matches(script, there, n=1, cutoff=0.75))
        raise UsageError(
            f"command: expected the script {script} in {source}, found no such file",
            hint=(f"{near} is there; " if near else "")
            + "cd to the folder of the code; --no-sync if only the nodes have it",
        )


def _lacks_train(cluster: Cluster, source: Path) -> bool:
    """Tell whether no `train` can be found: neither in the folder nor on a path of the job's."""
    return not (source / "train").exists() and "PYTHONPATH" not in dict(cluster.job.env)


def require_secrets(cluster: Cluster) -> None:
    """Refuse to begin without a variable that `env_from` names."""
    _require_set("env_from", cluster.job.env_from)


def require_variables(cluster: Cluster) -> None:
    """Refuse to begin without those secrets, and the URLs that the run's events are posted to."""
    require_secrets(cluster)
    _require_set("webhook_from", cluster.job.webhooks)
    for name in cluster.job.webhooks:
        problem = problem_of(os.environ[name])
        if problem:  # without the value, which is a secret
            raise UsageError(
                f"webhook_from: expected a URL in the variable {name}, but {problem}",
                hint=f"export {name}=https://...",
            )


def _require_set(key: str, names: Sequence[str]) -> None:
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise UsageError(
            f"{key}: expected {', '.join(missing)} in this shell's environment, found none",
            hint=f"export {missing[0]}=..., or give launch or resume --env-file FILE; or take it"
            f" out of {key} in the inventory",
        )
