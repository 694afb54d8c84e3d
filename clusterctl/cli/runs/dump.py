"""`clusterctl dump`: where every rank of a run is now, on all its nodes."""

import argparse
import json
from pathlib import Path

from clusterctl.cli.shared.options import add_json
from clusterctl.cli.shared.run_option import EXIT_SILENT, add_run, open_run
from clusterctl.report.console import Screen
from clusterctl.report.stacks.dump import show_dump
from clusterctl.verbs.dump.dump import DumpQuery, write_dumps


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run(parser)
    add = parser.add_argument
    add("--nodes", "--node", dest="node", metavar="SPEC", help="only these nodes: names and ranges")
    add("--rank", metavar="RANKS", help="only these ranks, such as 0-3,7; prints every thread")
    add("--native", action="store_true", help="with the frames of C and C++; pauses each rank")
    add("--locals", action="store_true", help="with the values of local variables")
    add("--output", type=Path, metavar="DIR", help="write DIR/NODE.json instead")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the stacks; 3 if a node of the run did not answer."""
    screen = Screen()
    query = DumpQuery(node=args.node, rank=args.rank, native=args.native, with_locals=args.locals)
    with open_run(args) as opened, screen.progress() as progress:
        result = opened.dump(query, on_event=progress.show)
    if args.output:
        write_dumps(args.output, result)
    if args.json:
        print(json.dumps(result.document()))
    else:
        show_dump(screen, result, every_thread=args.rank is not None, folder=args.output)
    return EXIT_SILENT if result.silent else 0
