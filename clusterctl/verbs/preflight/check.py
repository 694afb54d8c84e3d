"""The use case `check`: learn the facts, choose the network, let the nodes try it, judge."""

import difflib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterctl.checks.all import every_check
from clusterctl.checks.finding import Finding, Status
from clusterctl.checks.network.choices import LibraryChoice, library_choices
from clusterctl.checks.registry import SSH, Check, exit_code, judge_all
from clusterctl.checks.software.job_check import JOB_CHECK
from clusterctl.checks.storage.disks import SHARED
from clusterctl.errors import UsageError
from clusterctl.facts.changes import Change
from clusterctl.facts.ladder import Ladder
from clusterctl.facts.machine.system import SshStatus
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.model.quarantine import Quarantined
from clusterctl.network.choice import Network, choose_network
from clusterctl.values import dataclass
from clusterctl.verbs.events import Emit
from clusterctl.verbs.preflight.collect_facts import FactsSession, collect_facts
from clusterctl.verbs.preflight.connectivity import probe_connectivity
from clusterctl.verbs.preflight.firewall_rules import read_firewall_rules
from clusterctl.verbs.preflight.job_check import run_job_check
from clusterctl.verbs.preflight.ladder import climb_ladder
from clusterctl.verbs.preflight.rungs import rung_rows
from clusterctl.verbs.preflight.source_folder import (
    local_requirements,
    with_local_config,
    with_local_needs,
)
from clusterctl.verbs.rpc import Nodes
from clusterctl.wire import SCHEMA, plain

