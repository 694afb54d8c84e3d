"""`clusterctl logs`: the merged logs of a run, live or as they are; to read or to collect."""

import argparse
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from clusterctl.cli.shared.batch import batch_of, print_batch
from clusterctl.cli.shared.options import whole
from clusterctl.cli.shared.run_option import EXIT_SILENT, add_run, open_run, own_cluster
from clusterctl.errors import ClusterError, CouldNotTell, Interrupted, UsageError
from clusterctl.logs.deduplicate import LineDeduplicator, PassThrough
from clusterctl.report.console import Screen
from clusterctl.report.follow import EventPrinter
from clusterctl.report.lines import JsonLines, LinePrinter, Prefixed, Raw, Timestamped, day_and_time
from clusterctl.verbs.batch.job import BatchJob
from clusterctl.verbs.batch.slurm import SlurmState
from clusterctl.verbs.events import Notice
from clusterctl.verbs.follow import LogLines
from clusterctl.verbs.logs import LogQuery
from clusterctl.verbs.runs.history import chain_of
from clusterctl.verbs.runs.records import Records


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run(parser)
    add = parser.add_argument
    add("--chain", action="store_true", help="the runs that it resumes and its resumes, too")
    add("-f", "--follow", action="store_true", help="follow until the run is over")
    add("--nodes", "--node", dest="node", metavar="SPEC", help="only these nodes: names and ranges")
    add("--rank", metavar="RANKS", help="only these ranks, such as 0-3,7")
    add(
        "-n",
        "--tail",
        type=whole(0),
        metavar="N",
        help="only the last N lines; with -f, then follow",
    )
    add(
        "--since", metavar="T", help="only lines since then: 90s, 2h, 1d, yesterday, or an ISO time"
    )
    add("--grep", metavar="RE", help="only lines that match")
    add("--timestamps", action="store_true", help="begin each line with its time, in UTC")
    add(
        "--raw", action="store_true", help="print lines as they were written: no prefix, not folded"
    )
    add("--collect", type=Path, metavar="DIR", help="copy the logs to DIR/NODE/ instead")
    add("--json", action="store_true", help="print one JSON object per line")


def run(args: argparse.Namespace) -> int:
    """Print; 3 where a node's logs could not be read."""
    if args.collect:
        _require_whole(args)
    return _of_chain(args) if args.chain else _of_run(args)


def _of_chain(args: argparse.Namespace) -> int:
    """Print the logs of a run's chain, the oldest first; the newest is the one that is followed."""
    if args.tail is not None:
        raise UsageError(
            "--tail counts the lines of one run: expected it without --chain",
            hint=shlex.join(("clusterctl", *(word for word in args.words if word != "--chain"))),
        )
    records = Records()
    runs = _chain(args, records)
    codes, refused = [], None
    for run in runs:
        last = run == runs[-1]
        record = records.with_id(run)
        begun = f", began {day_and_time(record.began)}" if record else ""
        Screen().say(Notice(text=f"--- {run}{begun} ---"))
        one = {**vars(args), "run": run, "follow": args.follow and last}
        if args.collect:
            one["collect"] = args.collect / run
        try:
            codes.append(_of_run(argparse.Namespace(**one)))
        except Interrupted:
            raise
        except ClusterError as error:  # it may be deleted, or have no such node or rank
            refused = error
            codes += [EXIT_SILENT] if isinstance(error, CouldNotTell) else []
            Screen().say(Notice(text=f"{run}: {error}", level="warning"))
    if refused is not None and not codes:
        raise refused
    return max(codes)


def _chain(args: argparse.Namespace, records: Records) -> tuple[str, ...]:
    """Return the ids of the chain; raise ClusterError if the run has no record here."""
    found = batch_of(args)
    run = found[0].run if found else None
    if not found and args.run:
        run = records.resolve(args.run, prefer=own_cluster(args))
    if run is None:
        with open_run(args) as opened:
            run = opened.id
    record = records.with_id(run)
    if record is None:
        raise ClusterError(
            f"{run} has no record on this machine, so what it resumes is not known",
            hint="clusterctl runs --discover",
        )
    return chain_of(record, records)


