"""Finds the route of a node's packets to an address."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address, ip_network

from clusterctl.facts.nodefacts import Route


def route_to(routes: Iterable[Route], address: str) -> Route | None:
    """Return the route that the kernel takes: the longest prefix, then the lowest metric."""
    target = ip_address(address)
    best: tuple[int, int] | None = None
    chosen = None
    for route in routes:
        network = ip_network(route.destination, strict=False)
        if target.version != network.version or target not in network:
            continue
        rank = (-network.prefixlen, route.metric)
        if best is None or rank < best:
            best, chosen = rank, route
    return chosen
