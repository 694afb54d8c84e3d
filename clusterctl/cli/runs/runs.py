"""`clusterctl runs`: list the runs of a cluster, show one, compare some, or delete old ones."""

import argparse
import difflib
import json
import shlex
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path

from clusterctl.api.session import Session
from clusterctl.cli.shared.agree import can_ask, says_yes
from clusterctl.cli.shared.batch import batch_of, list_batches, view_of_batch
from clusterctl.cli.shared.hint_commands import with_flag
from clusterctl.cli.shared.options import add_json, whole
from clusterctl.cli.shared.run_option import (
    EXIT_SILENT,
    add_run,
    known_cluster,
    open_run,
    own_cluster,
    run_name,
)
from clusterctl.errors import UsageError
from clusterctl.report.console import Screen
from clusterctl.report.runs import show_prunable, show_pruned, show_run, show_runs
from clusterctl.verbs.events import Notice, Progress
from clusterctl.verbs.runs.list_runs import RunFilter
from clusterctl.verbs.runs.one_run import OneRun, one_run
from clusterctl.verbs.runs.prune import KEPT
from clusterctl.verbs.runs.records import Records

EXIT_KEPT = 1
SHOW, COMPARE, DELETE = "show", "compare", "delete"
LISTING = ("discover", "since", "name", "nodes", "failed")
"""Flags of the list alone."""
FLAGS: dict[str, tuple[str, ...]] = {
    SHOW: ("events",),
    COMPARE: ("report", "metrics"),
    DELETE: (),
}
"""Flags of an action alone."""
LEAST = {COMPARE: 2, DELETE: 1}
"""How many runs an action needs to be named."""
LIST = frozenset({"all", "list", "ls"})
"""Words for the list itself."""
MEANT = {"rm": DELETE, "remove": DELETE, "del": DELETE, "diff": COMPARE}
"""Other words for an action."""
METRICS_HELP = (
    "the training's file of metrics, a JSON object a line, from the workdir (default:"
    " metrics.jsonl in the folder of the checkpoints, else in out; without it,"
    " trainer_state.json and what the run printed)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add(
        "action",
        nargs="?",
        metavar="ACTION",
        help=f"{SHOW}: show one run in full instead of the list; {COMPARE}: show what differs"
        f" between runs, and how fast each was; {DELETE}: delete logs and records of ended runs",
    )
    add_run(parser)
    add("others", nargs="*", type=run_name, metavar="RUN", help="further runs")
    add("--events", action="store_true", help=f"with {SHOW}: what happened, when, and by whom")
    add("--metrics", metavar="PATH", help=f"with {COMPARE}: {METRICS_HELP}")
    add("--report", type=Path, metavar="FILE", help=f"with {COMPARE}: also write it as .html")
    add("--since", metavar="T", help="only runs since then: 90s, 2h, 1d, yesterday, or an ISO time")
    add("--name", metavar="NAME", help="only runs with this in their name")
    add(
        "--nodes",
        "--node",
        dest="nodes",
        metavar="SPEC",
        help="only runs on one of these nodes: names and ranges",
    )
    add("--failed", action="store_true", help="only runs that failed, were lost or were refused")
    add(
        "--discover",
        action="store_true",
        help="rebuild this machine's records from what the nodes know",
    )
    add(
        "--prune",
        type=whole(0),
        nargs="?",
        const=KEPT,
        metavar="N",
        help="delete logs and records of all but the newest N ended runs, those with a name and"
        f" those of the last day (default: {KEPT}); it asks first",
    )
    add("--all", action="store_true", help="with --prune: named and recent runs, too")
    add("-y", "--yes", action="store_true", help=f"with --prune and {DELETE}: do not ask")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """List, show or prune; 3 where a node did not answer."""
    _require_one_wish(args)
    screen = Screen()
    if args.action:
        return _act(args, screen)
    cluster = known_cluster(args, Records())
    listed = list_batches(cluster) if args.prune is None else None
    if listed is None:
        with Session(cluster, fanout=args.fanout) as session:
            if args.prune is not None:
                return _prune(args, session, screen, keep=args.prune)
            with _asking(screen, session):
                listed = session.runs(discover=args.discover)
    wanted = RunFilter(since=args.since, name=args.name, nodes=args.nodes, failed=args.failed)
    picked = wanted.pick(listed)
    if args.json:
        print(json.dumps(picked.document(), indent=1))
    elif picked.runs or not listed.runs:
        show_runs(screen, picked, refused=args.failed)
    else:
        screen.say(Notice(text=f"none of the {len(listed)} runs matches"))
    verified = {one.run for one in listed.runs if one.verified} if listed.rebuilt else set()
    for name in listed.rebuilt:
        proof = "" if name in verified else ", unverified: this machine did not launch it"
        screen.say(Notice(text=f"{name}: record rebuilt from the nodes{proof}"))
    screen.show_errors(listed.errors)
    return EXIT_SILENT if listed.errors else 0