_ABSENT = SshStatus(state="unreachable", words="the saved facts do not have it")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """Which checks to judge, and how strictly."""

    only: tuple[str, ...] = ()
    """Ids of checks, or areas of them as `network`; empty: all."""
    skip: tuple[str, ...] = ()
    strict: bool = False
    """A warning counts as a failure."""
    code: bool = True
    """Judge what `sync` brings too; a launch that syncs does that afterwards, by `check_code`."""
    source: Path | None = None
    """The folder that a sync brings: its files count, not the nodes' copies of them."""
    deep: bool = False
    """Let the job's own torch try the GPUs and the network: takes as long as torch loads."""
    quarantined: Mapping[str, Quarantined] | None = None
    """What is remembered against nodes, by name; None: it was not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """What one node will be in the run, and how it is."""

    name: str
    host: str
    rank: int
    address: str
    interface: str
    gpus: int | None
    gpu_name: str
    state: str
    """`ok`, or the worst status of a finding that names it; `unreachable` if it is silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastGood:
    """The cluster's last run that finished well, and what has changed since its start."""

    run: str
    began: float
    """Seconds since 1970, UTC."""
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The verdict."""

    cluster: str
    nodes: tuple[NodeRow, ...]
    findings: tuple[Finding, ...]
    """All findings, worst first, passes too."""
    facts: Mapping[str, NodeFacts]
    network: Network
    seconds: float
    strict: bool = False
    partial: bool = False
    """Checks were left out with `only` or `skip`."""
    last_good: LastGood | None = None
    """None: no run of this cluster is known to have finished well."""

    choices: tuple[LibraryChoice, ...] = ()
    """What each library will use on each node."""

    @property
    def exit_code(self) -> int:
        """0 nothing failed, 1 something did, 3 nothing did but something is unknown."""
        return exit_code([f.status for f in self.findings], strict=self.strict)

    @property
    def blocking(self) -> tuple[Finding, ...]:
        """What a run cannot start with: failed or unknown, of a check that it depends on."""
        blocks = {rule.id for rule in every_check() if rule.blocks}
        return tuple(
            f for f in self.findings if f.status in {"fail", "unknown"} and f.check in blocks
        )

    def document(self) -> dict[str, Any]:
        """Return it as the JSON that `check --json` prints."""
        host = {row.name: row.host for row in self.nodes}

        def of_nodes(found: Callable[[Ladder], Iterable[object]]) -> list[dict[str, Any]]:
            ladders = ((name, node.ladder) for name, node in self.facts.items() if node.ladder)
            return [
                {"host": host.get(name, name), **plain(one)}
                for name, ladder in ladders
                for one in found(ladder)
            ]

        return {
            "schema": SCHEMA,
            "cluster": self.cluster,
            "nodes": [
                {
                    "host": row.host,
                    "name": row.name,
                    "rank": row.rank,
                    "address": row.address or None,
                    "interface": row.interface or None,
                    "gpus": row.gpus,
                    "state": row.state,
                }
                for row in self.nodes
            ],
            "findings": [
                {**plain(finding), "nodes": [host.get(node, node) for node in finding.nodes]}
                for finding in self.findings
            ],
            "pairs": [
                {"from": host.get(node.node, node.node), **plain(rate), "peer": host.get(rate.peer)}
                for node in self.facts.values()
                for rate in (node.collective.pairs if node.collective else ())
            ],
            "ladder": {
                "rungs": [
                    {**plain(row), "broken": [host.get(name, name) for name in row.broken]}
                    for row in rung_rows(self.facts)
                ],
                "gpus": of_nodes(lambda ladder: ladder.gpus),
                "inside": of_nodes(lambda ladder: ladder.inside),
                "rails": of_nodes(lambda ladder: ladder.rails),
                "dcgm": of_nodes(lambda ladder: (ladder.dcgm,) if ladder.dcgm else ()),
            },
            "last_good": plain(self.last_good),
            "seconds": round(self.seconds, 3),
        }


def check(cluster: Cluster, pool: Nodes, options: CheckOptions, *, emit: Emit) -> CheckResult:
    """Look at every node and judge.

    Returns:
        The verdict; a node that does not answer is part of it.

    Raises:
        UsageError: `only` or `skip` name no check.
    """
    began = time.monotonic()
    chosen = select_checks(options)
    facts, network = _ask(cluster, pool, options, chosen, emit=emit)
    if options.quarantined is not None:
        bad = {name: (one,) for name, one in options.quarantined.items()}
        facts = {n: replace(known, quarantine=bad.get(n, ())) for n, known in facts.items()}
    if options.code and any(rule.id == JOB_CHECK for rule in chosen):
        facts = run_job_check(cluster, pool, facts, source=options.source, emit=emit)
    if options.deep and not judge(cluster, facts, options, network).blocking:
        # What is known to be broken would only cost the whole timeout of the ladder.
        facts = climb_ladder(cluster, pool, facts, network, emit=emit)
    result = judge(cluster, facts, options, network)
    return replace(result, seconds=time.monotonic() - began)


def _ask(
    cluster: Cluster, pool: Nodes, options: CheckOptions, chosen: tuple[Check, ...], *, emit: Emit
) -> tuple[dict[str, NodeFacts], Network]:
    """Have one conversation with each node; none is kept, each of which takes 10 KB."""
    required = local_requirements(options.source) if options.source is not None else ()
    session = FactsSession(cluster=cluster, packages=tuple(name for name, _ in required))
    facts = collect_facts(session, pool, emit=emit)
    facts = {name: replace(known, requirements=required) for name, known in facts.items()}
    if options.source is not None:
        facts = with_local_config(cluster, facts, options.source)
        facts = with_local_needs(cluster, facts, options.source)
    network = choose_network(cluster, facts)
    if any(rule.pairwise or rule.id == SHARED for rule in chosen):
        facts = probe_connectivity(session, facts, network, emit=emit)
        facts = read_firewall_rules(pool, facts, emit=emit)
    else:
        session.finish()
    return facts, network


def check_code(cluster: Cluster, pool: Nodes, before: CheckResult, *, emit: Emit) -> CheckResult:
    """Judge what `sync` brought, on top of a verdict that left it out."""
    began = time.monotonic()
    facts = run_job_check(cluster, pool, before.facts, synced=True, emit=emit)
    result = judge(cluster, facts, CheckOptions(strict=before.strict), before.network)
    return replace(result, seconds=before.seconds + time.monotonic() - began)


def judge(
    cluster: Cluster,
    facts: Mapping[str, NodeFacts],
    options: CheckOptions,
    network: Network | None = None,
) -> CheckResult:
    """Judge facts, just collected or saved; no machine is needed.

    Args:
        cluster: the nodes, and what the run needs.
        options: which checks to judge.
        network: what the nodes probed; None: chosen from the facts.
    """
    known = {
        node.name: facts.get(node.name) or NodeFacts(node=node.name, reach=_ABSENT)
        for node in cluster.nodes
    }
    network = network or choose_network(cluster, known)
    chosen = {rule.id for rule in select_checks(options)} | {SSH}
    rules = [rule for rule in every_check() if options.code or not rule.after_sync]
    # All are judged, since one may explain another; only those asked for are reported.
    findings = tuple(f for f in judge_all(rules, known, network, cluster) if f.check in chosen)
    worst: dict[str, Status] = {}
    for found in findings:
        for name in found.nodes:
            worst.setdefault(name, found.status)
    return CheckResult(
        cluster=cluster.name,
        nodes=tuple(
            _row(node, rank, known[node.name], network, worst.get(node.name, "pass"))
            for rank, node in enumerate(cluster.nodes)
        ),
        findings=findings,
        facts=known,
        network=network,
        seconds=0.0,
        strict=options.strict,
        partial=bool(options.only or options.skip),
        choices=library_choices(known, network, cluster),
    )


def select_checks(options: CheckOptions) -> tuple[Check, ...]:
    """Return the checks that the options ask for; UsageError for one that does not exist."""
    rules = every_check()
    every = {rule.id for rule in rules}
    only = _matching_ids(options.only, rules, "--only") if options.only else every
    wanted = only - _matching_ids(options.skip, rules, "--skip")
    return tuple(rule for rule in rules if rule.id in wanted)


_LIST = "clusterctl check --list"


def find_check(identity: str) -> Check:
    """Return the check of this id; raise UsageError if there is none."""
    rules = every_check()
    found = next((rule for rule in rules if rule.id == identity), None)
    if found is None:
        ids = [rule.id for rule in rules]
        # Of an area, such as `network`, the first one.
        near = [*(one for one in ids if one.startswith(f"{identity}.")), *_close(identity, ids)]
        raise UsageError(
            f"--explain: expected a check's id, found {identity!r}",
            hint=f"--explain {near[0]}" if near else _LIST,
        )
    return found


def _matching_ids(names: tuple[str, ...], rules: tuple[Check, ...], option: str) -> set[str]:
    """Return the ids of these checks and areas."""
    ids = [rule.id for rule in rules]
    found: set[str] = set()
    for name in names:
        matching = {one for one in ids if one == name or one.startswith(f"{name}.")}
        if not matching:
            areas = dict.fromkeys(one.partition(".")[0] for one in ids)
            near = _close(name, ids if "." in name else (*areas, *ids))
            right = ",".join(near[0] if one == name else one for one in names) if near else ""
            raise UsageError(
                f"{option}: expected checks or areas, found {name!r}",
                hint=f"{option} {right}" if right else _LIST,
            )
        found |= matching
    return found


def _close(name: str, known: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(name, known, n=1, cutoff=0.6)


def _row(node: Node, rank: int, facts: NodeFacts, network: Network, worst: Status) -> NodeRow:
    place = network.nodes.get(node.name)
    devices = facts.gpus.devices if facts.gpus else ()
    gpus = len(devices) if facts.gpus else None
    if node.gpus_wanted == 0:
        gpus = 0
    state = "ok" if worst in {"pass", "skip"} else worst
    return NodeRow(
        name=node.name,
        host=node.host,
        rank=rank,
        address=place.address if place else "",
        interface=place.interface if place else "",
        gpus=gpus if facts.answered else None,
        gpu_name=devices[0].name if devices else "",
        state=state if facts.answered else "unreachable",
    )
