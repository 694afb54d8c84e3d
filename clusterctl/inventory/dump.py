"""Writes a cluster as a hosts.yaml that reads back as the same cluster."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import yaml

from clusterctl.inventory.cluster import Cluster, Job, Node, Ssh, Stop
from clusterctl.inventory.ranges import folds


def dump(cluster: Cluster) -> str:
    """Return the YAML of a cluster: what is not the default, neighbours folded into ranges.

    The master comes first, so that none needs to say so.
    """
    workdirs = {node.workdir for node in cluster.nodes}
    workdir = workdirs.pop() if len(workdirs) == 1 else None
    network = {"subnet": cluster.subnet, "master_port": cluster.master_port}
    whole = {
        "cluster": cluster.name,
        "shared": list(cluster.shared),
        "workdir": workdir,
        "same_machine": "allow" if cluster.same_machine else None,
        "network": _written(network),
        "nodes": list(_entries(cluster.nodes, common_workdir=workdir)),
        "job": _job(cluster.job),
    }
    return "".join(_block(key, value) for key, value in _written(whole).items())


def _written(values: Mapping[str, object]) -> dict[str, object]:
    """Leave out what is not set."""
    return {key: value for key, value in values.items() if value not in (None, [], {})}


def _block(key: str, value: object) -> str:
    """Write one key of the top: its items a line each, what is inside them in one line."""
    if isinstance(value, list):
        return f"{key}:\n" + "".join(f"  - {flow(item)}\n" for item in value)
    if isinstance(value, dict):
        return f"{key}:\n" + "".join(f"  {flow(k)}: {flow(v)}\n" for k, v in value.items())
    return f"{key}: {flow(value)}\n"


def flow(value: object) -> str:
    """Return a value as YAML in one line."""
    # ASCII only: PyYAML writes some line breaks of Unicode raw and reads them as spaces.
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=math.inf)
    return text.removesuffix("\n").removesuffix("\n...")


def _entries(nodes: Sequence[Node], *, common_workdir: str | None) -> Iterator[object]:
    """Yield the items of `nodes`; neighbours with the same settings share one."""

    def shared(node: Node) -> tuple[dict[str, object], bool]:
        # An entry has an address for each of its hosts, or none.
        return _settings(node, common_workdir), node.address is None

    for (settings, _), group in itertools.groupby(nodes, key=shared):
        members = list(group)
        for hosts, count in folds(node.host for node in members):
            part, members = members[:count], members[count:]
            addresses = list(folds(node.address for node in part if node.address))
            if len(addresses) <= 1:
                yield _entry(hosts, addresses[0][0] if addresses else None, settings)
            else:
                yield from (_entry(node.host, node.address, settings) for node in part)


def _entry(host: str, address: str | None, settings: dict[str, object]) -> object:
    entry = _written({"host": host, "address": address, **settings})
    return entry if len(entry) > 1 else host


def _settings(node: Node, common_workdir: str | None) -> dict[str, object]:
    """Return what an entry says beside its host and address."""
    ssh = node.ssh
    return {
        "user": ssh.user,
        "port": ssh.port,
        "identity": ssh.identity,
        "jump": ssh.jump,
        "via": None if ssh.via == Ssh().via else ssh.via,
        "gpus": node.gpus,
        "procs": node.procs,
        "python": node.python,
        "workdir": None if node.workdir == common_workdir else node.workdir,
        "state": node.state,
    }


def _job(job: Job) -> dict[str, object]:
    stop: dict[str, object] = {}
    if job.stop != Stop():
        stop = _written(
            {
                "signal": job.stop.signal,
                "file": job.stop.file,
                "grace": job.stop.grace,
                "failure_grace": job.stop.failure_grace,
                "leftovers": job.stop.leftovers,
            }
        )
    return _written(
        {
            "launcher": None if job.launcher == Job().launcher else job.launcher,
            "launcher_args": list(job.launcher_args),
            "procs_per_node": job.procs_per_node,
            "command": list(job.command),
            "env": dict(job.env),
            "env_from": list(job.env_from),
            "env_init": job.env_init,
            "needs": list(job.needs),
            "check": list(job.check),
            "checkpoints": job.checkpoints,
            "resume_args": list(job.resume_args),
            "stop": stop,
        }
    )
