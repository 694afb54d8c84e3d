"""`clusterctl logs`: the merged logs of a run, live or as they are; to read or to collect."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clusterctl.cli.numbers import whole
from clusterctl.cli.run_option import EXIT_SILENT, add_run, open_run
from clusterctl.errors import Interrupted, UsageError
from clusterctl.inventory.select import named
from clusterctl.logs.filter import Filter
from clusterctl.logs.fold import Folder, LastLines, Shower, Straight
from clusterctl.report.console import Screen
from clusterctl.report.follow import Shown
from clusterctl.report.lines import JsonLines, LinePrinter, Prefixed, Raw, Timestamped
from clusterctl.transport.pool import Pool
from clusterctl.verbs import logs
from clusterctl.verbs.answers import Trouble
from clusterctl.verbs.events import drive
from clusterctl.verbs.follow import Lines, follow
from clusterctl.verbs.runlog import RunLog


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run(parser)
    add = parser.add_argument
    add("-f", "--follow", action="store_true", help="go on until the run is over")
    add("--node", metavar="SPEC", help="only these nodes: names and ranges")
    add("--rank", metavar="RANKS", help="only these ranks, as 0-3,7")
    add("-n", "--tail", type=whole(0), metavar="N", help="only the last N lines; -f goes on")
    add("--since", metavar="T", help="only lines since then: 90s, 10m, 2h, 1d, or an ISO time")
    add("--grep", metavar="RE", help="only lines that match")
    add("--timestamps", action="store_true", help="begin each line with its time, in UTC")
    add("--raw", action="store_true", help="each line as it was: unfolded, without a prefix")
    add("--collect", type=Path, metavar="DIR", help="copy the logs to DIR/NODE/ instead")
    add("--json", action="store_true", help="one JSON object a line")


def run(args: argparse.Namespace) -> int:
    """Print; 3 where a node's logs could not be read."""
    if args.collect:
        _require_whole(args)
    wanted = logs.parse_filter(
        ranks_text=args.rank, since=args.since, pattern=args.grep, now=time.time()
    )
    shown = Shown(screen=Screen(), lines=_printer(args))
    with open_run(args) as opened, _left_in_words(opened.run, follows=args.follow):
        log = RunLog(opened.run, opened.cluster, judged=False)
        if wanted.ranks is not None:
            from clusterctl.verbs.status import answers  # noqa: PLC0415  (imports much)

            logs.require_ranks(wanted, drive(answers(opened.pool, opened.run, opened.cluster)))
        only = None
        if args.node is not None:
            chosen = named(opened.cluster, args.node, option="--node")
            only = frozenset(node.name for node in chosen)
        pool = opened.pool
        troubles: dict[str, Trouble] = {}
        if args.collect:
            troubles = drive(logs.collect(pool, log, args.collect, only=only), shown.show)
        elif args.tail is not None or not args.follow:
            log.goes_on = args.follow
            troubles = _read(args, pool, log, wanted, shown, only)
            log.go_on()
        if args.follow:
            lines = Lines(wanted, _shower(args), uncut=_prints_bytes(args))
            following = follow(pool, log, lines, only=only)
            troubles = drive(following, shown.show).troubles
    shown.tell(troubles)
    return EXIT_SILENT if troubles else 0


def _read(
    args: argparse.Namespace,
    pool: Pool,
    log: RunLog,
    wanted: Filter,
    shown: Shown,
    only: frozenset[str] | None,
) -> dict[str, Trouble]:
    """Show what there is, with `--tail` the last of it."""
    shower, last = _shower(args), 0
    uncut = _prints_bytes(args) and args.tail is None
    if args.tail is not None:
        shower, last = LastLines(shower, args.tail), logs.lines_of(args.tail, wanted)
    reading = logs.read(pool, log, wanted=wanted, shower=shower, uncut=uncut, only=only, tail=last)
    return drive(reading, shown.show)


def _prints_bytes(args: argparse.Namespace) -> bool:
    return bool(args.raw and not args.json)


def _shower(args: argparse.Namespace) -> Shower:
    return Straight() if args.raw or args.json else Folder()


@contextmanager
def _left_in_words(run: str, *, follows: bool) -> Iterator[None]:
    """Tell what Ctrl-C means while a run is followed: nothing for the run.

    Raises:
        Interrupted: it was pressed.
    """
    try:
        yield
    except KeyboardInterrupt:
        if not follows:
            raise
        raise Interrupted(f"\nstopped following; {run} goes on") from None


def _require_whole(args: argparse.Namespace) -> None:
    """Refuse to collect a part of the logs: their files are copied as they are now, and whole.

    Raises:
        UsageError: a flag asks for less, or for more.
    """
    unfit = ("follow", "tail", "rank", "since", "grep")
    values = {name: getattr(args, name) for name in unfit}
    given = [f"--{n}" for n, value in values.items() if value is not None and value is not False]
    if given:
        raise UsageError(
            f"--collect copies whole files: wanted it without {', '.join(given)}",
            hint="--node picks the nodes whose logs are copied",
        )


def _printer(args: argparse.Namespace) -> LinePrinter:
    if args.json:
        return JsonLines(sys.stdout)
    if args.raw:
        return Raw(sys.stdout)
    return (Timestamped if args.timestamps else Prefixed)(sys.stdout)