@contextmanager
def _asking(screen: Screen, session: Session) -> Iterator[None]:
    """Say on a terminal that the nodes are asked."""
    with screen.progress() as progress:
        names = (node.name for node in session.cluster.nodes)
        progress.show(Progress.of_nodes("runs", names, ()))
        yield


def _require_one_wish(args: argparse.Namespace) -> None:
    """Refuse words and flags of which one makes the other pointless."""
    if args.action not in {None, *FLAGS}:
        word = shlex.quote(args.action)
        near = difflib.get_close_matches(MEANT.get(args.action, args.action), FLAGS, n=1)
        runs = tuple(filter(None, (args.run, *args.others)))
        meant = (*near, *runs) if near else (SHOW, args.action)
        if args.action in LIST or (near and len(runs) < LEAST.get(near[0], 0)):
            meant = ()  # the list has them
        raise UsageError(
            f"expected `{SHOW} RUN`, `{COMPARE} RUN RUN`, `{DELETE} RUN` or nothing, found {word}",
            hint=shlex.join(("clusterctl", "runs", *meant)),
        )
    _require_own_flags(args)
    given = [f"--{name}" for name in LISTING if getattr(args, name) not in {None, False}]
    if args.prune is not None:
        given.insert(0, "--prune")
    if args.action and given:
        raise UsageError(
            f"expected {args.action} or {given[0]}, found both",
            hint=shlex.join(
                ("clusterctl", "runs", args.action, *filter(None, (args.run, *args.others)))
            ),
        )
    if args.prune is not None and len(given) > 1:
        raise UsageError(
            f"expected either {given[1]} or --prune, found both",
            hint="`runs delete` takes the runs to delete, and `runs` lists them:"
            f" clusterctl runs{_listing(args)}",
        )
    deletes = args.prune is not None or args.action == DELETE
    if (args.all and args.prune is None) or (args.yes and not deletes):
        flag = "--all" if args.all else "--yes"
        raise UsageError(f"{flag}: expected it with --prune")


def _listing(args: argparse.Namespace) -> str:
    """Return the flags of the list that were typed."""
    given = {f"--{name}": getattr(args, name) for name in LISTING}
    words = [
        flag if value is True else f"{flag} {shlex.quote(str(value))}"
        for flag, value in given.items()
        if value not in {None, False}
    ]
    return "".join(f" {each}" for each in words)


def _require_own_flags(args: argparse.Namespace) -> None:
    """Refuse flags and words of another action."""
    if args.action == COMPARE and not args.others:
        found = f"found {'one' if args.run else 'none'}"
        raise UsageError(f"{COMPARE}: expected two runs or more, {found}", hint="clusterctl runs")
    if args.action == DELETE and not args.run:
        raise UsageError(f"{DELETE}: expected a run, found none", hint="clusterctl runs")
    if args.action not in LEAST and args.others:
        typed = shlex.join(("clusterctl", "runs", COMPARE, args.run, *args.others))
        raise UsageError(f"expected one run, found {1 + len(args.others)}", hint=typed)
    for action, flags in FLAGS.items():
        for flag in flags:
            if args.action != action and getattr(args, flag):
                raise UsageError(f"--{flag}: expected it with `{action}`")


