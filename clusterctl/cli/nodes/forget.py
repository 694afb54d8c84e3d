"""`clusterctl forget`: remove the recorded host key of a reinstalled host."""

import argparse
import json
import shlex
import sys

from clusterctl.cli.shared.options import add_inventory, add_json, load_all
from clusterctl.inventory.select import named
from clusterctl.verbs.forget import Forgotten, forget_nodes
from clusterctl.wire import SCHEMA, plain

EXIT_NOTHING = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_inventory(parser)
    parser.add_argument(
        "hosts", metavar="HOST", help="host of the inventory, or a range: gpu[02-04]"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Forget, and report what was dropped and what is not ours to drop."""
    cluster = load_all(args)
    results = forget_nodes(cluster, named(cluster, args.hosts, option="clusterctl forget"))
    for result in results:
        _report(result)
    if args.json:
        print(json.dumps({"schema": SCHEMA, "nodes": plain(results)}, indent=1))
    known = any(result.dropped or result.elsewhere for result in results)
    return 0 if known else EXIT_NOTHING


def _report(result: Forgotten) -> None:
    if result.dropped:
        sys.stderr.write(f"{result.node}: forgot the host key of {result.name}\n")
        sys.stderr.write("hint: record the new one with: clusterctl check --accept-new\n")
    elif not result.elsewhere:
        sys.stderr.write(f"{result.node}: no host key of {result.name} is recorded\n")
    for where in result.elsewhere:
        command = shlex.join(["ssh-keygen", "-R", result.name, "-f", where.rpartition(":")[0]])
        sys.stderr.write(f"{result.node}: your own file has a key of it too: {where}\n")
        sys.stderr.write(f"hint: {command}\n")
