"""The option `--workdir`, with which a verb works in another folder on the nodes."""

from __future__ import annotations

import argparse
from typing import cast

from clusterctl.cli.arg_types import flag_or_variable
from clusterctl.plan import options


def add_workdir(parser: argparse.ArgumentParser) -> None:
    """Add `--workdir DIR`."""
    parser.add_argument(
        "--workdir",
        type=workdir_argument,
        metavar="DIR",
        help="folder on the nodes that gets the code and runs it, instead of the inventory's",
    )


def given_workdir(args: argparse.Namespace) -> str | None:
    """Return the folder of `--workdir`, else of the variable.

    Raises:
        UsageError: the variable is no such folder.
    """
    return cast("str | None", flag_or_variable(args, "workdir", workdir_argument)[0])


def workdir_argument(text: str) -> str:
    """Read an absolute path on the nodes that is not the root.

    Raises:
        argparse.ArgumentTypeError: it is not one.
    """
    try:
        return options.node_folder(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