def _act(args: argparse.Namespace, screen: Screen) -> int:
    if args.action == SHOW and not args.events:
        return _show(args, screen)
    if args.action == DELETE:
        return _delete(args, screen)
    from clusterctl.cli.runs import compare  # noqa: PLC0415  (imports much)

    return compare.show_events(args, screen) if args.events else compare.compare(args, screen)


def _show(args: argparse.Namespace, screen: Screen) -> int:
    records = Records()
    found = batch_of(args)
    if found:
        view = view_of_batch(*found)
        shown = one_run(view, records.with_id(view.run), records)
    else:
        with open_run(args) as opened, screen.progress() as progress:
            shown = one_run(opened.status(on_event=progress.show), opened.record, records)
    _print_one(args, screen, shown)
    return EXIT_SILENT if shown.status.silent else 0


def _print_one(args: argparse.Namespace, screen: Screen, shown: OneRun) -> None:
    if args.json:
        print(json.dumps(shown.document(), indent=1))
    else:
        show_run(screen, shown)


def _delete(args: argparse.Namespace, screen: Screen) -> int:
    """Delete the runs that are named.

    Raises:
        UsageError: this machine has no record of one, or it is of another cluster.
    """
    records = Records()
    cluster = known_cluster(args, records)
    only, names = set[str](), set[str]()
    for word in (args.run, *args.others):
        run = records.resolve(word, part=False, prefer=own_cluster(args))
        if run is None:
            raise UsageError(
                f"{DELETE}: no run is called {shlex.quote(word)}", hint="clusterctl runs"
            )
        only.add(run)
        record = records.with_id(run)
        if record is not None and record.cluster.name != cluster.name:
            there = f"cd {shlex.quote(record.source)}, then the same command"
            found = f"found {run} of {record.cluster.name}"
            raise UsageError(
                f"{DELETE}: expected a run of {cluster.name}, {found}",
                hint=there
                if record.source
                else "-i HOSTS.yaml, with the inventory of that cluster",
            )
        names |= {node.name for node in record.cluster.nodes} if record else set()
    # Whether another node answers does not matter.
    asked = tuple(node for node in cluster.nodes if node.name in names)
    cluster = cluster.with_nodes(asked) if asked else cluster
    with Session(cluster, fanout=args.fanout) as session:
        return _prune(args, session, screen, keep=0, only=only)


def _prune(
    args: argparse.Namespace,
    session: Session,
    screen: Screen,
    *,
    keep: int,
    only: AbstractSet[str] | None = None,
) -> int:
    """Show what would be deleted, and delete it if the person wants that."""
    with _asking(screen, session):
        plan = session.prunable(keep=keep, every=args.all or only is not None, only=only)
    if plan.runs and not args.yes:
        count = show_prunable(screen, plan)
        if not can_ask():
            typed = shlex.join(("clusterctl", *with_flag(args.words, "--yes", ())))
            raise UsageError(
                f"{count} would be deleted: expected --yes, or a terminal to ask on",
                hint=typed,
            )
        if not says_yes(f"Delete {count} with logs and records, here and on the nodes?"):
            screen.say(Notice(text="nothing is deleted"))
            return 0
    with _asking(screen, session):
        pruned = session.prune(keep=keep, plan=plan)
    if args.json:
        print(json.dumps(pruned.document(), indent=1))
    else:
        show_pruned(screen, pruned, keep=keep)
    screen.show_errors(pruned.errors)
    if pruned.errors:
        return EXIT_SILENT
    return 0 if only is None or only <= set(pruned.removed) else EXIT_KEPT
