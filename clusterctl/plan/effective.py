"""Applies the command line to the inventory, once.

clusterctl checks, plans, records and later resumes the resulting `Cluster`.
"""

from dataclasses import fields, replace
from typing import Any

from clusterctl.errors import UsageError
from clusterctl.inventory.cluster import Cluster, Job, Node
from clusterctl.inventory.settings import settings_of
from clusterctl.plan import launchers
from clusterctl.plan.options import SETTINGS, Options

_OVERRIDES = {one.name for one in fields(Options)} & settings_of(Job).keys() - {
    "launcher", "launcher_args", "env", "env_from",
}  # fmt: skip
"""The options that override a setting of the job as they are."""


def effective(cluster: Cluster, options: Options) -> Cluster:
    """Return the cluster to launch.

    Applying the same options again changes nothing.

    Raises:
        UsageError: the launcher is unknown or does not support an option, or no node is left.
    """
    job = _job(cluster.job, options)
    if job.launcher == "ray" and job.ray_address:
        cluster = cluster.with_nodes(cluster.nodes[:1])  # for the driver; the rest is not ours
    return replace(
        cluster,
        nodes=_with_spares(tuple(_node(node, options) for node in cluster.nodes), options.spares),
        master_port=options.master_port or cluster.master_port,
        job=job,
        origins=tuple({**dict(cluster.origins), **_origins(options)}.items()),
    )


def _with_spares(nodes: tuple[Node, ...], count: int | None) -> tuple[Node, ...]:
    """Let the last so many nodes be spares, instead of those that the inventory names."""
    if count is None:
        return nodes
    if count and count >= len(nodes):
        raise UsageError(
            f"--spares: expected fewer than the {len(nodes)} selected nodes, found {count}",
            hint=f"--spares {len(nodes) - 1}" if len(nodes) > 1 else None,
        )
    first = len(nodes) - count
    return tuple(replace(node, spare=at >= first) for at, node in enumerate(nodes))


def _node(node: Node, options: Options) -> Node:
    return replace(
        node,
        gpus_limit=node.gpus_limit if options.gpus is None else options.gpus,
        workdir=options.workdir or node.workdir,
    )


def _job(job: Job, options: Options) -> Job:
    _require_ranks(options.launcher or job.launcher, options.procs_per_node or job.procs_per_node)
    env = dict(options.env)
    after = job.hang.after if options.hang_after is None else options.hang_after
    restart = {"max": options.restarts, "min_nodes": options.min_nodes}
    given_restart: Any = {name: value for name, value in restart.items() if value is not None}
    names = filter(options.says, _OVERRIDES)
    given: dict[str, Any] = {name: getattr(options, name) for name in names}
    return replace(
        _relaunched(job, options),
        env=tuple({**{n: v for n, v in job.env if n not in options.env_from}, **env}.items()),
        env_from=tuple(
            n for n in dict.fromkeys((*job.env_from, *options.env_from)) if n not in env
        ),
        hang=replace(job.hang, after=after, action=options.hang_action or job.hang.action),
        restart=replace(job.restart, **given_restart),
        **given,
    )


def _require_ranks(launcher: str, procs: int | None) -> None:
    """Raise UsageError for a number of ranks where the command runs once."""
    known = launchers.LAUNCHERS.get(launcher)
    if procs is not None and known is not None and known.one_driver:
        raise UsageError(
            f"procs_per_node: expected none, found {procs}: {launcher} starts the command once,"
            " and the command asks it for workers",
            hint="leave out --procs-per-node and job.procs_per_node",
        )


def _relaunched(job: Job, options: Options) -> Job:
    """Return the job with the launcher of the options.

    Arguments for another launcher are kept: a later resume may use that one again.
    """
    name = options.launcher or job.launcher
    job = replace(job, launcher=name, args_for=job.args_for or job.launcher)
    job = replace(job, args_for=None) if job.args_for == name else job
    if options.launcher_args is not None:
        job = replace(job, launcher_args=options.launcher_args, args_for=None)
    if options.max_restarts is None:
        return job
    limit_restarts = launchers.find_launcher(name).limit_restarts
    if limit_restarts is not None:
        limit = limit_restarts(options.max_restarts)
        args = job.args if job.args[-len(limit) :] == limit else job.args + limit
        return replace(job, launcher_args=args, args_for=None)
    if options.max_restarts:
        raise UsageError(
            f"--max-restarts: the launcher {name} does not restart ranks",
            hint="--launcher torchrun",
        )
    return job


def _origins(options: Options) -> dict[str, str]:
    names = (*SETTINGS, "debug")
    found = {name: options.origin(name) for name in names if options.says(name)}
    for name, _ in options.env:
        found[f"env.{name}"] = options.origins.get(f"env.{name}", options.origin("env"))
    return found
