"""Asks the kernel which interface packets leave through: it knows all tables and policy rules."""

from __future__ import annotations

import _socket
import struct

from clusterctl.node.address_family import address_family

RTM_NEWROUTE, RTM_GETROUTE = 24, 26
NLM_F_REQUEST = 1
RTA_DST, RTA_SRC, RTA_OIF = 1, 2, 4
NETLINK_ROUTE = 0
HEADER, ROUTE, ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=8BI"), struct.Struct("=HH")
INTEGER = struct.Struct("=HHI")
"""An attribute whose value is a number."""


def outgoing_interface(source: str, target: str) -> str:
    """Return the interface of the route from an own address; empty if the kernel does not say."""
    family = address_family(target)
    addresses = [_socket.inet_pton(family, each) for each in (target, source)]
    bits = 8 * len(addresses[0])
    body = ROUTE.pack(family, bits, bits, 0, 0, 0, 0, 0, 0)
    for kind, address in zip((RTA_DST, RTA_SRC), addresses):
        body += ATTRIBUTE.pack(ATTRIBUTE.size + len(address), kind) + address
    head = HEADER.pack(HEADER.size + len(body), RTM_GETROUTE, NLM_F_REQUEST, 1, 0)
    kernel = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW, NETLINK_ROUTE)
    try:
        kernel.settimeout(1.0)
        kernel.send(head + body)
        return _interface_of(kernel.recv(8192))
    finally:
        kernel.close()


def _interface_of(answer: bytes) -> str:
    length, kind = HEADER.unpack_from(answer)[:2]
    at = HEADER.size + ROUTE.size
    while kind == RTM_NEWROUTE and at + INTEGER.size <= min(length, len(answer)):
        size, attribute, value = INTEGER.unpack_from(answer, at)
        if attribute == RTA_OIF:
            return _socket.if_indextoname(value)
        at += max(ATTRIBUTE.size, (size + 3) & ~3)
    return ""
