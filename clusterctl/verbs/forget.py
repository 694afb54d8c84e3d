"""Remove the recorded host key of a reinstalled host."""

from collections.abc import Iterable
from pathlib import Path

from clusterctl.errors import ClusterError, NodeError
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.state_folder import ANOTHER_FOLDER
from clusterctl.transport.ssh.host_keys import names_of, own_file
from clusterctl.transport.ssh.known_hosts import KnownHosts, forget, known_name
from clusterctl.transport.ssh.ssh_config import SshConfigResolver
from clusterctl.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """What was done about one host."""

    node: str
    """The node's name."""
    name: str
    """The name its key is recorded under."""
    dropped: int
    """How many lines were removed from the cluster's own file."""
    elsewhere: tuple[str, ...]
    """Lines (`file:line`) of your own files, which clusterctl does not change."""


def forget_nodes(cluster: Cluster, nodes: Iterable[Node]) -> tuple[Forgotten, ...]:
    """Drop the keys of nodes from the cluster's own known_hosts."""
    ssh_config = SshConfigResolver()
    try:
        return tuple(_forget(cluster, node, ssh_config) for node in nodes)
    except OSError as error:
        hint = getattr(error, "hint", "") or f"make it writable, or {ANOTHER_FOLDER}"
        message = f"cannot write {own_file(cluster.name)}: {error.strerror}"
        raise ClusterError(message, hint=hint) from error


def _forget(cluster: Cluster, node: Node, ssh_config: SshConfigResolver) -> Forgotten:
    file = own_file(cluster.name)
    others: tuple[Path, ...] = ()
    try:
        endpoint = ssh_config.resolve(node)
    except NodeError:
        names: tuple[str, ...] = (known_name(node.host, node.ssh.port or 22),)
    else:
        names, others = names_of(endpoint), endpoint.known_hosts
    known = KnownHosts.load(others)
    lines = [line for name in names for line in known.lines(name) if not line.marker]
    return Forgotten(
        node=node.name,
        name=names[0],
        dropped=sum(forget(file, name) for name in names),
        elsewhere=tuple(dict.fromkeys(line.where for line in lines)),
    )
