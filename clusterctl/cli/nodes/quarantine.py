"""`clusterctl quarantine`: list the nodes that are kept out, add some, or take them out."""

import argparse
import json
import shlex
from functools import partial

from clusterctl.api.session import Session
from clusterctl.cli.shared.options import add_inventory, add_json, load_all, read_as
from clusterctl.cli.shared.run_option import known_cluster
from clusterctl.errors import UsageError
from clusterctl.inventory import kinds
from clusterctl.report.console import Screen, safe_text
from clusterctl.report.quarantine import show_quarantine
from clusterctl.verbs.events import Notice
from clusterctl.verbs.runs.records import Records

EXIT_NOTHING = 1
LIST, ADD, REMOVE = "list", "add", "remove"
_EXAMPLE = {ADD: "clusterctl quarantine add gpu3", REMOVE: "clusterctl quarantine remove gpu3"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add(
        "action",
        nargs="?",
        choices=(LIST, ADD, REMOVE),
        default=LIST,
        help="what to do with nodes: put them in, take them out (default: list)",
    )
    add(
        "nodes",
        nargs="*",
        metavar="NODE",
        help="with add and remove: names and ranges such as gpu[02-04,07]",
    )
    add_inventory(parser)
    add("--reason", metavar="TEXT", help="with add: why, for those who read it later")
    add(
        "--for",
        dest="seconds",
        type=partial(read_as, kinds.RUN_TIME),
        metavar="T",
        help="with add: how long, such as 12h, 3d or 2w (default: 7d)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """List, add or remove; 1 if a node to remove was not in quarantine."""
    args.nodes = ",".join(args.nodes)
    _require_fitting(args)
    screen = Screen()
    absent: tuple[str, ...] = ()
    cluster = load_all(args)
    # Outside of its allocations, Slurm's nodes are known by the runs on them.
    with Session(cluster if cluster.nodes else known_cluster(args, Records())) as session:
        if args.action == ADD:
            reason = args.reason or ""
            found = session.quarantine_add(args.nodes, reason=reason, seconds=args.seconds)
        elif args.action == REMOVE:
            found, absent = session.quarantine_remove(args.nodes)
        else:
            found = session.quarantine()
    if args.json:
        print(json.dumps(found.document(), indent=1))
    elif args.action == REMOVE:
        for one in found:
            screen.out.print(safe_text(f"{one.node}: taken out of quarantine"))
    else:
        show_quarantine(screen, found)
    for name in absent:
        screen.say(Notice(text="it is not in quarantine", node=name, level="warning"))
    return EXIT_NOTHING if absent else 0


def _require_fitting(args: argparse.Namespace) -> None:
    """Refuse words and flags that the action does not take."""
    typed = f"quarantine {args.action}"
    if args.action == LIST and args.nodes:
        hint = f"clusterctl quarantine add {shlex.quote(args.nodes)}"
        raise UsageError(f"{typed}: expected no node, found {args.nodes!r}", hint=hint)
    if args.action != LIST and not args.nodes:
        raise UsageError(f"{typed}: expected NODE, found none", hint=_EXAMPLE[args.action])
    for flag, value in (("--reason", args.reason), ("--for", args.seconds)):
        if args.action != ADD and value is not None:
            raise UsageError(f"{flag}: expected it with {ADD}", hint=_EXAMPLE[ADD])
