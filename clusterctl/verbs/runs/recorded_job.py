"""Compares the inventory with a recorded run: its nodes, and before a resume its job."""

import logging
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from clusterctl.errors import UsageError
from clusterctl.inventory.cluster import Cluster, Job
from clusterctl.inventory.ranges import name_hosts
from clusterctl.inventory.settings import keys_of
from clusterctl.plan.options import Options
from clusterctl.verbs.runs.records import RunRecord

logger = logging.getLogger("clusterctl")

_KEYS = keys_of(Job)
_FLAGS = {
    "command": "-- COMMAND",
    "env": "--env NAME=VALUE",
    **{
        name: f"--{name.replace('_', '-')} {one.metavar}" for name, one in _KEYS.items() if one.flag
    },
}
"""The flag of `resume` for a key of `job:`; the other keys have none of their own."""
_INSTEAD = {
    "checkpoints": "--checkpoint PATH",
    "resume_args": "-- COMMAND",
    "restart": "--restarts N",
    "hang": "--hang-after T --hang-action ACTION",
}
"""Words of `resume` that do without a key of `job:`."""
_COMPARED = [name for name, one in _KEYS.items() if one.resumed != "file's" and name != "env"]
_ADDED_LATER = [name for name, one in _KEYS.items() if one.resumed == "run's or file's"]

Find = Callable[[str], RunRecord | None]


def report_job(path: Path, record: RunRecord, now: Job, given: Options, find: Find) -> None:
    """Warn about keys of `job:` that the inventory has changed since a run was launched.

    A value that a flag set, then or now, is not a change.
    """
    if record.discovered:
        return  # rebuilt from the nodes: most of its job is unknown
    keys = changed(record, now, given, find)
    flags = _how_to_use(keys, now)
    if keys:
        logger.warning(
            "%s: %s changed since %s was launched; using the run's (to use the new: %s)",
            path,
            ", ".join(f"job.{key}" for key in keys),
            record.run,
            "; ".join(flags),
        )


def _how_to_use(keys: Sequence[str], now: Job) -> list[str]:
    """Return how to use the new values: by words of `resume`, last a new launch for the others."""
    command = (*now.command, *now.resume_args) if "resume_args" in keys else now.command
    words, others = dict[str, None](), list[str]()
    for key in keys:
        flag = (_FLAGS | _INSTEAD).get(key.partition(".")[0])
        if flag is None:
            others.append(f"job.{key}")
        else:
            words[flag.replace("COMMAND", shlex.join(command) or "COMMAND")] = None
    # What follows `--` ends the options.
    ordered = sorted(words, key=lambda word: word.startswith("-- "))
    return [*ordered, *([f"a new launch for {' and '.join(others)}"] if others else [])]


def completed(before: Job, now: Job) -> tuple[Job, tuple[str, ...]]:
    """Fill what a job lacks that is often written after a run; return it with the keys filled."""
    added = {
        name: getattr(now, name)
        for name in _ADDED_LATER
        if getattr(now, name) and not getattr(before, name)
    }
    return replace(before, **added), tuple(f"job.{name}" for name in added)


def changed(record: RunRecord, now: Job, given: Options, find: Find) -> list[str]:
    """Return the keys of `job:`, variables as `env.NAME`, that differ and that no flag sets."""
    then = _as_written(record, now, find)
    keys = [
        key
        for key in _COMPARED
        if getattr(now, key) not in (getattr(then, key), getattr(record.cluster.job, key))
        and not (key in _FLAGS and given.says(key))
    ]
    hang = given.hang_after if given.hang_action is None else given.hang_action
    most = given.min_nodes if given.restarts is None else given.restarts
    flagged = {"hang": hang, "restart": most}
    keys = [key for key in keys if flagged.get(key) is None]
    variables = {name for name, _ in set(then.env) ^ set(now.env)} - set(dict(given.env))
    return [*keys, *(f"env.{name}" for name in sorted(variables))]


