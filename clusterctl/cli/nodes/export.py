"""`clusterctl export`: write the inventory's hosts for another program."""

import argparse
import json
import sys

from clusterctl.cli.shared.options import add_selection, load_all
from clusterctl.errors import UsageError
from clusterctl.inventory.select import select
from clusterctl.wire import SCHEMA, plain

FORMATS = ("deepspeed", "mpi", "ansible", "ssh_config")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_selection(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--to", choices=FORMATS, help="the program or file; printed on stdout")
    form.add_argument(
        "--json", action="store_true", help="print the nodes, with their defaults, as JSON"
    )


def run(args: argparse.Namespace) -> int:
    """Print the hosts."""
    # PyYAML takes long to import, and `--help` needs none.
    from clusterctl.inventory.other_programs.export import FORMATS as WRITERS  # noqa: PLC0415
    from clusterctl.inventory.other_programs.export import exported_nodes  # noqa: PLC0415

    if args.to is None and not args.json:
        raise UsageError(
            f"export: expected --to {'|'.join(FORMATS)}, or --json; found neither",
            hint="clusterctl export --to deepspeed",
        )
    cluster = select(load_all(args), args.nodes, args.exclude)
    if args.json:
        nodes = plain(exported_nodes(cluster))
        print(json.dumps({"schema": SCHEMA, "cluster": cluster.name, "nodes": nodes}, indent=2))
        return 0
    sys.stdout.write(WRITERS[args.to](cluster))
    return 0
