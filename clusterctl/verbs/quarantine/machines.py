"""Which machines the nodes of an inventory are, by the host keys that this machine knows."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.transport.ssh.host_keys import names_of, own_file
from clusterctl.transport.ssh.known_hosts import KnownHosts, fingerprint
from clusterctl.transport.ssh.ssh_config import SshConfigResolver
from clusterctl.verbs.quarantine.entries import Machine


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
