"""Says what is about to run, and warns of words that would not do what the plan says."""

import posixpath
import shlex
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from clusterctl.errors import UsageError
from clusterctl.inventory.cluster import Cluster, Job
from clusterctl.inventory.other_programs.allocation import SBATCH, program_in
from clusterctl.inventory.secret_values import is_secret
from clusterctl.node.notify.deliver import receiver
from clusterctl.node.run.files.node_job import has_checkpoint
from clusterctl.plan import launchers
from clusterctl.plan.command import own_world
from clusterctl.plan.command.calls import in_folder
from clusterctl.plan.command.entry_script import (
    assigns_local,
    local_endpoints,
    local_rank_flag,
    own_launches,
    rendezvous_assignments,
    submits_jobs,
)
from clusterctl.plan.command.launcher_flags import start_of
from clusterctl.plan.command.nodes_apart import alone
from clusterctl.plan.command.output_folder import named_folders, own_folder
from clusterctl.verbs.events import Emit, Notice
from clusterctl.verbs.launch.script_text import text_of
from clusterctl.verbs.runs.join_failure import IN_PYTHON
from clusterctl.wire import plain


def notice_job(job: Job, *, node: str | None = None, emit: Emit) -> None:
    """Tell what is about to run, and which variables of this shell the nodes, or one, will get."""
    emit(Notice(text=f"command: {shlex.join(job.command)}", node=node))
    if job.env_from:
        emit(Notice(text=f"env_from: {', '.join(job.env_from)}", node=node))
    if job.max_time and node is None:
        most = timedelta(seconds=round(job.max_time))
        emit(Notice(text=f"max_time: the run is stopped after {most} (h:mm:ss)"))
    for one in job.notify if node is None else ():
        every = () if one.every is None else (f"every {one.every:g} s",)
        emit(Notice(text=f"notify: {receiver(plain(one))}: {', '.join((*one.on, *every))}"))


def notice_restarts(job: Job, template: tuple[str, ...] = (), *, emit: Emit) -> None:
    """Warn of restarts that would begin again from the start; `template`: a resume's command."""
    if job.resume_args and launchers.find_launcher(job.launcher).elastic(job.args) is not None:
        text = f"{job.launcher} starts the ranks of an elastic run again without job.resume_args"
        hint = "let the program find its newest checkpoint, or: a fixed --nnodes, and --restarts 3"
        emit(Notice(text=text, hint=hint, level="warning"))
    if not job.restart.max:
        return
    if not job.checkpoints:
        text = "restarts: job.checkpoints is not set: no restart can tell how far the run was"
    elif has_checkpoint((*template, *job.command, *job.resume_args)):
        return
    else:
        text = "restarts: job.resume_args has no {checkpoint}: the program must find it itself"
    hint = 'job: {checkpoints: out, resume_args: [--resume, "{checkpoint}"]}, as the program has it'
    emit(Notice(text=text, hint=hint, level="warning"))


def notice_folder(job: Job, *, emit: Emit) -> None:
    """Tell where the checkpoints are, or warn of a command that names another folder."""
    folder, named = job.checkpoints, dict(named_folders(job.command))
    if not folder or not named:
        return
    if (own := own_folder(job)) != folder:
        emit(Notice(text=f"checkpoints: {own}, which the command names below {folder}"))
    elif all(posixpath.basename(posixpath.normpath(folder)) not in one for one in _parts(job)):
        flag, value = next(iter(named.items()))
        text = (
            f"the command has {flag} {value}, and job.checkpoints is {folder}: status, resume and"
            " restarts find no checkpoint that is elsewhere"
        )
        hint = f"in the inventory: job: {{checkpoints: {value}}}"
        emit(Notice(text=text, hint=hint, level="warning"))


def _parts(job: Job) -> Iterator[list[str]]:
    """Yield the parts of each path that the command may name."""
    for word in job.command:
        if not word.startswith("-") or "=" in word:
            yield word.rpartition("=")[2].split("/")


def without_unused_spares(cluster: Cluster, *, emit: Emit) -> Cluster:
    """Leave out spare nodes of a run that is never restarted."""
    if cluster.job.restart.max or not cluster.spares:
        return cluster
    names = ", ".join(node.name for node in cluster.spares)
    text = f"left out: {names}: spare nodes are of use only with restarts"
    emit(Notice(text=text, hint="--restarts 3; or --spares 0, and they have ranks"))
    return cluster.with_nodes(cluster.active)


