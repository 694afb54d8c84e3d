"""The options of `launch`, which `resume` takes too: from flags, else from `CLUSTERCTL_*`."""

from __future__ import annotations

import argparse
import logging
import shlex
from collections.abc import Callable, Sequence
from typing import cast

from clusterctl.api.flags import LaunchFlags
from clusterctl.cli.shared.agree import asks_to_copy
from clusterctl.cli.shared.options import (
    add_login,
    add_selection,
    add_workdir,
    flag_or_variable,
    positive_seconds,
    whole,
    workdir_argument,
)
from clusterctl.cli.sync import DELETE_HELP, YES_HELP
from clusterctl.errors import UsageError
from clusterctl.inventory.cluster import LOST_AFTER, START_TIMEOUT
from clusterctl.plan.launchers import LAUNCHERS

logger = logging.getLogger("clusterctl")


def _launcher_args(text: str) -> tuple[str, ...]:
    """Read words as a shell would.

    Raises:
        argparse.ArgumentTypeError: a quote is open.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected words, found {text!r}: {error}") from error


_READERS: dict[str, Callable[[str], object]] = {
    "launcher": str,
    "launcher_args": _launcher_args,
    "gpus": whole(0),
    "procs_per_node": whole(1, 4096),
    "workdir": workdir_argument,
    "master_port": whole(1, 65535),
    "max_restarts": whole(0),
    "start_timeout": positive_seconds,
    "lost_after": positive_seconds,
}
"""How each is read, from its flag and from its variable."""


OURS_ALONE = frozenset({
    "--accept-new", "--detach", "--dry-run", "--exclude", "--exclude-unhealthy", "--fanout",
    "--launcher", "--launcher-args", "--lost-after", "--master-port", "--no-check", "--no-sync",
    "--nodes",
    "--procs-per-node", "--start-timeout",
})  # fmt: skip
"""Flags that a training program hardly has; it may well have `--name`, `--gpus` or `--debug`."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options; the command after `--` is separated before, in `main`."""
    add_selection(parser)
    add = parser.add_argument

    def add_value(name: str, metavar: str, text: str) -> None:
        flag = f"--{name.replace('_', '-')}"
        add(flag, type=_READERS[name], metavar=metavar, help=text)

    add("--launcher", choices=tuple(LAUNCHERS), help="what starts the ranks (default: the job's)")
    args = "arguments for the launcher instead of job.launcher_args; repeatable"
    add("--launcher-args", action="extend", type=_launcher_args, metavar="'ARGS'", help=args)
    add("--exclude-unhealthy", action="store_true", help="leave out nodes that fail a check")
    add_value("gpus", "N", "GPUs to use on every node at most")
    procs = "ranks on every node, however many GPUs it has; 1 if the script starts its own"
    add_value("procs_per_node", "N", procs)
    add_workdir(parser)
    add("--name", default="", help="a name of your own for the run")
    env = "environment variable of every rank; repeatable"
    add("--env", action="append", default=[], metavar="K=V", help=env)
    add_value("master_port", "P", "port of the rendezvous")
    add_value("max_restarts", "N", "let the launcher restart ranks")
    add_value(
        "start_timeout",
        "S",
        f"seconds until the run ends if not all ranks have joined (default: {START_TIMEOUT:g})",
    )
    add_value(
        "lost_after",
        "S",
        f"seconds without a heartbeat until a node counts as lost (default: {LOST_AFTER:g})",
    )
    add("--debug", action="store_true", help="set the debug variables of NCCL and torch")
    add("-d", "--detach", action="store_true", help="start the run and do not follow it")
    add("--dry-run", action="store_true", help="print what would be started, and start nothing")
    add("--no-check", action="store_true", help="do not check the nodes first")
    add("--no-sync", action="store_true", help="do not mirror the current folder first")
    add("--delete", action="store_true", help=DELETE_HELP)
    add("--yes", action="store_true", help=YES_HELP)
    add("--force", action="store_true", help="launch even if checks failed")
    add_login(parser)
    add("--json", action="store_true", help="print one JSON object per line")
    add("--run-id", help=argparse.SUPPRESS)  # of a batch job: see `clusterctl/verbs/batch/`


def warn_of_flags(command: Sequence[str]) -> None:
    """Warn about clusterctl's flags after `--`: they go to the job, which may not know them."""
    found = [word for word in command if word.partition("=")[0] in OURS_ALONE]
    if found:
        logger.warning(
            "%s: after `--`, so the job gets it (to set it for clusterctl, type it before `--`)",
            " ".join(found),
        )


def launch_flags(args: argparse.Namespace, quiet: Callable[[], object]) -> LaunchFlags:
    """Return the flags as the API takes them; `quiet` is called before a question.

    Raises:
        UsageError: one of them cannot be.
    """
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    for name, read in _READERS.items():
        values[name], variable = flag_or_variable(args, name, read)
        if variable:
            origins[name] = variable
    taken = {name: getattr(args, name) for name in LaunchFlags.__annotations__ if name in args}
    flags = {**taken, **values, "env": dict(map(_pair, args.env)), "origins": origins}
    flags["yes"] = args.yes or asks_to_copy(quiet)
    return cast("LaunchFlags", flags)  # each was read by its own type above


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        hint = f"--env {shlex.quote(name or 'NAME')}=VALUE"
        raise UsageError(f"--env: expected NAME=VALUE, found {text!r}", hint=hint)
    return name, value
