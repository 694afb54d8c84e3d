"""What the verbs need of a pool: `transport.pool.Pool` has it, and `transport.fake.FakePool`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from clusterctl.inventory.cluster import Cluster
from clusterctl.transport.following import Following
from clusterctl.transport.interface import Call, Reply, Request
from clusterctl.wire import Message


class Nodes(Protocol):
    """The nodes of a cluster, reachable or not."""

    cluster: Cluster

    def open(self) -> Iterator[Reply]:
        """Connect to all of them; yield each one's reply."""

    def start(self, node: str, request: Request) -> Call:
        """Start an operation on one of them."""

    def follow(self, calls: Mapping[str, Call]) -> Iterator[tuple[str, Message | Reply]]:
        """Merge the messages of calls as they come."""

    def call(
        self, requests: Mapping[str, Request], *, timeout: float | None = None
    ) -> Iterator[Reply]:
        """Run one operation on each of the nodes; yield each one's reply as it ends."""

    def following(
        self, requests: Mapping[str, Request], *, tick: float, patience: float | None = None
    ) -> Following:
        """Run one operation on each of the nodes and merge their messages as they come."""
