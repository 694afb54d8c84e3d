"""The connections of a session: to the inventory's nodes, and to those of runs on other nodes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from clusterctl.errors import UsageError
from clusterctl.inventory.cluster import Cluster, Node

if TYPE_CHECKING:
    from clusterctl.transport.pool import Pool


class Pools:
    """Pools that are made when they are first needed; several threads may use them."""

    def __init__(self, cluster: Cluster, *, accept_new: bool, fanout: int | None) -> None:
        self._cluster, self._accept_new, self._fanout = cluster, accept_new, fanout
        self._pools: dict[tuple[object, ...], Pool] = {}
        """The connections to the inventory's nodes; a run of other nodes has its own."""
        self._lock = threading.Lock()
        self._closed = False

    def of(self, cluster: Cluster) -> Pool:
        """Return the pool of these nodes for one command, over connections that are kept.

        Raises:
            UsageError: the session is closed.
        """
        from clusterctl.transport.pool import Pool

        own = {_login(node) for node in (*self._cluster.nodes, *self._cluster.left_out)}
        logins = {_login(node) for node in cluster.nodes}
        known = logins <= own
        key: tuple[object, ...] = () if known else tuple(sorted(logins, key=str))
        with self._lock:
            if self._closed:
                raise UsageError("this session is closed", hint="open another: Session(...)")
            if key not in self._pools:
                first = self._cluster if known else cluster
                self._pools[key] = Pool(first, accept_new=self._accept_new, fanout=self._fanout)
            return self._pools[key].again(cluster)

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            self._closed = True
            pools = tuple(self._pools.values())
        for pool in pools:
            pool.close()


def _login(node: Node) -> tuple[object, ...]:
    """Return what decides how a node is reached."""
    return node.name, node.host, node.ssh, node.local
