"""The name of a run's lock: of a whole machine, or of some of its GPUs."""

from collections.abc import Iterable

from clusterctl.inventory.cluster import Cluster, Node

NAME = "clusterctl-run"
_LONGEST = 107
"""The longest name of an abstract socket, in bytes."""


def lock_name(
    cluster: Cluster, node: Node, gpus: Iterable[str] = (), *, port: int | None = None
) -> str:
    """Return the name of a run's lock on a node.

    Args:
        cluster: its `same_machine` allows several nodes on one machine.
        node: the node.
        gpus: UUIDs of the only GPUs that the run uses; empty: the run locks the whole machine.
        port: the rendezvous port, if this node is the master.
    """
    machine = f"{NAME}-{node.ssh.port or node.name}" if cluster.same_machine else NAME
    uuids = sorted(gpus)
    if not uuids or max(len(f"{machine}/{uuid}".encode()) for uuid in uuids) > _LONGEST:
        return machine
    rendezvous = [] if port is None else [f"port-{port}"]
    return f"{machine}/{','.join([*uuids, *rendezvous])}"
