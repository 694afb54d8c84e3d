"""The TCP sockets of this network namespace, and which processes hold them."""

from __future__ import annotations

import os
import socket
import struct
from typing import List, NamedTuple, Set

from clusterctl.node.file_io import list_folder

_V4_MAPPED = b"\0" * 10 + b"\xff\xff"
ESTABLISHED, SYN_SENT, LISTEN = "01", "02", "0A"


class TcpSocket(NamedTuple):
    """One socket; the inode tells it from others."""

    state: str
    local_port: int
    remote_port: int
    inode: str
    uid: int
    remote: str
    """The other side's address; one of IPv4 as such, whatever the socket's family."""
    unacknowledged: int = 0
    """Bytes written that the other side has not acknowledged."""
    retransmits: int = 0
    """How often in a row the kernel has sent the same again."""


def tcp_table(text: str) -> List[TcpSocket]:
    """Parse /proc/net/tcp or tcp6."""
    rows = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        local, remote = (int(fields[n].rpartition(":")[2], 16) for n in (1, 2))
        address = _address(fields[2].rpartition(":")[0])
        unacknowledged, retransmits = int(fields[4].partition(":")[0], 16), int(fields[6], 16)
        own = fields[3], local, remote, fields[9], int(fields[7]), address
        rows.append(TcpSocket(*own, unacknowledged, retransmits))
    return rows


def _address(words: str) -> str:
    """Return an address from the kernel's form: words of 32 bits, each in the machine's order."""
    numbers = [int(words[n : n + 8], 16) for n in range(0, len(words), 8)]
    raw = struct.pack("=%dI" % len(numbers), *numbers)
    if len(numbers) == 1 or raw.startswith(_V4_MAPPED):
        return socket.inet_ntop(socket.AF_INET, raw[-4:])
    return socket.inet_ntop(socket.AF_INET6, raw)


def is_loopback(address: str) -> bool:
    """Tell whether an address is of this machine alone."""
    return address == "::1" or address.startswith("127.")


def plain_address(text: str) -> str:
    """Return an address as the kernel's tables give it here; empty for a name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return socket.inet_ntop(family, socket.inet_pton(family, text))
        except OSError:
            continue
    return ""


def read_tcp() -> List[TcpSocket]:
    """Return this network namespace's TCP sockets."""
    rows: List[TcpSocket] = []
    for name in ("tcp", "tcp6"):
        try:
            with open("/proc/net/" + name) as file:
                rows += tcp_table(file.read())
        except OSError:
            continue  # a kernel without IPv6
    return rows


def listening(port: int) -> List[TcpSocket]:
    """Return the sockets that listen on a port."""
    return [one for one in read_tcp() if one.state == LISTEN and one.local_port == port]


def socket_holders(inodes: Set[str]) -> Set[int]:
    """Return the processes that hold one of these sockets, as far as we may see."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return {pid for pid in pids if sockets_of(pid) & inodes}


def sockets_of(pid: int) -> Set[str]:
    """Return the inodes of a process's sockets; none where it has exited or is another user's."""
    folder = "/proc/%d/fd" % pid
    found: Set[str] = set()
    for name in list_folder(folder):
        try:
            target = os.readlink(os.path.join(folder, name))
        except OSError:
            continue  # closed while we looked
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found
