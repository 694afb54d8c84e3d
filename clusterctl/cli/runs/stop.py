"""`clusterctl stop`: stop one run or all, and verify that nothing is left."""

import argparse
import json
import shlex
from collections.abc import Sequence

from clusterctl.api.run import Run
from clusterctl.cli.shared.batch import batch_of, held, live_batches, stop_batch
from clusterctl.cli.shared.options import add_json, seconds
from clusterctl.cli.shared.run_option import (
    WHICH_TO_CHANGE,
    add_run,
    open_run,
    open_session,
    own_cluster,
)
from clusterctl.errors import NodeError, UsageError
from clusterctl.report.console import Progressing, Screen
from clusterctl.report.stacks.dump import show_missing
from clusterctl.report.stop import show_stop
from clusterctl.verbs.dump.dump import DumpQuery
from clusterctl.verbs.events import Notice
from clusterctl.verbs.runs.find_run import SeveralLive
from clusterctl.verbs.runs.records import Records
from clusterctl.verbs.runs.run_id import cluster_of
from clusterctl.verbs.stop import UNVERIFIED, StopResult
from clusterctl.wire import SCHEMA, plain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run(parser, WHICH_TO_CHANGE)
    parser.add_argument(
        "--grace", type=seconds, metavar="S", help="seconds until SIGKILL (default: the job's)"
    )
    parser.add_argument("--all", action="store_true", help="stop every live run of the cluster")
    parser.add_argument(
        "--dump", action="store_true", help="keep the ranks' stacks first: `clusterctl dump RUN`"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Stop; 0 stopped and verified, 1 something is left, 3 not verified on some node."""
    if args.all and args.run:
        raise UsageError(
            "expected either RUN or --all, found both",
            hint=f"clusterctl stop {shlex.quote(args.run)}\nclusterctl stop --all",
        )
    screen = Screen()
    results: list[StopResult] = []
    silent: Sequence[NodeError] = ()
    batches = live_batches(args) if args.all else ()
    if batches:
        named = (argparse.Namespace(**{**vars(args), "run": batch.run}) for batch in batches)
        results = [_stop_one(one, screen) for one in named]
    elif args.all:
        with open_session(args) as session:
            runs, silent = session.live_runs()
            for one in runs:
                with screen.progress() as progress:
                    keep_stacks(args, one, progress)
                    results.append(one.stop(grace=args.grace, on_event=progress.show))
    else:
        results.append(_stop_one(args, screen))
    for result in results:
        if not args.json:
            show_stop(screen.out, result)
    if args.json:
        print(
            json.dumps(
                {"schema": SCHEMA, "runs": plain(results), "silent": [one.node for one in silent]}
            )
        )
    for error in silent:
        text = f"{error}: whether a run lives there is not known"
        screen.say(Notice(node=error.node, text=text, level="warning"))
    codes = {result.exit_code for result in results} | ({UNVERIFIED} if silent else set())
    return next((code for code in (1, UNVERIFIED) if code in codes), 0)


def _stop_one(args: argparse.Namespace, screen: Screen) -> StopResult:
    """Stop a run on its nodes, or the batch job that has not got to them."""
    found = batch_of(args, part=False)
    if found:
        return stop_batch(*found, screen)
    _require_one(args)
    with open_run(args, part=False) as run, held(run.id), screen.progress() as progress:
        keep_stacks(args, run, progress)
        return run.stop(grace=args.grace, on_event=progress.show)


def _require_one(args: argparse.Namespace) -> None:
    """Let a name mean the one live run that has it; refuse several: of two projects, for example.

    Raises:
        SeveralLive: each is named.
    """
    records, own = Records(), own_cluster(args)
    known = records.with_part(args.run) if args.run else {}
    alike = [run for run, name in known.items() if name == args.run]
    if own:
        alike = [run for run in alike if cluster_of(run) == own]
    found = filter(None, map(records.with_id, alike if len(alike) > 1 else ()))
    unended = [record.run for record in found if records.end(record) is None]
    live = []
    for run in unended:
        with open_run(argparse.Namespace(**{**vars(args), "run": run})) as one:
            view = one.status()
        live += [view] if view.live else []
    if len(live) == 1:
        args.run = live[0].run
    elif live:
        several = SeveralLive(live)
        several.hint = "\n".join(f"clusterctl stop {view.run}" for view in live)
        raise several


def keep_stacks(args: argparse.Namespace, run: Run, progress: Progressing) -> None:
    """Keep where the ranks are, if that is wanted; what fails does not keep a run from its end."""
    if not args.dump:
        return
    result = run.dump(DumpQuery(keep=True), on_event=progress.show)
    show_missing(progress.screen, result)
