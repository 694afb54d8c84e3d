"""The options of `launch`, which `resume` takes too: from flags, else from `CLUSTERCTL_*`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import cast

from clusterctl.api.flags import LaunchFlags
from clusterctl.cli.arg_types import LAST_PORT, flag_or_variable, positive_seconds, whole
from clusterctl.cli.inventory_option import add_selection
from clusterctl.cli.sync import DELETE_HELP
from clusterctl.cli.workdir_option import add_workdir, workdir_argument
from clusterctl.errors import UsageError
from clusterctl.plan.launchers import LAUNCHERS

_READERS: dict[str, Callable[[str], object]] = {
    "launcher": str,
    "gpus": whole(0),
    "procs_per_node": whole(1, 4096),
    "workdir": workdir_argument,
    "master_port": whole(1, LAST_PORT),
    "max_restarts": whole(0),
    "start_timeout": positive_seconds,
    "lost_after": positive_seconds,
}
"""How each is read, from its flag and from its variable."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options; the command after `--` is split off before, in `main`."""
    add_selection(parser)
    add = parser.add_argument
    add("--launcher", choices=tuple(LAUNCHERS), help="what starts the ranks (default: the job's)")
    add("--exclude-unhealthy", action="store_true", help="leave out nodes that fail a check")
    add("--gpus", type=_READERS["gpus"], metavar="N", help="GPUs to use on every node at most")
    add(
        "--procs-per-node",
        type=_READERS["procs_per_node"],
        metavar="N",
        help="ranks on every node, however many GPUs it has; 1 if the script starts its own",
    )
    add_workdir(parser)
    add("--name", default="", help="a name of your own for the run")
    add(
        "--env",
        action="append",
        default=[],
        metavar="K=V",
        help="environment variable of every rank; repeatable",
    )
    add("--master-port", type=_READERS["master_port"], metavar="P", help="port of the rendezvous")
    add(
        "--max-restarts",
        type=_READERS["max_restarts"],
        metavar="N",
        help="let the launcher restart ranks",
    )
    add(
        "--start-timeout",
        type=_READERS["start_timeout"],
        metavar="S",
        help="seconds until the run ends if not all ranks have joined",
    )
    add(
        "--lost-after",
        type=_READERS["lost_after"],
        metavar="S",
        help="seconds without a heartbeat until a node is lost (15)",
    )
    add("--debug", action="store_true", help="set the debug variables of NCCL and torch")
    add("--detach", action="store_true", help="start the run and do not follow it")
    add("--dry-run", action="store_true", help="print what would be started, and start nothing")
    add("--no-check", action="store_true", help="do not check the nodes first")
    add("--no-sync", action="store_true", help="do not mirror the current folder first")
    add("--delete", action="store_true", help=DELETE_HELP)
    add("--force", action="store_true", help="launch even if checks failed")
    add("--accept-new", action="store_true", help="record the keys of hosts not known yet")
    add("--json", action="store_true", help="print one JSON object per line")


def launch_flags(args: argparse.Namespace) -> LaunchFlags:
    """Return the flags as the API takes them.

    Raises:
        UsageError: one of them cannot be.
    """
    values, origins = _chosen(args)
    taken = {name: getattr(args, name) for name in LaunchFlags.__annotations__ if name in args}
    flags = {**taken, **values, "env": dict(map(_pair, args.env)), "origins": origins}
    return cast("LaunchFlags", flags)  # each was read by its own type above


def _chosen(args: argparse.Namespace) -> tuple[dict[str, object], dict[str, str]]:
    """Return the values of flags and variables, and the variable that each one is from."""
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    for name, read in _READERS.items():
        values[name], variable = flag_or_variable(args, name, read)
        if variable:
            origins[name] = variable
    return values, origins


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--env: expected NAME=VALUE, found {text!r}")
    return name, value
