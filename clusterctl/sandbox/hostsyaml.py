"""Writes the inventory of a sandbox."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import yaml

from clusterctl.sandbox.layout import Host, Layout


def text(
    layout: Layout, hosts: Sequence[Host], jumps: Sequence[Host], *, user: str, master_port: int
) -> str:
    """Return hosts.yaml for these hosts, with this user and these jump hosts."""
    alone = len({host.address for host in hosts}) == len(hosts)
    document: dict[str, Any] = {
        "cluster": layout.name,
        **({} if alone else {"same_machine": "allow"}),
        "ssh": {
            "user": user,
            "identity": str(layout.key_of(user) if alone else layout.key),
            **({"jump": ",".join(f"{user}@{jump.name}" for jump in jumps)} if jumps else {}),
        },
        "defaults": {"gpus": hosts[0].gpus.count, "python": sys.executable},
        "shared": [hosts[0].shared],
        "workdir": f"{hosts[0].shared}/code",
        "network": {"master_port": master_port},
        "nodes": [_by_name(host) if alone else _by_port(host) for host in hosts],
    }
    return "# Written by `clusterctl sandbox up`.\n" + yaml.safe_dump(document, sort_keys=False)


def _by_name(host: Host) -> dict[str, Any]:
    return {"host": host.name}


def _by_port(host: Host) -> dict[str, Any]:
    return {"host": host.address, "port": host.port, "state": host.state}
