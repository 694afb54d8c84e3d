"""Launch a job: `launch` tells it step by step, and `prepare` those that change nothing."""

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from clusterctl.checks.finding import Finding
from clusterctl.checks.registry import CHECKS, QUARANTINE, SSH
from clusterctl.errors import Interrupted, LaunchRefused
from clusterctl.facts.nodefacts import to_document
from clusterctl.facts.software.python import ENV_INIT
from clusterctl.inventory.addresses import own_user
from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.plan.make import make_plan
from clusterctl.plan.plan import Plan, SharingRun
from clusterctl.plan.run_names import fill_job, require_name
from clusterctl.transport.pool import Pool
from clusterctl.values import dataclass
from clusterctl.verbs.checkpoints.stored import with_look
from clusterctl.verbs.events import Emit, Event, Notice
from clusterctl.verbs.launch.notice_job import (
    notice_batch,
    notice_folder,
    notice_job,
    notice_restarts,
    notice_secrets,
    notice_words,
    without_unused_spares,
)
from clusterctl.verbs.launch.notice_sharing import notice_sharing
from clusterctl.verbs.launch.options import LaunchOptions
from clusterctl.verbs.launch.start_run import start_run
from clusterctl.verbs.launch.sync_code import sync_code
from clusterctl.verbs.launch.tell_sharing import tell_sharing
from clusterctl.verbs.launch.validate_job import (
    require_job,
    require_runnable,
    require_script,
    require_variables,
)
from clusterctl.verbs.preflight.check import CheckOptions, CheckResult, check, check_code
from clusterctl.verbs.preflight.needed_paths import before_sync, check_needs
from clusterctl.verbs.quarantine.quarantine import left_out_notice
from clusterctl.verbs.runs import run_id
from clusterctl.verbs.runs.proof import prove, require_key
from clusterctl.verbs.runs.records import Records, RunRecord
from clusterctl.verbs.sync.result import SyncResult
from clusterctl.wire import plain

