"""The option `--workdir`, with which a verb works in another folder on the nodes."""

from __future__ import annotations

import argparse
import os

from clusterctl.errors import UsageError
from clusterctl.inventory.cluster import Cluster
from clusterctl.plan.effective import effective
from clusterctl.plan.options import Options

VARIABLE = "CLUSTERCTL_WORKDIR"


def add_workdir(parser: argparse.ArgumentParser) -> None:
    """Add `--workdir DIR`."""
    parser.add_argument(
        "--workdir",
        type=node_folder,
        metavar="DIR",
        help="folder on the nodes to mirror the code to and run in, instead of the inventory's",
    )


def with_workdir(cluster: Cluster, args: argparse.Namespace) -> Cluster:
    """Return the cluster as a launch with this `--workdir`, else of the variable, has it.

    Raises:
        UsageError: the variable is no such folder.
    """
    given, origins = args.workdir, {}
    if given is None and os.environ.get(VARIABLE):
        try:
            given, origins = node_folder(os.environ[VARIABLE]), {"workdir": VARIABLE}
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"{VARIABLE}: {error}") from error
    return effective(cluster, Options(workdir=given, origins=origins))


def node_folder(text: str) -> str:
    """Read an absolute path on the nodes that is not the root.

    Raises:
        argparse.ArgumentTypeError: it is not one.
    """
    parts = [part for part in text.split("/") if part not in {"", "."}]
    if not text.startswith("/") or ".." in parts or not parts or not text.isprintable():
        wanted = "an absolute path on the nodes, without .."
        raise argparse.ArgumentTypeError(f"expected {wanted}, found {text!r}")
    return "/" + "/".join(parts)
