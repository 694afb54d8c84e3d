"""The interfaces of this network namespace with their addresses, as `ip -j addr` names them.

The kernel is asked by netlink itself: to start a program takes ten times as long. The numbers are
those of linux/rtnetlink.h, linux/if_link.h and linux/if_addr.h.
"""

from __future__ import annotations

import _socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Tuple

RTM_GETLINK, RTM_GETADDR = 18, 22
NLM_F_REQUEST, NLM_F_DUMP = 1, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3
IFLA_IFNAME, IFLA_LINK, IFLA_EXT_MASK, IFLA_LINK_NETNSID = 3, 5, 29, 37
SKIP_STATISTICS = 8
IFA_ADDRESS, IFA_LOCAL = 1, 2
NETLINK_ROUTE = 0
HEADER, ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
LINK, ADDRESS = struct.Struct("=BxHiII"), struct.Struct("=BBBBi")
NUMBER = struct.Struct("=i")
RECEIVE_BYTES = 1 << 16
FAMILIES = (_socket.AF_INET, _socket.AF_INET6)


def list_interfaces() -> List[Dict[str, Any]]:
    """Return `ifname`, `addr_info` (`local`, `prefixlen`) and where it is on another one `link`.

    Raises:
        OSError: the kernel does not answer, or refuses.
    """
    kernel = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW, NETLINK_ROUTE)
    try:
        kernel.settimeout(1.0)
        wanted = LINK.pack(0, 0, 0, 0, 0) + ATTRIBUTE.pack(8, IFLA_EXT_MASK)
        links = dict(_links(kernel, wanted + NUMBER.pack(SKIP_STATISTICS)))
        names = {index: link["ifname"] for index, link in links.items()}
        for link in links.values():
            # A number of another namespace stands for nothing here.
            parent = link.pop("parent", None)
            if parent in names:
                link["link"] = names[parent]
        for body in dump(kernel, RTM_GETADDR, ADDRESS.pack(0, 0, 0, 0, 0)):
            family, prefix, _, _, index = ADDRESS.unpack_from(body)
            values = dict(attributes(body, ADDRESS.size))
            # On a point-to-point interface IFA_ADDRESS is the other end's.
            packed = values.get(IFA_LOCAL, values.get(IFA_ADDRESS))
            if family in FAMILIES and packed and index in links:
                found = {"local": _socket.inet_ntop(family, packed), "prefixlen": prefix}
                links[index]["addr_info"].append(found)
    finally:
        kernel.close()
    return list(links.values())


def _links(kernel: _socket.socket, wanted: bytes) -> Iterator[Tuple[int, Dict[str, Any]]]:
    for body in dump(kernel, RTM_GETLINK, wanted):
        index = LINK.unpack_from(body)[2]
        values = dict(attributes(body, LINK.size))
        name = values.get(IFLA_IFNAME, b"").rstrip(b"\0").decode("utf-8", "replace")
        link: Dict[str, Any] = {"ifname": name, "addr_info": []}
        if IFLA_LINK in values and IFLA_LINK_NETNSID not in values:
            parent = NUMBER.unpack(values[IFLA_LINK])[0]
            link.update({"parent": parent} if parent != index else {})
        yield index, link


def dump(kernel: _socket.socket, kind: int, wanted: bytes) -> Iterator[bytes]:
    """Ask for all there is of a kind, and yield each message's content."""
    head = HEADER.pack(HEADER.size + len(wanted), kind, NLM_F_REQUEST | NLM_F_DUMP, kind, 0)
    kernel.send(head + wanted)
    while True:
        data = kernel.recv(RECEIVE_BYTES)
        at = 0
        while at + HEADER.size <= len(data):
            length, found = HEADER.unpack_from(data, at)[:2]
            if found == NLMSG_DONE:
                return
            if found == NLMSG_ERROR or length < HEADER.size:
                code = NUMBER.unpack_from(data, at + HEADER.size)[0] if length > HEADER.size else 0
                raise OSError(-code, "netlink refused")
            yield data[at + HEADER.size : at + length]
            at += (length + 3) & ~3


def attributes(body: bytes, at: int) -> Iterator[Tuple[int, bytes]]:
    """Yield the kind and the value of each attribute from there on."""
    while at + ATTRIBUTE.size <= len(body):
        size, kind = ATTRIBUTE.unpack_from(body, at)
        yield kind, body[at + ATTRIBUTE.size : at + size]
        at += max(ATTRIBUTE.size, (size + 3) & ~3)
