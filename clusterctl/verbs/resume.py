"""Resume a run: launch its job from a checkpoint that is verified on every node."""

import re
import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path, PurePosixPath

from clusterctl.errors import UsageError
from clusterctl.facts.gpu.accelerators import VISIBLE
from clusterctl.inventory.cluster import Cluster, Job
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.model.node_run import Resumed
from clusterctl.node.checkpoints.names import is_of_rank
from clusterctl.node.run.files.node_job import (
    PLACEHOLDER,
    STEP_PLACEHOLDER,
    from_checkpoint,
    has_checkpoint,
)
from clusterctl.plan.effective import effective
from clusterctl.plan.options import SETTINGS, Options
from clusterctl.plan.run_names import escape
from clusterctl.safe_text import escape_controls
from clusterctl.transport.pool import Pool
from clusterctl.values import dataclass
from clusterctl.verbs.checkpoints.choose import choose_checkpoint, require_word
from clusterctl.verbs.checkpoints.query import LATEST, ChosenCheckpoint
from clusterctl.verbs.checkpoints.stored import is_url, stored_checkpoint
from clusterctl.verbs.events import Emit, Event, Notice
from clusterctl.verbs.launch.options import LaunchOptions
from clusterctl.verbs.launch.script_text import script_text
from clusterctl.verbs.launch.validate_job import require_job, require_variables
from clusterctl.verbs.runs.history import History
from clusterctl.verbs.runs.recorded_job import completed
from clusterctl.verbs.runs.records import Claim, RunRecord

