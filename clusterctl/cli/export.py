"""`clusterctl export`: write the inventory's hosts for another program."""

from __future__ import annotations

import argparse
import sys

from clusterctl.cli.options import add_selection, load_all
from clusterctl.errors import UsageError
from clusterctl.inventory.select import named, select

FORMATS = ("deepspeed", "mpi", "ansible", "ssh_config", "accelerate")
_OF_ONE_NODE = "accelerate"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_selection(parser)
    parser.add_argument(
        "--to", required=True, choices=FORMATS, help="the program or file; printed on stdout"
    )
    parser.add_argument(
        "--node",
        metavar="HOST",
        help="with accelerate, the machine that the file is for (default: the master)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the hosts."""
    # PyYAML takes long to import, and `--help` needs none.
    from clusterctl.inventory.export import FORMATS as WRITERS  # noqa: PLC0415

    if args.node is not None and args.to != _OF_ONE_NODE:
        raise UsageError(
            f"--node: expected --to {_OF_ONE_NODE} with it, found --to {args.to}",
            hint=f"--to {_OF_ONE_NODE}",
        )
    cluster = select(load_all(args), args.nodes, args.exclude)
    node = None
    if args.node is not None:
        node, *others = named(cluster, args.node, option="--node")
        if others:
            raise UsageError(f"--node {args.node}: expected one node, found {1 + len(others)}")
    sys.stdout.write(WRITERS[args.to](cluster, node))
    return 0
