"""`clusterctl init`: write a hosts.yaml to start from."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from clusterctl.cli import inventory_option
from clusterctl.errors import UsageError
from clusterctl.inventory.load import DEFAULT
from clusterctl.verbs.init import convert, draft, name_for, write_new, write_over


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    path: Path
    hosts: tuple[str, ...]
    convert: Path | None
    name: str | None
    identity: Path | None
    force: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument(
        "hosts",
        nargs="*",
        metavar="HOST",
        help="as ssh takes it, or a range: [user@]gpu[01-04][:port] (default: localhost)",
    )
    inventory_option.add_inventory(parser)
    parser.add_argument("--name", help="the cluster's name (default: the folder's)")
    action = parser.add_argument(
        "--identity", type=Path, metavar="KEY", help="private key for logging in to the hosts"
    )
    inventory_option.complete_files(action)
    action = parser.add_argument(
        "--convert", type=Path, metavar="HOSTFILE", help="take the hosts of an MPI hostfile"
    )
    inventory_option.complete_files(action)
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")


def run(args: argparse.Namespace) -> int:
    """Write the file and say what comes next."""
    options = _Options(
        path=inventory_option.inventory_path(args),
        hosts=tuple(args.hosts),
        convert=args.convert,
        name=args.name,
        identity=args.identity,
        force=args.force,
    )
    write = write_over if options.force else write_new
    write(options.path, _text(options))
    usual = str(options.path) == DEFAULT
    inventory = "" if usual else f" -i {shlex.quote(str(options.path))}"
    remote = options.convert is not None or set(options.hosts) - {"localhost"}
    keys = " --accept-new, which records the hosts' keys" if remote else ""
    sys.stderr.write(f"wrote {options.path}\nhint: clusterctl check{inventory}{keys}\n")
    return 0


def _text(options: _Options) -> str:
    if options.convert is not None:
        if options.hosts or options.name or options.identity:
            raise UsageError("--convert: expected it alone, found hosts, --name or --identity too")
        return convert(options.convert)
    name = options.name or name_for(Path.cwd())
    return draft(options.hosts or ("localhost",), name=name, identity=options.identity)
