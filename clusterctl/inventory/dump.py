"""Writes a cluster as a hosts.yaml, which reads back as the same cluster."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from types import MappingProxyType
from typing import Any

import yaml

from clusterctl.inventory.addresses import default_name
from clusterctl.inventory.cluster import Cluster, Job, Node, Ssh
from clusterctl.inventory.ranges import folds
from clusterctl.inventory.settings import keys_of
from clusterctl.safe_text import escape_controls
from clusterctl.values import dataclass

_NOTE = 400
"""Characters of a line of comment, at most."""


def dump(cluster: Cluster, *, notes: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the YAML of a cluster: values that are not the default, neighbors folded into ranges.

    The master comes first, so no entry needs `master: true`.

    Args:
        notes: lines of comment in front of a node's entry, by its name.
    """
    workdirs = {node.workdir for node in cluster.nodes}
    workdir = workdirs.pop() if len(workdirs) == 1 else None
    network = {"subnet": cluster.subnet, "master_port": cluster.master_port}
    document = {
        "cluster": cluster.name,
        "shared": list(cluster.shared),
        "workdir": workdir,
        "same_machine": "allow" if cluster.same_machine else None,
        "network": _written(network),
        "quarantine": {"avoid": True} if cluster.avoid_quarantined else None,
        "nodes": list(_entries(cluster.nodes, notes, common_workdir=workdir)),
        "job": _job(cluster.job),
    }
    return "".join(_block(key, value) for key, value in _written(document).items())


def _written(values: Mapping[str, object]) -> dict[str, object]:
    """Leave out values that are not set."""
    return {key: value for key, value in values.items() if value not in (None, [], {})}


def _block(key: str, value: object) -> str:
    """Write one top-level key, each of its items on one line."""
    if isinstance(value, list):
        return f"{key}:\n" + "".join(map(_item, value))
    if isinstance(value, dict):
        return f"{key}:\n" + "".join(f"  {flow(k)}: {flow(v)}\n" for k, v in value.items())
    return f"{key}: {flow(value)}\n"


def _item(value: object) -> str:
    note, value = (value.note, value.entry) if isinstance(value, _Noted) else ("", value)
    # Nothing in a comment may end its line.
    comments = (f"  # {escape_controls(line, _NOTE)}\n" for line in note.split("\n") if line)
    return "".join(comments) + f"  - {flow(value)}\n"


def flow(value: object) -> str:
    """Return a value as YAML in one line."""
    # ASCII only: PyYAML writes some line breaks of Unicode raw and reads them as spaces.
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=math.inf)
    return text.removesuffix("\n").removesuffix("\n...")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Noted:
    """An item with lines of comment in front."""

    entry: object
    note: str


def _entries(
    nodes: Sequence[Node], notes: Mapping[str, str], *, common_workdir: str | None
) -> Iterator[object]:
    """Yield the items of `nodes`; neighbors with the same settings and note share one."""

    def shared(node: Node) -> tuple[str, dict[str, object], bool]:
        # An entry has an address for each of its hosts, or none.
        note = notes.get(node.name, "")
        return note, _settings(node, common_workdir), node.address is None

    for (note, settings, _), group in itertools.groupby(nodes, key=shared):
        members = list(group)
        for hosts, count in folds(node.host for node in members):
            part, members = members[:count], members[count:]
            addresses = list(folds(node.address for node in part if node.address))
            if len(addresses) <= 1:
                entries = [_entry(hosts, addresses[0][0] if addresses else None, settings)]
            else:
                entries = [_entry(node.host, node.address, settings) for node in part]
            yield from (_Noted(entry=entry, note=note) if note else entry for entry in entries)


def _entry(host: str, address: str | None, settings: dict[str, object]) -> object:
    entry = _written({"host": host, "address": address, **settings})
    return entry if len(entry) > 1 else host


def _settings(node: Node, common_workdir: str | None) -> dict[str, object]:
    """Return what an entry sets in addition to its host and address."""
    return {
        "name": None if node.name == default_name(node.host) else node.name,
        **_changed(node.ssh, Ssh()),
        "gpus": node.gpus,
        "procs": node.procs,
        "python": node.python,
        "workdir": None if node.workdir == common_workdir else node.workdir,
        "state": node.state,
        "spare": node.spare or None,
    }


def _job(job: Job) -> dict[str, object]:
    return _written({**_changed(job, Job()), "env": dict(job.env), "slurm": dict(job.slurm)})


def _changed(value: Any, default: Any) -> dict[str, object]:  # noqa: ANN401  (a section)
    """Return the keys of a section that differ from the defaults, also in sections within it."""
    values = {name: getattr(value, name) for name in keys_of(type(value))}
    return {
        name: _plain(one, getattr(default, name))
        for name, one in values.items()
        if one != getattr(default, name)
    }


def _plain(value: Any, default: Any = None) -> object:  # noqa: ANN401  (of a setting)
    """Return a value as YAML has it; of a list of sections, the defaults are the section's own."""
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if is_dataclass(value):
        section: Any = type(value)
        return _written(_changed(value, section() if default is None else default))
    return value
