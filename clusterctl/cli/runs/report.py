"""`clusterctl report`: write all that is known of a run into one HTML file."""

import argparse
from pathlib import Path

from clusterctl.cli.runs.runs import METRICS_HELP
from clusterctl.cli.shared.run_option import EXIT_SILENT, add_run, open_run
from clusterctl.errors import ClusterError
from clusterctl.report.console import Screen
from clusterctl.report.html.frame import require_html, write
from clusterctl.report.html.run import run_page
from clusterctl.verbs.checkpoints.choose import ListedCheckpoint
from clusterctl.verbs.events import Notice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run(parser)
    add = parser.add_argument
    add("-o", "--output", type=Path, metavar="FILE", help="the file (default: RUN.html)")
    add("--metrics", metavar="PATH", help=METRICS_HELP)


def run(args: argparse.Namespace) -> int:
    """Write it; 3 if a node did not answer: the file lacks what that node knows."""
    screen = Screen()
    if args.output is not None:
        require_html(args.output, "--output")
    with open_run(args) as opened, screen.progress() as progress:
        story = opened.story(metrics=args.metrics, on_event=progress.show)
        checkpoints: tuple[ListedCheckpoint, ...] = ()
        try:
            checkpoints = opened.checkpoints(on_event=progress.show)
        except ClusterError as error:
            text = f"the report lacks the checkpoints: {error}"
            screen.say(Notice(text=text, level="warning"))
    path = args.output or Path(f"{story.run}.html")
    write(path, run_page(story, checkpoints))
    screen.out.print(str(path), markup=False, soft_wrap=True)
    screen.show_errors(story.errors)
    return EXIT_SILENT if story.errors else 0