def _of_run(args: argparse.Namespace) -> int:
    found = batch_of(args)
    if found:
        return _of_batch(args, *found)
    shown = EventPrinter(screen=Screen(), lines=_printer(args))
    with open_run(args) as opened, _left_in_words(opened.id, follows=args.follow):
        if args.collect:
            errors = opened.collect(args.collect, node=args.node, on_event=shown.show)
        else:
            query = LogQuery(
                follow=args.follow,
                node=args.node,
                rank=args.rank,
                tail=args.tail,
                since=args.since,
                grep=args.grep,
                sink=PassThrough if args.raw or args.json else LineDeduplicator,
                uncut=args.raw and not args.json,
            )
            errors, printed = {}, False
            # Not public: how lines are shown.
            with closing(opened._log_events(query, errors)) as events:  # noqa: SLF001
                for event in events:
                    printed = printed or isinstance(event, LogLines)
                    shown.show(event)
            if not (printed or args.json or args.follow or errors):
                asked = (args.grep, args.rank, args.node, args.since)
                text = "no line matches" if any(asked) else "nothing has been printed yet"
                hint = _of_clocks(args.run) if args.since else ""
                shown.screen.say(Notice(text=text, hint=hint))
    shown.screen.show_errors(errors.values())
    return EXIT_SILENT if errors else 0


def _of_clocks(run: str | None) -> str:
    """Say by which clock `--since` goes: lines have the times of the run's master."""
    here = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    newest = shlex.join(["clusterctl", "logs", *([run] if run else []), "--timestamps", "--tail=1"])
    return f"{newest} shows when the last line was printed; this machine's clock is at {here}"


def _of_batch(args: argparse.Namespace, batch: BatchJob, state: SlurmState) -> int:
    """Print what was kept of a batch job whose nodes cannot be asked."""
    unfit = ("collect", "node", "rank", "since", "timestamps", "json")
    given = [f"--{name}" for name in unfit if getattr(args, name)]
    if given:
        raise UsageError(
            f"{', '.join(given)}: only the nodes have that, and Slurm job {batch.job} has ended"
            if state.phase == "ended"
            else f"{', '.join(given)}: the job has not started on its nodes: {state.words}",
            hint=f"clusterctl logs {batch.run}",
        )
    if args.follow and state.phase != "ended":
        from clusterctl.cli.shared.submit import follow_batch  # noqa: PLC0415  (it imports rich)

        with _left_in_words(batch.run, follows=True):
            return follow_batch(batch, asks=False)
    print_batch(batch, tail=args.tail, grep=args.grep)
    return 0


@contextmanager
def _left_in_words(run: str, *, follows: bool) -> Iterator[None]:
    """Tell what Ctrl-C means while a run is followed: nothing for the run."""
    try:
        yield
    except KeyboardInterrupt:
        if not follows:
            raise
        raise Interrupted(f"\nstopped following; {run} keeps running") from None


def _require_whole(args: argparse.Namespace) -> None:
    """Refuse to collect a part of the logs: their files are copied as they are now, and whole."""
    unfit = ("follow", "tail", "rank", "since", "grep")
    values = {name: getattr(args, name) for name in unfit}
    given = [f"--{n}" for n, value in values.items() if value is not None and value is not False]
    if given:
        raise UsageError(
            f"--collect copies whole files: expected it without {', '.join(given)}",
            hint="--node picks the nodes whose logs are copied",
        )


def _printer(args: argparse.Namespace) -> LinePrinter:
    if args.json:
        return JsonLines(sys.stdout, run=args.run if args.chain else "")
    if args.raw:
        return Raw(sys.stdout)
    return (Timestamped if args.timestamps else Prefixed)(sys.stdout)
