"""The quarantine of a cluster's nodes: what is known, who is put in and taken out, who stays out.

Nodes are put in by a user, or by a run that blames them, as soon as this machine sees its end.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from clusterctl.checks.wording import ago, left
from clusterctl.errors import ClusterError, LaunchRefused, NodeError
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.inventory.ranges import BadRange, expand_hosts, name_hosts
from clusterctl.inventory.select import is_count, named, select
from clusterctl.model.quarantine import Quarantined
from clusterctl.transport.ssh.host_keys import names_of, own_file
from clusterctl.transport.ssh.known_hosts import KnownHosts, fingerprint
from clusterctl.transport.ssh.ssh_config import SshConfigResolver
from clusterctl.values import dataclass
from clusterctl.verbs.events import Notice
from clusterctl.verbs.quarantine import entries as rules
from clusterctl.verbs.quarantine.blame import blamed
from clusterctl.verbs.quarantine.entries import USUAL, Entries, Machine
from clusterctl.verbs.quarantine.store import change_entries, read_entries
from clusterctl.verbs.runs.records import RunRecord
from clusterctl.verbs.runs.run_status import RunStatus
from clusterctl.wire import SCHEMA, plain

BY_HAND = "put there by hand"
"""The reason of who gives none."""
logger = logging.getLogger("clusterctl")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineList:
    """The nodes in quarantine, those that leave it first at the end."""

    nodes: tuple[Quarantined, ...]

    def __iter__(self) -> Iterator[Quarantined]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def document(self) -> dict[str, Any]:
        """Return it as the JSON that `quarantine --json` prints."""
        return {"schema": SCHEMA, "nodes": plain(self.nodes)}


def quarantined(cluster: Cluster, root: Path) -> dict[str, Quarantined]:
    """Return what is known against nodes of a cluster, by name; no node is asked.

    Raises:
        ClusterError: the file cannot be read.
    """
    return _known(read_entries(root), cluster, cluster.nodes)


def known_or_warned(cluster: Cluster, root: Path) -> dict[str, Quarantined] | None:
    """Return the same; None, with a warning, if the file cannot be read."""
    try:
        return quarantined(cluster, root)
    except ClusterError as error:
        _warn(error)
        return None


def list_quarantine(cluster: Cluster, root: Path) -> QuarantineList:
    """Return all nodes of a cluster in quarantine, also those that its inventory has no more.

    Raises:
        ClusterError: the file cannot be read.
    """
    entries = read_entries(root)
    now = time.time()
    found = list(_known(entries, cluster, cluster.nodes).values())
    for machine in _absent(entries, cluster, now):
        shown = rules.known_against(entries, machine, now)
        if shown is not None:
            found.append(replace(shown, absent=True))
    return QuarantineList(nodes=tuple(sorted(found, key=lambda one: one.until, reverse=True)))


def add(
    cluster: Cluster, spec: str, root: Path, *, reason: str = "", seconds: float = USUAL
) -> QuarantineList:
    """Put nodes of a cluster into quarantine.

    Raises:
        UsageError: there is no such node.
        ClusterError: the file cannot be read or written.
    """
    nodes = named(cluster, spec, option="clusterctl quarantine add")
    machines = machines_of(cluster, nodes)
    now = time.time()

    def change(entries: Entries) -> Entries:
        for machine in machines:
            entries = rules.put(entries, machine, reason or BY_HAND, now=now, until=now + seconds)
        return entries

    change_entries(root, change)
    return QuarantineList(nodes=tuple(quarantined(cluster.with_nodes(nodes), root).values()))


def remove(cluster: Cluster, spec: str, root: Path) -> tuple[QuarantineList, tuple[str, ...]]:
    """Take nodes out of quarantine; return those that were in it, and those that were not.

    Raises:
        UsageError: neither the inventory nor the quarantine has such a node.
        ClusterError: the file cannot be read or written.
    """
    try:
        wanted = tuple(expand_hosts(spec))
    except BadRange:
        wanted = ()  # `named` explains it
    now = time.time()
    absent = [one for one in _absent(read_entries(root), cluster, now) if one.node in wanted]
    rest = ",".join(name for name in wanted if name not in {one.node for one in absent})
    nodes: tuple[Node, ...] = ()
    if rest or not absent:
        nodes = named(cluster, rest or spec, option="clusterctl quarantine remove")
    machines = (*machines_of(cluster, nodes), *absent)
    gone: dict[str, Quarantined | None] = {}

    def change(entries: Entries) -> Entries:
        for machine in machines:
            gone[machine.node] = rules.known_against(entries, machine, now)
            entries = rules.take_out(entries, machine, now=now)
        return entries

    change_entries(root, change)
    out = tuple(one for one in gone.values() if one is not None)
    return QuarantineList(nodes=out), tuple(name for name, one in gone.items() if one is None)


def note_blame(record: RunRecord, view: RunStatus, root: Path) -> None:
    """Put the nodes that a run blames into quarantine, if there are any."""
    if blamed(view, record.cluster.master.name):
        with_quarantined(record.cluster, record, view, root)


def with_quarantined(
    cluster: Cluster, record: RunRecord | None, view: RunStatus, root: Path
) -> RunStatus:
    """Put the nodes that a run blames into quarantine; return the run with all of its that are in.

    A run that this machine has not launched or proved may be invented by a node: it blames none.
    A file that cannot be read or written costs a warning.
    """
    now = time.time()
    launched = 0.0 if record is None or record.discovered else record.began
    found = blamed(view, cluster.master.name) if launched else ()
    blames = {one.node: one for one in found if one.time > now - USUAL}
    nodes = tuple(answer.node for answer in view.nodes)
    guilty = [node for node in nodes if node.name in blames]
    machines = machines_of(cluster, guilty) if guilty else ()

    def change(entries: Entries) -> Entries:
        for machine in machines:
            blame = blames[machine.node]
            entries = rules.put_blamed(entries, machine, blame, launched=launched, now=now)
        return entries

    try:
        entries = read_entries(root)
        if change(entries) != entries:
            entries = change_entries(root, change)
        known = _known(entries, cluster, nodes)
    except ClusterError as error:
        _warn(error)
        return view
    return replace(view, quarantined=tuple(one for one in known.values() if not one.replaced))


def choose(
    cluster: Cluster,
    nodes: str | None,
    exclude: str | None,
    known: Mapping[str, Quarantined],
    *,
    spares: bool = True,
) -> tuple[Cluster, tuple[Quarantined, ...]]:
    """Select nodes as `select` does, but none that is in quarantine.

    `spares`: the nodes with `spare: true` will stand by; false: `--spares` says who does.

    Returns:
        The cluster with the nodes selected, and the nodes that were left out.

    Raises:
        LaunchRefused: too few are left.
        UsageError: the selection cannot be.
    """
    bad = {name for name, one in known.items() if not one.replaced}
    asked = select(cluster, nodes, exclude)  # refuses what cannot be in any case
    wanted, active, seen = 1, 0, asked.nodes
    if nodes is not None and is_count(nodes):
        # Those in quarantine do not count: the next ones take their places, but no spare node does.
        wanted, active = len(asked.nodes), len(asked.active) if spares else 0
        seen = select(cluster, None, exclude).nodes
        good = [at for at, node in enumerate(seen, 1) if node.name not in bad]
        seen = seen[: good[wanted - 1]] if len(good) >= wanted else seen
    picked = tuple(node for node in seen if node.name not in bad)
    left_out = tuple(known[node.name] for node in seen if node.name in bad)
    if len(picked) < wanted:
        _refuse(len(picked), wanted, left_out)
    if (found := sum(not node.spare for node in picked)) < active:
        _refuse(found, active, left_out)
    return cluster.with_nodes(picked), left_out


def _refuse(left: int, wanted: int, left_out: Sequence[Quarantined]) -> None:
    names = name_hosts(one.node for one in left_out)
    verb = "is" if len(left_out) == 1 else "are"
    wish = "1 node" if wanted == 1 else f"{wanted} nodes"
    raise LaunchRefused(
        f"not launched: expected {wish}, found {left}: {names} {verb} in quarantine",
        hint="why: clusterctl quarantine list\n"
        f"if it is repaired: clusterctl quarantine remove {shlex.quote(left_out[0].node)}",
        by="check",
    )


def left_out_notice(one: Quarantined) -> Notice:
    """Return the notice about a node that is left out of a launch."""
    return Notice(
        text=f"left out: {one.node}: in quarantine: {one.reason} ({when(one)})",
        level="warning",
        hint=f"if it is repaired: clusterctl quarantine remove {shlex.quote(one.node)}",
    )


def when(one: Quarantined) -> str:
    """Return the run, the age and the end of an entry: `run lab-x, 2 hours ago; 6 days left`."""
    run = f"run {one.run}, " if one.run else ""
    return f"{run}{ago(one.age_s)}; {left(one.left_s)} left"


def _known(entries: Entries, cluster: Cluster, nodes: Iterable[Node]) -> dict[str, Quarantined]:
    """Return what is known against nodes; only of few the host keys are looked up."""
    now = time.time()
    there = {(one.host, one.port) for one in entries if one.lasts(now)}
    some = [node for node in nodes if (node.host, node.ssh.port) in there]
    found = {
        machine.node: rules.known_against(entries, machine, now)
        for machine in (machines_of(cluster, some) if some else ())
    }
    return {name: one for name, one in found.items() if one is not None}


def _absent(entries: Entries, cluster: Cluster, now: float) -> Entries:
    """Return the machines in quarantine that were nodes of a cluster, and are none any more."""
    places: Collection[object] = {
        (node.host, node.ssh.port) for node in (*cluster.nodes, *cluster.left_out)
    }
    return tuple(
        one
        for one in entries
        if one.cluster == cluster.name and one.lasts(now) and (one.host, one.port) not in places
    )


def _warn(error: ClusterError) -> None:
    logger.warning("%s (hint: %s)", error, error.hint)


def machines_of(cluster: Cluster, nodes: Iterable[Node]) -> tuple[Machine, ...]:
    """Return the nodes with the keys that are recorded of them; no node is asked."""
    resolver, load = SshConfigResolver(), cache(KnownHosts.load)

    def keys(node: Node) -> list[str]:
        if node.local or node.ssh.via == "srun":
            return []
        try:
            endpoint = resolver.resolve(node)
        except NodeError:
            return []
        known = load((*endpoint.known_hosts, own_file(cluster.name)))
        lines = [line for name in names_of(endpoint) for line in known.lines(name)]
        return [fingerprint(line.blob) for line in lines if not line.marker]

    return tuple(Machine.of(cluster.name, node, keys(node)) for node in nodes)
