"""`clusterctl init`: write a hosts.yaml to start from."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from clusterctl.cli.options import add_inventory, complete_files, inventory_path
from clusterctl.errors import UsageError
from clusterctl.inventory.load import DEFAULT
from clusterctl.verbs.init import convert, draft, name_for, write


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument(
        "hosts",
        nargs="*",
        metavar="HOST",
        help="as ssh takes it, or a range: [user@]gpu[01-04][:port] (default: localhost)",
    )
    add_inventory(parser)
    parser.add_argument("--name", help="the cluster's name (default: the folder's)")
    action = parser.add_argument(
        "--identity", type=Path, metavar="KEY", help="private key for logging in to the hosts"
    )
    complete_files(action)
    action = parser.add_argument(
        "--convert", type=Path, metavar="HOSTFILE", help="take the hosts of an MPI hostfile"
    )
    complete_files(action)
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")


def run(args: argparse.Namespace) -> int:
    """Write the file and say what comes next."""
    path = inventory_path(args)
    write(path, _text(args), overwrite=args.force)
    usual = str(path) == DEFAULT
    inventory = "" if usual else f" -i {shlex.quote(str(path))}"
    remote = args.convert is not None or set(args.hosts) - {"localhost"}
    keys = " --accept-new, which records the hosts' keys" if remote else ""
    sys.stderr.write(f"wrote {path}\nhint: clusterctl check{inventory}{keys}\n")
    return 0


def _text(args: argparse.Namespace) -> str:
    if args.convert is not None:
        if args.hosts or args.name or args.identity:
            raise UsageError("--convert: expected it alone, found hosts, --name or --identity too")
        return convert(args.convert)
    return draft(
        args.hosts or ["localhost"],
        name=args.name or name_for(Path.cwd()),
        identity=args.identity,
    )
