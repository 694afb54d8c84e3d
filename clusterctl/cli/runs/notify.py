"""`clusterctl notify --test`: let the master tell the receivers of `job.notify` of a test."""

import argparse
import json

from clusterctl.cli.shared.connected import connected
from clusterctl.cli.shared.options import add_inventory, add_json, add_login
from clusterctl.report.console import Screen, safe_text

EXIT_FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_inventory(parser)
    parser.add_argument(
        "--test", action="store_true", required=True, help="send a test, and print each answer"
    )
    add_login(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Send it; 0 if every receiver took it, 1 if not, 3 if the master did not answer."""
    screen = Screen()
    with connected(args, screen) as (session, progress):
        result = session.notify_test(on_event=progress.show)
    if args.json:
        print(json.dumps(result.document(), indent=1))
    else:
        for one in result.told:
            text = f"{one.receiver}: {'ok' if one.ok else 'failed'}: {one.answer}"
            screen.out.print(safe_text(text, "green" if one.ok else "bold red"))
    return 0 if result.ok else EXIT_FAILED