def notice_secrets(cluster: Cluster, *, emit: Emit) -> None:
    """Warn of what looks like a secret and would be recorded in clear.

    Reading the inventory warns of what `job.env` has there.
    """
    origins = dict(cluster.origins)
    for name, value in cluster.job.env:
        origin = origins.get(f"env.{name}")
        if origin and is_secret(name, value):
            text = f"{origin}: {name} looks like a secret, and env is recorded in clear"
            hint = f"export it in this shell, and set `env_from: [{name}]` in the inventory"
            emit(Notice(text=text, hint=hint, level="warning"))
    if any(is_secret("", word.rpartition("=")[2]) for word in cluster.job.command):
        text = "command: a word looks like a secret, and the command is recorded in clear"
        hint = "let the program read it from a variable that `env_from:` names"
        emit(Notice(text=text, hint=hint, level="warning"))


def notice_words(cluster: Cluster, source: Path, *, force: bool, emit: Emit) -> None:
    """Find what in the command, its scripts and its program would not be the planned ranks."""
    words = own_world.words_of(cluster, lambda name: text_of(source / name))
    problems = [*words.problems, *_of_programs(cluster, source, words.programs)]
    fatal = [] if force else [each for each in problems if each.fatal]
    for each in problems:
        if each not in fatal:
            text = f"{each.where}: {each.message}"
            emit(Notice(text=text, hint=each.hint, level="warning"))
    if fatal:
        lines = dict.fromkeys(f"{each.where}: {each.message}" for each in fatal)
        hints = dict.fromkeys(each.hint for each in fatal)
        raise UsageError("\n".join(lines), hint="\n".join((*hints, "launch anyway: --force")))


def notice_batch(cluster: Cluster, source: Path, *, emit: Emit) -> None:
    """Warn of a script that was written for sbatch, whose options have no effect here."""
    if cluster.job.launcher == "slurm":
        return
    workdirs = {node.workdir for node in cluster.nodes if node.workdir}
    for word in (in_folder("", each, workdirs) for each in cluster.job.command[:2]):
        found = SBATCH.search(text_of(source / word))
        if found is not None:
            number = found.string.count("\n", 0, found.start()) + 1
            text = (
                f"{word}:{number}: a script for sbatch: its #SBATCH lines are not read, and"
                " the nodes are those of the inventory"
            )
            hint = (
                "if Slurm is to choose the nodes, put those options into job.slurm:"
                f" clusterctl launch --launcher slurm -- {program_in(found.string)}"
            )
            emit(Notice(text=text, hint=hint, level="warning"))


def _of_programs(
    cluster: Cluster, source: Path, programs: list[tuple[str, ...]]
) -> Iterator[own_world.Problem]:
    """Yield what in Python scripts keeps the ranks from each other.

    An address of each node's own is certain to do so: the launcher's is overwritten with it.
    """
    if launchers.find_launcher(cluster.job.launcher).one_driver:
        return
    nodes = len(cluster.nodes)
    for script, *args in dict.fromkeys(programs):
        text = text_of(source / script)
        yield from _of_program(script, text, nodes)
        if nodes != 1:
            yield from _among_several(script, text, args, nodes)


def _of_program(script: str, text: str, nodes: int) -> Iterator[own_world.Problem]:
    for line, name in rendezvous_assignments(text):
        apart = nodes > 1 and name == "MASTER_ADDR" and assigns_local(text, line)
        yield own_world.Problem(
            where=f"{script}:{line}",
            message=f"it assigns {name}, which the launcher sets for each rank: the ranks"
            f" {'meet on their own node only' if apart else 'may not meet'}",
            hint="remove the line, or use os.environ.setdefault",
            fatal=apart,
        )
    if line := submits_jobs(text):
        yield own_world.Problem(
            where=f"{script}:{line}",
            message="it submits a job to Slurm, and so would each rank",
            hint="launch the program that the job runs: clusterctl launch -- train.py",
            fatal=True,
        )
    if line := local_rank_flag(text):
        yield own_world.Problem(
            where=f"{script}:{line}",
            message="it takes --local-rank, which torchrun does not give: all ranks of a node"
            " may use its first GPU",
            hint="default=int(os.environ['LOCAL_RANK']) in that line",
            fatal=False,
        )


def _among_several(
    script: str, text: str, args: list[str], nodes: int
) -> Iterator[own_world.Problem]:
    """Yield what keeps the ranks of several nodes from each other; 0: Slurm chooses how many."""
    for line, endpoint in local_endpoints(text, args):
        yield own_world.Problem(
            where=f"{script}:{line}",
            message=f"the ranks meet at {endpoint}, which is another place on each node",
            hint='write init_method="env://", which reads the address of the launcher',
            fatal=False,
        )
    for line, name, words in own_launches(text):
        start = start_of(("torchrun", *words))
        found = alone(replace(start, name=name), nodes or None) if start else ()
        for message, _ in found:
            where, fatal = f"{script}:{line}", nodes > 1
            yield own_world.Problem(where=where, message=message, hint=IN_PYTHON, fatal=fatal)
