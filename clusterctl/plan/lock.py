"""The name of a run's lock: of a whole machine, or of some of its GPUs."""

from __future__ import annotations

from collections.abc import Iterable

from clusterctl.inventory.cluster import Cluster, Node

NAME = "clusterctl-run"
_LONGEST = 107
"""Bytes of an abstract socket's name."""


def lock_name(
    cluster: Cluster, node: Node, gpus: Iterable[str] = (), *, port: int | None = None
) -> str:
    """Return the lock of a run on a node.

    Args:
        cluster: tells whether several of its nodes share one machine on purpose.
        node: the node.
        gpus: UUIDs of the only GPUs that the run uses; empty: the run takes the whole machine.
        port: where its ranks meet, if that is on this node.
    """
    machine = f"{NAME}-{node.ssh.port or node.name}" if cluster.same_machine else NAME
    uuids = sorted(gpus)
    if not uuids or max(len(f"{machine}/{uuid}".encode()) for uuid in uuids) > _LONGEST:
        return machine
    meeting = [] if port is None else [f"port-{port}"]
    return f"{machine}/{','.join([*uuids, *meeting])}"
