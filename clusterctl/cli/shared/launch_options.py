"""The options of `launch`, which `resume` takes too: from flags, else from `CLUSTERCTL_*`."""

import argparse
import logging
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import cast

from clusterctl.api.flags import LaunchFlags
from clusterctl.cli.files.sync import DELETE_HELP, YES_HELP
from clusterctl.cli.shared.agree import asks_to_copy
from clusterctl.cli.shared.env_file import read_env_file
from clusterctl.cli.shared.options import (
    add_login,
    add_selection,
    add_setting,
    flag_or_variable,
    read_as,
)
from clusterctl.errors import UsageError
from clusterctl.inventory import kinds
from clusterctl.plan.command.launcher_flags import shell_words, start_of
from clusterctl.plan.options import FLAGGED

logger = logging.getLogger("clusterctl")


_VALUES = tuple(name for name, one in FLAGGED.items() if one.kind is not kinds.BOOLEAN)
"""The settings that a flag has a value for, or a variable."""

_WAIT = 7200.0
"""Seconds, of `--wait` without a time."""

OURS_ALONE = frozenset({
    "--accept-new", "--detach", "--dry-run", "--exclude", "--exclude-quarantined",
    "--exclude-unhealthy", "--fanout", "--hang-action", "--hang-after",
    "--launcher", "--launcher-args", "--lost-after", "--master-port", "--no-check", "--no-sync",
    "--nodes",
    "--min-nodes", "--procs-per-node", "--restarts", "--spares", "--start-timeout", "--wait",
})  # fmt: skip
"""Flags that a training program hardly has; it may well have `--name`, `--gpus` or `--debug`."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options; the command after `--` is separated before, in `main`."""
    add_selection(parser)
    add = parser.add_argument

    for name in FLAGGED:
        add_setting(parser, name)
        if name == "launcher_args":
            help_ = "leave out nodes that fail a check"
            add("--exclude-unhealthy", action="store_true", help=help_)
            help_ = "leave out nodes in quarantine (see clusterctl quarantine)"
            add("--exclude-quarantined", action="store_true", help=help_)
        if name == "workdir":
            add("--name", default="", help="a name of your own for the run")
            env = "environment variable of every rank; K alone: from this shell, never recorded"
            add("--env", action="append", default=[], metavar="K[=V]", help=env)
            file = "file of K=V lines: variables of every rank, never recorded; repeatable"
            add("--env-file", action="append", default=[], metavar="FILE", help=file)
    add("-d", "--detach", action="store_true", help="start the run and do not follow it")
    add("--dry-run", action="store_true", help="print what would be started, and start nothing")
    add("--no-check", action="store_true", help="do not check the nodes first")
    add("--no-sync", action="store_true", help="do not mirror the current folder first")
    add("--delete", action="store_true", help=DELETE_HELP)
    add("-y", "--yes", action="store_true", help=YES_HELP)
    add("--force", action="store_true", help="launch even if checks failed")
    add(
        "--wait",
        nargs="?",
        type=partial(read_as, kinds.DURATION),
        const=_WAIT,
        metavar="T",
        help="wait until no one else uses the nodes, at most so long, such as 30m (default: 2h)",
    )
    add_login(parser)
    add("--json", action="store_true", help="print one JSON object per line")
    add("--run-id", help=argparse.SUPPRESS)  # of a batch job: see `clusterctl/verbs/batch/`


def warn_of_flags(command: Sequence[str]) -> None:
    """Warn about clusterctl's flags and a shell's words after `--`: they go to the job."""
    found = [word for word in command if word.partition("=")[0] in OURS_ALONE]
    if found:  # what the script itself names is its own
        from clusterctl.verbs.launch.script_text import script_text  # noqa: PLC0415  (rarely needed)

        text = script_text(command, Path.cwd())
        named = set(re.findall(r"""["'](--[\w-]+)["']""", text))
        found = [word for word in found if word.partition("=")[0] not in named]
    if found and start_of(tuple(command)) is None:  # a launcher's own flags are translated
        logger.warning(
            "%s: after `--`, so the job gets it (to set it for clusterctl, type it before `--`)",
            " ".join(found),
        )
    if shell := shell_words(tuple(command)):
        logger.warning(
            "%s: no shell reads the command, so the job gets it (the log is kept without `>`;"
            " --detach before `--` is for `&`; a shell line: -- bash -c '...')",
            " ".join(shell),
        )


def launch_flags(args: argparse.Namespace, quiet: Callable[[], object]) -> LaunchFlags:
    """Return the flags as the API takes them; `quiet` is called before a question."""
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    for name in _VALUES:
        values[name], variable = flag_or_variable(args, name)
        if variable:
            origins[name] = variable
    taken = {name: getattr(args, name) for name in LaunchFlags.__annotations__ if name in args}
    secrets = [pair for path in args.env_file for pair in read_env_file(Path(path))]
    os.environ.update(secrets)  # from there they are taken, as those of `env_from`
    names = [*(name for name, _ in secrets), *(_name(one) for one in args.env if "=" not in one)]
    env = dict(map(_pair, (one for one in args.env if "=" in one)))
    flags = {**taken, **values, "env": env, "env_from": names, "origins": origins}
    flags["yes"] = args.yes or asks_to_copy(quiet)
    return cast("LaunchFlags", flags)  # each was read by its own type above


def _name(text: str) -> str:
    if not text.isidentifier():
        hint = "--env NAME, from this shell, or --env NAME=VALUE"
        raise UsageError(f"--env: expected a variable, found {text!r}", hint=hint)
    return text


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not name:
        raise UsageError(f"--env: expected NAME=VALUE, found {text!r}", hint="--env NAME=VALUE")
    return name, value