CHECKED_ANYWAY = ("ssh", QUARANTINE)
"""What is judged with --no-check: nothing can start on a node that is not reached."""
NEEDED_BY_SYNC = ("node.rsync",)
"""What is not judged with --no-sync."""
NOT_STARTED = "interrupted; nothing was started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked(Event):
    """The nodes were judged."""

    kind = "check"

    verdict: CheckResult
    after_sync: bool = False
    """The job's own check was run on what was synced; the verdict has all earlier findings, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned(Event):
    """What is about to be started."""

    kind = "plan"

    plan: Plan


def prepare(
    cluster: Cluster, pool: Pool, options: LaunchOptions, *, emit: Emit
) -> tuple[Cluster, Plan, CheckResult]:
    """Validate, check and plan; nothing is changed anywhere.

    Args:
        cluster: the nodes and the job, as they are to be launched (`effective`).
        emit: called with each event: `Checked`, `Notice`, `Progress`.

    Returns:
        The nodes that take part and the job, what would be started on them, and the verdict.

    Raises:
        LaunchRefused: too little is known of a node.
        UsageError: the job or the options cannot be launched.
    """
    for one in options.left_out:
        emit(left_out_notice(one))
    validate(cluster, options, emit=emit)
    cluster = without_unused_spares(cluster, emit=emit)
    run = options.run or run_id.make_run_id(cluster.name)
    as_written = cluster.job
    with_run = replace(cluster, job=fill_job(as_written, run, options.name))
    with_run, verdict = _check(with_run, pool, options, emit=emit)
    # The record keeps the job as it was written: a resume fills in its own id.
    cluster = replace(with_run, job=as_written)
    # Whatever is forced: nothing can be planned for a node that is not reached.
    refuse([finding for finding in verdict.blocking if finding.check == SSH], verdict)
    sharing: tuple[SharingRun, ...] = ()
    if options.force or not verdict.blocking:  # else it is refused, with the run that is there
        resumes = options.resumed is not None
        sharing = notice_sharing(pool, with_run, as_written, run, resumes=resumes, emit=emit)
    plan = make_plan(
        cluster,
        verdict.facts,
        verdict.network,
        run=run,
        name=options.name,
        controller=socket.gethostname(),
    )
    return cluster, replace(plan, sharing=sharing), verdict


def launch(
    cluster: Cluster, pool: Pool, records: Records, options: LaunchOptions, *, emit: Emit
) -> tuple[Plan, RunRecord]:
    """Bring a run up on every node; following it is the next step.

    Args:
        cluster: the nodes and the job, as they are to be launched (`effective`).
        emit: called with each event: `Checked`, `Synced`, `Planned`, `Started`, `Notice`,
            `Progress`.

    Returns:
        The plan, and the record, whose cluster has the nodes that take part.

    Raises:
        LaunchRefused: it was not started, or was ended again, and why.
        Interrupted: the person ended it before it was up.
        UsageError: the job or the options cannot be launched.
    """
    try:
        ready(cluster, records)
        cluster, plan, verdict = prepare(cluster, pool, options, emit=emit)
    except KeyboardInterrupt:
        raise Interrupted(NOT_STARTED) from None
    return begin(cluster, pool, records, plan, verdict, options, emit=emit)


def ready(cluster: Cluster, records: Records) -> None:
    """Refuse, before any node is asked, what this machine lacks for a launch.

    Raises:
        UsageError: a variable that `env_from` names is not set here.
        ClusterError: no key to sign records with can be kept.
    """
    require_variables(cluster)
    require_key(records.root)


def begin(
    cluster: Cluster,
    pool: Pool,
    records: Records,
    plan: Plan,
    verdict: CheckResult,
    options: LaunchOptions,
    *,
    emit: Emit,
) -> tuple[Plan, RunRecord]:
    """Sync and start what was prepared; arguments, result and errors as of `launch`."""
    try:
        _stop_if_blocked(verdict, options)
        synced = sync_code(cluster, pool, options, emit=emit)
        verdict = _check_synced(cluster, pool, plan, verdict, options, emit=emit)
        record = _record(cluster, plan, verdict, synced, options)
        facts = to_document(verdict.facts)
        records.write(record, diff=synced.diff if synced else "", facts=facts)
    except KeyboardInterrupt:
        raise Interrupted(NOT_STARTED) from None
    try:
        _start(pool, records, record, plan, force=options.force, emit=emit)
    except BaseException as error:
        records.write_end(record, _end_of(error, plan))
        raise
    tell_sharing(pool, cluster, plan, emit=emit)
    return plan, record


def validate(cluster: Cluster, options: LaunchOptions, *, emit: Emit) -> None:
    """Refuse what could never be launched, and tell what is about to run; no node is asked."""
    require_job(cluster)
    require_name(cluster.job, options.name)
    if options.sync and not options.force:
        require_script(cluster, options.source)
    notice_job(cluster.job, emit=emit)
    template = options.resumed.command if options.resumed else ()
    notice_restarts(cluster.job, template, emit=emit)
    notice_folder(cluster.job, emit=emit)
    notice_secrets(cluster, emit=emit)
    notice_batch(cluster, options.source, emit=emit)
    # Without a sync, the nodes may have other scripts than this folder.
    force = options.force or not options.sync
    notice_words(cluster, options.source, force=force, emit=emit)
    if not force:  # last: what a script's own words say needs more than `bash` in front of it
        require_runnable(cluster.job.command, options.source)


def _check(
    cluster: Cluster, pool: Pool, options: LaunchOptions, *, emit: Emit
) -> tuple[Cluster, CheckResult]:
    """Check; with `exclude_unhealthy`, leave out nodes and check the others again."""
    check_options = CheckOptions(
        only=() if options.check else CHECKED_ANYWAY,
        skip=() if options.sync else NEEDED_BY_SYNC,
        code=not options.sync,
        source=options.source if options.sync else None,
        quarantined=options.quarantined,
    )

    def judged(cluster: Cluster) -> CheckResult:
        # What the sync will bring is judged after it.
        present = before_sync(cluster) if options.sync else _with_look(cluster, options)
        return check(present, pool, check_options, emit=emit)

    verdict = judged(cluster)
    unhealthy = {name for finding in verdict.blocking for name in finding.nodes}
    if options.exclude_unhealthy and unhealthy:
        healthy = tuple(node for node in cluster.nodes if node.name not in unhealthy)
        for finding in verdict.blocking:
            text = f"left out: {', '.join(finding.nodes)}: {finding.message}"
            emit(Notice(text=text, level="warning"))
        if not healthy:
            hint = "clusterctl check"
            raise LaunchRefused("no healthy node is left", hint=hint, by="check")
        cluster = cluster.with_nodes(healthy)
        verdict = judged(cluster)
    emit(Checked(verdict=verdict))
    return cluster, verdict


def _check_synced(
    cluster: Cluster,
    pool: Pool,
    plan: Plan,
    verdict: CheckResult,
    options: LaunchOptions,
    *,
    emit: Emit,
) -> CheckResult:
    """Judge what the sync brought: what the job needs below workdir, and the job's own check."""
    if not (options.sync and options.check):
        return verdict
    before, verdict = verdict, check_needs(cluster, pool, verdict, options.source, emit=emit)
    if verdict.blocking != before.blocking:
        emit(Checked(verdict=verdict))
    _stop_if_blocked(verdict, options)
    own = replace(cluster, job=fill_job(cluster.job, plan.run, plan.name))
    own = _with_look(own, options)
    if own.job.check:
        verdict = check_code(own, pool, verdict, emit=emit)
        emit(Checked(verdict=verdict, after_sync=True))
        _stop_if_blocked(verdict, options)
    return verdict


