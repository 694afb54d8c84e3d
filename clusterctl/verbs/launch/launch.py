"""Launch a job: check, sync, plan, start the master, then the workers, and follow the run."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import field, replace
from pathlib import Path

from clusterctl.checks.finding import Finding
from clusterctl.checks.registry import CHECKS, SSH
from clusterctl.errors import Interrupted, LargeCopy, LaunchRefused, SyncRefused, UsageError
from clusterctl.facts.software.python import ENV_INIT
from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.model.node_run import Resumed
from clusterctl.plan.make import make_plan
from clusterctl.plan.options import Options
from clusterctl.plan.plan import Plan
from clusterctl.plan.run_names import fill_job, require_name
from clusterctl.transport.pool import Pool
from clusterctl.values import dataclass
from clusterctl.verbs.events import Event, Notice
from clusterctl.verbs.launch.notice_sharing import notice_sharing
from clusterctl.verbs.launch.start_run import start_run
from clusterctl.verbs.launch.validate_job import (
    notice_batch,
    notice_job,
    notice_secrets,
    notice_words,
    require_job,
    require_script,
    require_secrets,
)
from clusterctl.verbs.preflight.check import CheckOptions, CheckResult, check, check_code
from clusterctl.verbs.preflight.needed_paths import before_sync, check_needs
from clusterctl.verbs.runs import run_id
from clusterctl.verbs.runs.proof import prove, require_key
from clusterctl.verbs.runs.records import Records, RunRecord
from clusterctl.verbs.sync.result import SyncOptions, SyncResult
from clusterctl.verbs.sync.sync import sync
from clusterctl.wire import plain

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
REACHED_ONLY = ("ssh",)
"""What is judged with --no-check: nothing can start on a node that is not reached."""
_NOT_STARTED = "interrupted; nothing was started"
_SHOWN_PATHS = 3
"""Files that the warning about changed code names."""
SYNC_ONLY = ("node.rsync",)
"""What is not judged with --no-sync: only a sync needs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """How a job is launched."""

    overrides: Options = field(default_factory=Options)
    """What the cluster has from flags, for the record: a later resume keeps it."""
    source: Path = field(default_factory=Path.cwd)
    """The folder that is synced."""
    name: str = ""
    """A name of the person's own for the run."""
    run: str = ""
    """The id that the run gets; empty: a new one."""
    check: bool = True
    sync: bool = True
    delete: bool = False
    """The sync may delete also what the command names, or most of what was placed."""
    may_copy: Callable[[LargeCopy], bool] = lambda _: False
    """Says whether the sync may copy very much."""
    force: bool = False
    """Continue in spite of checks that failed."""
    exclude_unhealthy: bool = False
    """Leave out the nodes on which a check failed."""
    resumed: Resumed | None = None
    """`run` and `checkpoint` that it resumes, and that run's `tree` and `commit`."""

    def __post_init__(self) -> None:
        """Refuse a name that no file could have.

        Raises:
            UsageError: it is one.
        """
        if self.name and not _NAME.fullmatch(self.name):
            expected = "letters, digits, '.', '_', '-'"
            raise UsageError(f"--name: expected {expected}, found {self.name!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked(Event):
    """The nodes were judged."""

    kind = "check"

    verdict: CheckResult
    after_sync: bool = False
    """The job's own check was run on what was synced; the verdict has all earlier findings, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced(Event):
    """The code is on every node."""

    kind = "sync"

    synced: SyncResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned(Event):
    """What is about to be started."""

    kind = "plan"

    plan: Plan


def prepare(
    cluster: Cluster, pool: Pool, options: LaunchOptions
) -> Generator[Event, None, tuple[Cluster, Plan, CheckResult]]:
    """Judge the nodes and make the plan; nothing is changed anywhere.

    Args:
        cluster: the nodes and the job, as they are to be launched (`effective`).
        pool: the connections to the nodes.
        options: how it is to be launched.

    Returns:
        The nodes that take part and the job, what would be started on them, and the verdict.

    Raises:
        LaunchRefused: too little is known of a node.
        UsageError: the job or the options cannot be launched.
    """
    require_job(cluster)
    require_name(cluster.job, options.name)
    if options.sync and not options.force:
        require_script(cluster, options.source)
    yield from notice_job(cluster.job)
    yield from notice_secrets(cluster)
    yield from notice_batch(cluster, options.source)
    # Without a sync, the nodes may have other scripts than this folder.
    force = options.force or not options.sync
    yield from notice_words(cluster, options.source, force=force)
    run = options.run or run_id.make_run_id(cluster.name)
    # The record keeps the job as it was written: a resume fills in its own id.
    written = cluster.job
    own = replace(cluster, job=fill_job(written, run, options.name))
    own, verdict = yield from _judge(own, pool, options)
    cluster = replace(own, job=written)
    # Nothing can be planned for a node that is not reached.
    _refuse([finding for finding in verdict.blocking if finding.check == SSH], verdict)
    resumes = options.resumed is not None
    yield from notice_sharing(pool, own, written, run, resumes=resumes)
    plan = make_plan(
        cluster,
        verdict.facts,
        verdict.network,
        run=run,
        name=options.name,
        controller=socket.gethostname(),
    )
    return cluster, plan, verdict


def launch(
    cluster: Cluster, pool: Pool, records: Records, options: LaunchOptions
) -> Generator[Event, None, tuple[Plan, RunRecord]]:
    """Bring a run up on every node; following it is the next step.

    Args:
        cluster: the nodes and the job, as they are to be launched (`effective`).
        pool: the connections to the nodes.
        records: where the run is remembered.
        options: how it is launched.

    Yields:
        `Checked`, `Synced`, `Planned`, `Started`, `Notice`, `Progress`.

    Returns:
        The plan, and the record, whose cluster has the nodes that take part.

    Raises:
        LaunchRefused: it was not started, or was ended again, and why.
        Interrupted: the person ended it before it was up.
        UsageError: the job or the options cannot be launched.
    """
    try:
        plan, record = yield from _make_ready(cluster, pool, records, options)
    except KeyboardInterrupt:
        raise Interrupted(_NOT_STARTED) from None
    try:
        yield from _start(pool, records, record, plan, force=options.force)
    except BaseException as error:
        end = {"state": "failed", "exit_code": LaunchRefused.exit_code, "ended_by": "controller"}
        if isinstance(error, LaunchRefused | Interrupted):
            end |= {"exit_code": error.exit_code, "ended_by": error.by}
        if isinstance(error, Interrupted | KeyboardInterrupt):
            end["state"] = "stopped"
        records.write_end(record, {**end, "run": plan.run, "message": str(error)})
        raise
    return plan, record


def _start(
    pool: Pool, records: Records, record: RunRecord, plan: Plan, *, force: bool
) -> Generator[Event, None, None]:
    """Show the plan, and start it."""
    try:
        # It prints the run's name: from then on `clusterctl stop` knows it.
        yield Planned(plan=plan)
        launched = prove(record, plan, records.root)
    except KeyboardInterrupt:
        raise Interrupted(_NOT_STARTED) from None
    yield from start_run(
        pool,
        record.cluster,
        plan,
        os.environ,
        record.resumed,
        launched=launched,
        tree=record.tree,
        force=force,
    )


def _make_ready(
    cluster: Cluster, pool: Pool, records: Records, options: LaunchOptions
) -> Generator[Event, None, tuple[Plan, RunRecord]]:
    """Do all that comes before the start: judge, sync, plan, and keep what was planned."""
    require_secrets(cluster)
    require_key(records.root)  # before any node is asked
    cluster, plan, verdict = yield from prepare(cluster, pool, options)
    _stop_if_blocked(verdict, options)
    synced = None
    if options.sync:
        synced = yield from _sync(cluster, pool, options)
        if options.check:
            verdict = yield from check_needs(cluster, pool, verdict)
            _stop_if_blocked(verdict, options)
        if options.check and cluster.job.check:
            own = replace(cluster, job=fill_job(cluster.job, plan.run, plan.name))
            verdict = yield from check_code(own, pool, verdict)
            yield Checked(verdict=verdict, after_sync=True)
            _stop_if_blocked(verdict, options)
    record = RunRecord(
        run=plan.run,
        began=time.time(),
        cluster=cluster,
        source=str(options.source),
        tree=synced.tree if synced else "",
        commit=(synced.commit or "") if synced else "",
        dirty=synced.dirty if synced else False,
        plan=plain(plan),
        findings=tuple(plain(finding) for finding in verdict.findings if finding.status != "pass"),
        options={"name": options.name, **plain(replace(options.overrides, origins={}))},
        resumed=options.resumed,
    )
    records.write(record, diff=synced.diff if synced else "", facts=verdict.facts)
    return plan, record


def _judge(
    cluster: Cluster, pool: Pool, options: LaunchOptions
) -> Generator[Event, None, tuple[Cluster, CheckResult]]:
    """Check; with `exclude_unhealthy`, leave out nodes and check the others again."""
    check_options = CheckOptions(
        only=() if options.check else REACHED_ONLY,
        skip=() if options.sync else SYNC_ONLY,
        code=not options.sync,
        source=options.source if options.sync else None,
    )
    without_synced = before_sync if options.sync else replace
    verdict = yield from check(without_synced(cluster), pool, check_options)
    unhealthy = {name for finding in verdict.blocking for name in finding.nodes}
    if options.exclude_unhealthy and unhealthy:
        healthy = tuple(node for node in cluster.nodes if node.name not in unhealthy)
        for finding in verdict.blocking:
            text = f"left out: {', '.join(finding.nodes)}: {finding.message}"
            yield Notice(text=text, level="warning")
        if not healthy:
            hint = "clusterctl check"
            raise LaunchRefused("no healthy node is left", hint=hint, by="check")
        cluster = cluster.with_nodes(healthy)
        verdict = yield from check(without_synced(cluster), pool, check_options)
    yield Checked(verdict=verdict)
    return cluster, verdict


def _stop_if_blocked(verdict: CheckResult, options: LaunchOptions) -> None:
    """Stop if a check that the run depends on failed, or could not look, unless it is forced."""
    if not options.force:
        _refuse(verdict.blocking, verdict)


def _refuse(findings: Sequence[Finding], verdict: CheckResult) -> None:
    """Refuse the launch if there are findings.

    Raises:
        LaunchRefused: there are.
    """
    if findings:
        # One line each: the verdict was shown before.
        nodes: dict[str, list[str]] = {}
        for each in findings:
            nodes.setdefault(f"{each.message} ({each.check})", []).extend(each.nodes)
        lines = [f"{fold_hosts(dict.fromkeys(names))}: {text}" for text, names in nodes.items()]
        hints = [f"clusterctl check --explain {findings[0].check}"]
        final = [each for each in findings if each.status == "fail" and _is_final(each)]
        if final:
            hints = list(dict.fromkeys(each.remedy for each in final))
            bad = {name for each in verdict.blocking for name in each.nodes}
            if any(row.name not in bad for row in verdict.nodes):
                hints.append("launch on the other nodes: --exclude-unhealthy")
        else:
            hints.append("launch anyway: --force")
        hint = "\n".join(hints)
        raise LaunchRefused("not launched: " + "\n".join(lines), hint=hint, by="check")


def _is_final(failed: Finding) -> bool:
    """Tell whether `--force` does not help: the node would refuse the start for the same reason."""
    return CHECKS[failed.check].final or failed.found.startswith(ENV_INIT)


def _sync(
    cluster: Cluster, pool: Pool, options: LaunchOptions
) -> Generator[Event, None, SyncResult | None]:
    """Mirror the code, and say where it is not what the resumed run had."""
    if not any(node.workdir for node in cluster.nodes):
        text = "no workdir in the inventory: no code is synced, the job starts in the home folder"
        yield Notice(text=text, level="warning")
        return None
    sync_options = SyncOptions(
        delete=options.delete,
        command=cluster.job.command,
        launching=True,
        may_copy=options.may_copy,
    )
    try:
        synced = yield from sync(cluster, pool, options.source, sync_options)
    except SyncRefused as error:
        raise LaunchRefused(str(error), hint=error.hint, by="sync") from error
    yield Synced(synced=synced)
    if not synced.ok:
        failed = [f"{node.node}: {node.words}" for node in synced.nodes if not node.ok]
        hint = next((node.hint for node in synced.nodes if node.hint), None)
        message = "the code is not on every node:\n" + "\n".join(failed)
        raise LaunchRefused(message, hint=hint, by="sync")
    before = options.resumed and options.resumed.tree
    if before and before != synced.tree:
        then = options.resumed and options.resumed.commit
        now = f"{synced.commit or 'no commit'}{' with changes' if synced.dirty else ''} now"
        commits = f"{then or 'no commit'} then, {now}"
        known = f": {commits}" if then or synced.commit else ""
        text = f"the code differs from that of the run{known}{_synced_now(synced)}"
        yield Notice(text=text, level="warning")
    return synced


def _synced_now(synced: SyncResult) -> str:
    """Return which files differed on the nodes until now: ` (just synced: hosts.yaml)`."""
    changed = [(*node.sent_paths, *node.deleted_paths) for node in synced.nodes]
    shown = [*dict.fromkeys(path for paths in changed for path in paths)][:_SHOWN_PATHS]
    if not shown:
        return ""
    most = max(node.sent + node.deleted for node in synced.nodes)
    more = ", …" if most > len(shown) else ""
    return f" (just synced: {', '.join(shown)}{more})"