_SHOWN_COMMAND, _SHOWN_CLAIMS = 500, 8
"""Of a command that a node claims its longest, and of such commands the most that are shown."""
KEPT = tuple(name for name in SETTINGS if name != "command")
"""The options of a launch that a resume keeps unless it sets them itself; `env` by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointChosen(Event):
    """The run resumes from here."""

    kind = "checkpoint"

    chosen: ChosenCheckpoint


def resume(
    before: RunRecord,
    cluster: Cluster,
    pool: Pool,
    launch: LaunchOptions,
    *,
    checkpoint: str,
    history: History,
    needs_secrets: bool = True,
    emit: Emit,
) -> tuple[Cluster, LaunchOptions]:
    """Verify the checkpoint, and return what to launch.

    Args:
        before: the run to resume.
        cluster: the nodes to launch on; its job counts for the keys that the run's lacks.
        launch: how to launch; a command replaces the job's, with `{checkpoint}` in it.
        checkpoint: `latest`, a path, or the URL of one in an object store.
        history: the run and those that it resumes.
        needs_secrets: the variables that `env_from` names must be set.
        emit: called with each event: `CheckpointChosen`, `Progress`, `Notice`.

    Returns:
        What `launch` takes: the nodes, the job with the checkpoint in its command, the options.

    Raises:
        LaunchRefused: the checkpoint is not complete, or not the same on every node.
        UsageError: the job has no place for the checkpoint, or only the nodes claim its command.
    """
    before, cluster, overrides, template = planned(
        before, cluster, launch, checkpoint=checkpoint, needs_secrets=needs_secrets, emit=emit
    )
    stored = stored_checkpoint(checkpoint, cluster.job.command) if is_url(checkpoint) else None
    ranks = _ranks(before, cluster, overrides)
    active = cluster.with_nodes(cluster.active)
    chosen = stored or choose_checkpoint(
        pool, active, checkpoint, history=history, ranks=ranks, emit=emit
    )
    _report(chosen, emit=emit)
    command = tuple(from_checkpoint(template, escape(chosen.path), chosen.step))
    if any(STEP_PLACEHOLDER in word for word in command):
        raise UsageError(
            f"{STEP_PLACEHOLDER}: expected the step of {chosen.path}, found none in its name or"
            " files",
            hint=f"type the step in place of {STEP_PLACEHOLDER}: -- {shlex.join(command)}",
        )
    if not has_checkpoint(template):
        text = f"the command does not name {chosen.path}: the program must find it itself"
        emit(Notice(text=text, level="warning"))
    if is_of_rank(PurePosixPath(chosen.path).name) and any(PLACEHOLDER in one for one in template):
        text = f"{chosen.path} is the file of one rank, and each rank gets its path"
        hint = (
            'if each has a file of its own, let the program find it: job: {resume_args: ["--step",'
            f' "{STEP_PLACEHOLDER}"]}}, as the program has it'
        )
        emit(Notice(text=text, hint=hint, level="warning"))
    resumed = Resumed(
        run=before.run,
        checkpoint=chosen.path,
        command=cluster.job.command,
        step=chosen.step,
        tree=before.tree,
        commit=before.commit,
    )
    overrides = replace(overrides, command=command)
    name = launch.name or str(before.options.get("name") or "")
    options = replace(launch, overrides=overrides, resumed=resumed, name=name)
    return _with_command(before, cluster, command), options


def planned(
    before: RunRecord,
    cluster: Cluster,
    launch: LaunchOptions,
    *,
    checkpoint: str,
    needs_secrets: bool = True,
    emit: Emit,
) -> tuple[RunRecord, Cluster, Options, tuple[str, ...]]:
    """Return what needs no node: the run, the job, the options, its new command.

    The command has a place for the checkpoint; arguments and errors are those of `resume`.
    """
    require_word(checkpoint)
    if before.discovered:
        _require_own_command(before, cluster, launch)
        if not launch.overrides.command:
            _report_claims(before, cluster, emit=emit)
        before = replace(before, cluster=replace(before.cluster, job=cluster.job))
    overrides = _taken_over(before, launch.overrides)
    if launch.overrides.spares is None and before.cluster.spares:
        # Spare nodes take the places of nodes that the resume leaves out.
        left = max(0, len(cluster.nodes) - len(before.cluster.active))
        overrides = replace(overrides, spares=min(left, len(before.cluster.spares)))
    cluster = _with_job_of(before, cluster, overrides, emit=emit)
    require_job(cluster)
    if needs_secrets:
        require_variables(cluster)
    if is_url(checkpoint):  # what a program of another kind lacks would lead to a refused command
        stored_checkpoint(checkpoint, cluster.job.command)
    return before, cluster, overrides, _template(cluster.job, checkpoint, launch.source)


def _with_job_of(before: RunRecord, cluster: Cluster, overrides: Options, *, emit: Emit) -> Cluster:
    """Return the nodes with the job of the run before, as it was written there."""
    job, added = completed(before.cluster.job, cluster.job)
    if added:
        why = "taken from the inventory, because the run was launched without them"
        emit(Notice(text=f"{' and '.join(added)}: {why}"))
    command = (before.resumed.command if before.resumed else ()) or job.command
    job = replace(job, command=command, debug=False)
    return effective(replace(cluster, job=job, origins=()), overrides)


def _report(chosen: ChosenCheckpoint, *, emit: Emit) -> None:
    """Emit which checkpoint it is, what was skipped for it, and what speaks against it."""
    for why in (*(f"skipped: {one}" for one in chosen.skipped), *chosen.doubts):
        emit(Notice(text=why, level="warning"))
    emit(CheckpointChosen(chosen=chosen))
    for why in chosen.others[:1]:  # what is likely wanted, and no list of a folder
        more = f" (and {chosen.more_others} more)" if chosen.more_others else ""
        emit(Notice(text=f"not taken: {why}{more}"))


def _with_command(before: RunRecord, cluster: Cluster, command: tuple[str, ...]) -> Cluster:
    """Return the cluster with a command that has the checkpoint in it."""
    whose = {} if before.discovered else {"command": _origin(before)}
    origins = {**whose, **dict(cluster.origins)}
    job = replace(cluster.job, command=command)
    return replace(cluster, job=job, origins=tuple(origins.items()))


def _require_own_command(before: RunRecord, cluster: Cluster, launch: LaunchOptions) -> None:
    """Refuse to launch what only the nodes of a run claim that it ran."""
    if cluster.job.command or launch.overrides.command:
        return
    lines = _claimed(before.claims)
    raise UsageError(
        f"{before.run} is unverified, since this machine has no proof of its launch:"
        f" expected job.command in {cluster.file or 'the inventory'} or a command after `--`,"
        " found only what the nodes claim\n" + "\n".join(lines or ["no node claims a command"]),
        hint=f"type the command that you trust: -- COMMAND '{PLACEHOLDER}'"
        "\nor set job.command in the inventory",
    )


def _report_claims(before: RunRecord, cluster: Cluster, *, emit: Emit) -> None:
    """Warn if the nodes claim another command than the inventory's, which is launched."""
    own = tuple(map(before.fill, cluster.job.command))
    lines = _claimed(one for one in before.claims if one.command != own)
    if lines:
        emit(
            Notice(
                text=f"{before.run} is unverified: this launches job.command of the inventory,"
                " but the nodes claim that it ran another\n" + "\n".join(lines),
                hint=f"if you trust it: -- COMMAND '{PLACEHOLDER}'",
                level="warning",
            )
        )


