"""The entries of the quarantine, and their rules. Pure: the time and the machines are given.

There is one entry a machine. It is known by the host and port as the inventory writes them, and by
its host key. So two inventories share an entry if they mean the same machine, and a machine that
was replaced, which has a new key, has none. Where no key is known, as under Slurm or for this
machine itself, only the same cluster counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from clusterctl.inventory.cluster import Node
from clusterctl.model.from_json import Port, Seconds
from clusterctl.model.quarantine import Quarantined
from clusterctl.values import dataclass
from clusterctl.verbs.quarantine.blame import Blame

DAY = 86400.0
USUAL = 7 * DAY
"""How long a node stays in quarantine by default."""
MOST = 1000
"""Entries that are kept; beyond that, those that end first go."""
REASON_CHARACTERS = 500
MOST_KEYS = 8
"""Host keys of an entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A node, and the machine that it is."""

    cluster: str
    node: str
    """Its name in that inventory."""
    host: str
    port: Port | None = None
    """None: as ssh_config has it."""
    keys: tuple[str, ...] = ()
    """Fingerprints of the host keys that are known; none: only its name tells it from others."""

    @classmethod
    def of(cls, cluster: str, node: Node, keys: Iterable[str] = ()) -> Machine:
        """Return a node of an inventory as a machine."""
        known = tuple(sorted(set(keys)))[:MOST_KEYS]
        return cls(cluster=cluster, node=node.name, host=node.host, port=node.ssh.port, keys=known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Machine):
    """What the file has of one machine."""

    reason: str
    run: str = ""
    """The run that failed because of it; empty: a user put it there."""
    since: Seconds
    until: Seconds
    removed: Seconds | None = None
    """When a user took it out: runs launched before count no more."""

    def is_at(self, machine: Machine) -> bool:
        """Tell whether the inventory reaches a machine where this one was."""
        place = (self.host, self.port) == (machine.host, machine.port)
        return place and (bool(self.keys and machine.keys) or self.cluster == machine.cluster)

    def is_of(self, machine: Machine) -> bool:
        """Tell whether it is this very machine."""
        known = self.keys and machine.keys
        return self.is_at(machine) and not (known and set(self.keys).isdisjoint(machine.keys))

    def lasts(self, now: float) -> bool:
        """Tell whether it keeps its machine out."""
        return self.removed is None and now < self.until

    def shown(self, machine: Machine, now: float) -> Quarantined:
        """Return it as what is known against a node of an inventory."""
        return Quarantined(
            node=machine.node,
            reason=self.reason,
            run=self.run,
            since=self.since,
            until=self.until,
            age_s=max(0.0, now - self.since),
            replaced=not self.is_of(machine),
        )


Entries = tuple[Entry, ...]


def known_against(entries: Entries, machine: Machine, now: float) -> Quarantined | None:
    """Return what is known against a machine, or was against the one in whose place it is."""
    there = [one for one in entries if one.lasts(now) and one.is_at(machine)]
    own = [one for one in there if one.is_of(machine)]
    ours = [one for one in there if one.cluster == machine.cluster]
    # Two clusters may use one private address: another machine there is no replacement.
    found = own or ours
    return max(found, key=lambda one: one.until).shown(machine, now) if found else None


def put(entries: Entries, machine: Machine, reason: str, *, now: float, until: float) -> Entries:
    """Return the entries with a machine that a user puts into quarantine."""
    new = _entry(machine, reason, since=now, until=until)
    return _with(entries, new, machine, now)


def put_blamed(
    entries: Entries, machine: Machine, blame: Blame, *, launched: float, now: float
) -> Entries:
    """Return the entries with a machine that a run blames, unless that is no news.

    A run that is shown again must not bring back what a user took out. For that, the time of its
    launch counts, as that is of this machine's clock; the time of the blame is of the master's.
    """
    since = min(blame.time, now)
    until = since + USUAL
    for one in entries:
        # The machine that failed the run had the key of the first entry, whatever is there now.
        if one.run == blame.run and one.is_at(machine):
            return entries
        if one.is_of(machine):
            stays = one.lasts(now) and until <= one.until
            if stays or launched <= (one.removed or 0.0):
                return entries
    if until <= now:
        return entries
    new = _entry(machine, blame.reason, since=since, until=until)
    return _with(entries, replace(new, run=blame.run), machine, now)


def take_out(entries: Entries, machine: Machine, *, now: float) -> Entries:
    """Return the entries with none that lasts against a machine, or the one that it replaced."""

    def ends(one: Entry) -> bool:
        ours = one.cluster == machine.cluster and one.is_at(machine)
        return one.lasts(now) and (ours or one.is_of(machine))

    return tuple(replace(one, removed=now) if ends(one) else one for one in entries)


def _entry(machine: Machine, reason: str, *, since: float, until: float) -> Entry:
    return Entry(
        cluster=machine.cluster,
        node=machine.node,
        host=machine.host,
        port=machine.port,
        keys=machine.keys,
        reason=" ".join(reason.split())[:REASON_CHARACTERS],
        since=since,
        until=until,
    )


def _with(entries: Entries, new: Entry, machine: Machine, now: float) -> Entries:
    """Replace the machine's entry, and drop what can have no effect any more."""
    others = [one for one in entries if not one.is_of(machine) and _counts(one, now)]
    others.sort(key=lambda one: one.until)
    return (*others[max(0, len(others) + 1 - MOST) :], new)


def _counts(entry: Entry, now: float) -> bool:
    """Tell whether an entry has an effect: a run that it is of may be shown until then."""
    until = entry.until if entry.removed is None else 0.0
    return now < max(until, (entry.removed or entry.since) + USUAL)
