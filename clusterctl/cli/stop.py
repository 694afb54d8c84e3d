"""`clusterctl stop`: stop exactly this run, or all of the cluster's, and prove it gone."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from clusterctl.cli.numbers import seconds
from clusterctl.cli.run_option import OpenRun, add_run, known_cluster, open_run
from clusterctl.errors import UsageError
from clusterctl.report.console import Screen
from clusterctl.report.stop import show_stop
from clusterctl.transport.pool import Pool
from clusterctl.verbs import locate
from clusterctl.verbs.answers import Trouble
from clusterctl.verbs.events import Said
from clusterctl.verbs.records import Records
from clusterctl.verbs.runview import RunView
from clusterctl.verbs.stop import UNPROVEN, stop
from clusterctl.wire import SCHEMA, plain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run(parser)
    parser.add_argument("--grace", type=seconds, metavar="S", help="seconds until KILL")
    parser.add_argument("--all", action="store_true", help="every live run of the cluster")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Stop; 0 proven gone, 1 something is left, 3 not proven on some node."""
    if args.all and args.run:
        raise UsageError("wanted either RUN or --all, found both")
    screen = Screen()
    results = []
    with _meant(args) as (opened, silent):
        for one in opened:
            plan = one.record.plan if one.record else None
            stopping = stop(one.pool, one.run, one.cluster, grace=args.grace, plan=plan)
            results.append(screen.watch(stopping))
    for result in results:
        if not args.json:
            show_stop(screen.out, result)
    if args.json:
        print(
            json.dumps(
                {"schema": SCHEMA, "runs": plain(results), "silent": [one.node for one in silent]}
            )
        )
    for trouble in silent:
        text = f"{trouble.message}: whether a run lives there is not known"
        screen.say(Said(node=trouble.node, text=text, level="warning"))
    codes = {result.exit_code for result in results} | ({UNPROVEN} if silent else set())
    return next((code for code in (1, UNPROVEN) if code in codes), 0)


@contextmanager
def _meant(args: argparse.Namespace) -> Iterator[tuple[list[OpenRun], tuple[Trouble, ...]]]:
    """Open the runs to stop; with the nodes that could not be asked for theirs."""
    if not args.all:
        with open_run(args) as one:
            yield [one], ()
        return
    records = Records()
    with Pool(known_cluster(args, records)) as pool:
        found = locate.discover(pool)
        live = [_open(view, pool, records) for view in found.runs if view.live]
        yield live, found.troubles


def _open(view: RunView, pool: Pool, records: Records) -> OpenRun:
    """Return a run with the nodes that have a part of it or may get one, and its job."""
    record = records.read(pool.cluster.name, view.run)
    parts = {answer.node.name for answer in view.nodes if answer.part}
    silent = {answer.node.name for answer in view.nodes if answer.failure}
    planned = {node.name for node in record.cluster.nodes} if record else set()
    wanted = parts | (planned - silent)
    nodes = tuple(node for node in pool.cluster.nodes if node.name in wanted)
    job = record.cluster.job if record else pool.cluster.job
    cluster = replace(pool.cluster.with_nodes(nodes), job=job)
    return OpenRun(run=view.run, cluster=cluster, pool=pool, record=record)