def _with_look(cluster: Cluster, options: LaunchOptions) -> Cluster:
    return replace(cluster, job=with_look(cluster.job, options.resumed))


def _record(
    cluster: Cluster,
    plan: Plan,
    verdict: CheckResult,
    synced: SyncResult | None,
    options: LaunchOptions,
) -> RunRecord:
    """Return what this machine remembers of the run."""
    return RunRecord(
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
        left_out=options.left_out,
        by=f"{own_user()} on {socket.gethostname()}",
    )


def _start(
    pool: Pool, records: Records, record: RunRecord, plan: Plan, *, force: bool, emit: Emit
) -> None:
    """Show the plan, and start it."""
    try:
        # It prints the run's name: from then on `clusterctl stop` knows it.
        emit(Planned(plan=plan))
        launched = prove(record, plan, records.root)
    except KeyboardInterrupt:
        raise Interrupted(NOT_STARTED) from None
    start_run(
        pool,
        record.cluster,
        plan,
        os.environ,
        record.resumed,
        launched=launched,
        force=force,
        emit=emit,
    )


def _end_of(error: BaseException, plan: Plan) -> dict[str, Any]:
    """Return the end of a run whose start failed."""
    end = {"state": "failed", "exit_code": LaunchRefused.exit_code, "ended_by": "controller"}
    if isinstance(error, LaunchRefused | Interrupted):
        end |= {"exit_code": error.exit_code, "ended_by": error.by}
    if isinstance(error, Interrupted | KeyboardInterrupt):
        end["state"] = "stopped"
    return {**end, "run": plan.run, "message": str(error).removeprefix(f"{plan.run}: ")}


def _stop_if_blocked(verdict: CheckResult, options: LaunchOptions) -> None:
    """Stop if a check that the run depends on failed, or could not look, unless it is forced.

    What not even `--force` can start is refused by the node (`Check.final`).
    """
    if not options.force:
        refuse(verdict.blocking, verdict)


def refuse(findings: Sequence[Finding], verdict: CheckResult) -> None:
    """Refuse the launch if there are findings."""
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
