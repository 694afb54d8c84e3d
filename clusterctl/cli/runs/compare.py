"""`clusterctl runs compare` and `runs show --events`: what differs between runs, what happened."""

import argparse
import json
import shlex

from clusterctl.cli.shared.run_option import EXIT_SILENT, open_run
from clusterctl.errors import UsageError
from clusterctl.report.compare import show_comparison, show_moments
from clusterctl.report.console import Screen
from clusterctl.report.html.compare import compare_page
from clusterctl.report.html.frame import require_html, write
from clusterctl.verbs.compare.commits import commit_changes
from clusterctl.verbs.compare.comparison import compare_runs
from clusterctl.verbs.compare.story import Story
from clusterctl.wire import SCHEMA, plain


def compare(args: argparse.Namespace, screen: Screen) -> int:
    """Print what differs between runs; 3 where a node did not answer."""
    if args.report is not None:
        require_html(args.report, "--report")
    stories = []
    for name in dict.fromkeys((args.run, *args.others)):
        args.run = name
        stories.append(_story(args, screen))
    if len({story.run for story in stories}) < len(stories) or len(stories) == 1:
        raise UsageError("expected different runs, found one twice", hint="clusterctl runs")
    found = compare_runs(stories, commit_changes(stories))
    if args.report is not None:
        write(args.report, compare_page(found, stories))
    if args.json:
        print(json.dumps(found.document(), indent=1))
    else:
        show_comparison(screen, found, typed=shlex.join(("clusterctl", *args.words)))
    errors = [error for story in stories for error in story.errors]
    screen.show_errors(errors)
    return EXIT_SILENT if errors else 0


def _story(args: argparse.Namespace, screen: Screen) -> Story:
    with open_run(args) as opened, screen.progress() as progress:
        return opened.story(metrics=args.metrics, on_event=progress.show)


def show_events(args: argparse.Namespace, screen: Screen) -> int:
    """Print what happened in a run; 3 where a node did not answer."""
    story = _story(args, screen)
    if args.json:
        document = {"schema": SCHEMA, "run": story.run, "moments": plain(story.moments)}
        print(json.dumps(document, indent=1))
    else:
        show_moments(screen, story.moments)
    screen.show_errors(story.errors)
    return EXIT_SILENT if story.errors else 0