def _claimed(claims: Iterable[Claim]) -> list[str]:
    """Return a line for each command that nodes claim."""
    by_command: dict[str, list[str]] = {}
    for claim in claims:
        words = escape_controls(shlex.join(claim.command), _SHOWN_COMMAND)
        by_command.setdefault(words, []).append(claim.node)
    return [f"{fold_hosts(nodes)}: {words}" for words, nodes in by_command.items()][:_SHOWN_CLAIMS]


def _ranks(before: RunRecord, cluster: Cluster, overrides: Options) -> dict[str, range]:
    """Return the ranks that each node will run, if it runs as many as before; else nothing."""
    counts = {node["node"]: node.get("procs") for node in before.plan.get("nodes") or ()}
    if any(counts.get(node.name) is None for node in cluster.active):
        return {}
    same_gpus = overrides.gpus == before.options.get("gpus")
    if not same_gpus or _sizing(cluster) != _sizing(before.cluster):
        return {}
    found: dict[str, range] = {}
    first = 0
    for node in cluster.active:
        found[node.name] = range(first, first + counts[node.name])
        first += counts[node.name]
    return found


def _sizing(cluster: Cluster) -> tuple[object, ...]:
    """Return what decides how many ranks each node runs."""
    counts = {node.name: (node.gpus, node.procs) for node in cluster.nodes}
    return cluster.job.procs_per_node, dict(cluster.job.env).get(VISIBLE), counts


def _taken_over(before: RunRecord, given: Options) -> Options:
    """Lay the options given over those that the run was launched with."""
    old = before.options
    found = {n: old[n] for n in KEPT if old.get(n) is not None and not given.says(n)}
    if given.launcher not in (None, old.get("launcher"), before.cluster.job.launcher):
        for name in ("max_restarts", "launcher_args"):
            found.pop(name, None)  # another launcher may have no such thing
    if "launcher_args" in found:
        found["launcher_args"] = tuple(found["launcher_args"])
    env, own = dict(old.get("env") or ()), dict(given.env)
    kept = [f"env.{name}" for name in env if name not in own]
    origins = dict.fromkeys((*found, *kept), _origin(before))
    merged = tuple({**env, **own}.items())
    secrets = tuple(dict.fromkeys((*(old.get("env_from") or ()), *given.env_from)))
    origins = {**origins, **given.origins}
    return replace(given, **found, env=merged, env_from=secrets, origins=origins)


def _origin(before: RunRecord) -> str:
    """Return where a value comes from that the run before had."""
    return f"run {before.run}"


def _template(job: Job, checkpoint: str, source: Path) -> tuple[str, ...]:
    """Return the command, with `{checkpoint}` where the checkpoint goes, or how it finds one."""
    if has_checkpoint(job.command):
        return job.command
    if job.resume_args:
        return (*job.command, *job.resume_args)
    own = _own_args(job.command, source)
    args = own or ("--resume-from-checkpoint", PLACEHOLDER)
    folder = "" if job.checkpoints else "checkpoints: FOLDER, "
    unknown = bool(folder) and checkpoint == LATEST
    how = "with its path for PATH: --checkpoint PATH" if unknown else "type it now:"
    typed = f"{how} -- {shlex.join((*job.command, *args))}\nor write it" if args[1:] else "write it"
    shown = ", ".join(f'"{word}"' if word.startswith("{") else word for word in args)
    raise UsageError(
        f"job.resume_args: expected {PLACEHOLDER} where the checkpoint's path goes, found nothing",
        hint=f"{typed} into the inventory: job: {{{folder}resume_args: [{shown}]}}"
        + ("" if own else f"\nin place of {args[0]}, write the flag that your program has for it")
        + f"\na program that finds its checkpoint itself needs no {PLACEHOLDER}, only its flag;"
        " if it has none, launch it again",
    )


def _own_args(command: tuple[str, ...], source: Path) -> tuple[str, ...]:
    """Return how the job's script lets it resume, by the flags that it adds; empty: not known."""
    text = script_text(command, source)
    found = re.findall(r"""add_argument\(\s*["'](--[\w-]*resume[\w-]*)["']([^)]*)""", text)
    if not found:
        return ()
    flag, rest = min(found, key=lambda one: len(one[0]))
    place = STEP_PLACEHOLDER if flag.endswith("step") else PLACEHOLDER
    return (flag,) if "store_true" in rest else (flag, place)