def _as_written(record: RunRecord, now: Job, find: Find) -> Job:
    """Return the job in a run's inventory; for keys that a flag set, the current value."""
    old, then = record.options, record.cluster.job
    flagged = set(dict(old.get("env") or ()))
    set_then = {name for name, value in old.items() if value is not None}
    env = {name: value for name, value in then.env if name not in flagged}
    env |= {name: value for name, value in now.env if name in flagged}
    typed = set(old.get("env_from") or ())
    same_names = set(then.env_from) - typed == set(now.env_from) - flagged - typed
    # Those of --max-restarts are among the launcher's arguments.
    args_flagged = {"launcher_args", "max_restarts"} & set_then
    set_by_flag = {name: getattr(now, name) for name in _FLAGS if name in set_then}
    written = replace(
        replace(then, **set_by_flag),
        launcher=now.launcher if args_flagged else then.args_for or then.launcher,
        launcher_args=now.launcher_args if args_flagged else then.launcher_args,
        command=_written_command(record, find) or now.command,
        env=tuple(env.items()),
        hang=now.hang if {"hang_after", "hang_action"} & set_then else then.hang,
        restart=now.restart if {"restarts", "min_nodes"} & set_then else then.restart,
        env_from=now.env_from if same_names else then.env_from,
    )
    return completed(written, now)[0]


def _written_command(record: RunRecord, find: Find) -> tuple[str, ...]:
    """Return the command in the run's inventory; empty if it was typed, or is unknown.

    A resumed run has the command of the run before it, plus the checkpoint.
    """
    known: RunRecord | None = record
    while known is not None and known.resumed:
        before = known.resumed.run
        if known.cluster.origin("command", "") != f"run {before}":
            return ()
        known = find(before)
    if known is None or known.options.get("command"):
        return ()
    return known.cluster.job.command


_REACH = ("host", "ssh", "local")
"""The fields that say how to reach a node; the others stay as the run was launched."""
_NODE_FIELDS = (*_REACH, "gpus", "procs", "python", "address", "state")


def reached(record: RunRecord, now: Cluster) -> Cluster:
    """Return the run's cluster, with the addresses and logins of the inventory.

    The record wins if the inventory is of another cluster, or lacks a node of the run, and for a
    run in a Slurm allocation: only through that one its nodes are reached.
    """
    if record.cluster.slurm_job or now.name != record.cluster.name or lacks(record, now):
        return record.cluster
    _report(record, now, _REACH)
    nodes = []
    for node in record.cluster.nodes:
        current = now.node(node.name)
        nodes.append(replace(node, host=current.host, ssh=current.ssh, local=current.local))
    # Those left out may have joined, since the launch or since this machine heard of the run.
    cluster = replace(record.cluster, left_out=(*now.nodes, *now.left_out))
    return cluster.with_nodes(tuple(nodes))


def lacks(record: RunRecord, now: Cluster) -> bool:
    """Tell whether the inventory lacks nodes of the run, and warn about it."""
    names = {node.name for node in now.nodes}
    missing = [node.name for node in record.cluster.nodes if node.name not in names]
    if missing:
        report_ignored(record, now, f"it lacks {', '.join(missing)}")
    return bool(missing)


def nodes_again(record: RunRecord, now: Cluster) -> str:
    """Return the nodes of the run, as `--nodes` takes them.

    Raises:
        UsageError: the inventory lacks one.
    """
    names = [node.name for node in record.cluster.nodes]
    known = {node.name for node in now.nodes}
    if missing := [name for name in names if name not in known]:
        kept = ",".join(name for name in names if name in known)
        raise UsageError(
            f"{now.file or now.name}: expected the nodes of {record.run}, found that it lacks"
            f" {name_hosts(missing)}",
            hint=f"--nodes {kept}" if kept else None,
        )
    return ",".join(names)


def report_ignored(record: RunRecord, now: Cluster, why: str) -> None:
    """Warn that the inventory is not used for a run."""
    logger.warning("%s: %s; using the nodes as %s was launched", now.file, why, record.run)


def report_changes(record: RunRecord, now: Cluster) -> None:
    """Warn about changes of the inventory since the launch that a resume will use."""
    _report(record, now, _NODE_FIELDS)


def _report(record: RunRecord, now: Cluster, compared: tuple[str, ...]) -> None:
    for node in record.cluster.nodes:
        other = now.node(node.name)
        changed = [name for name in compared if getattr(node, name) != getattr(other, name)]
        if changed:
            logger.warning(
                "%s: %s of %s changed since %s was launched; using the inventory's",
                now.file,
                ", ".join(changed),
                node.name,
                record.run,
            )
