"""The TCP sockets of this network namespace, and which processes hold them."""

from __future__ import annotations

import os
from typing import List, NamedTuple, Set

from clusterctl.node.file_io import list_folder

ESTABLISHED, SYN_SENT, LISTEN = "01", "02", "0A"


class TcpSocket(NamedTuple):
    """One socket; the inode tells it from others."""

    state: str
    local_port: int
    remote_port: int
    inode: str
    uid: int


def tcp_table(text: str) -> List[TcpSocket]:
    """Parse /proc/net/tcp or tcp6."""
    rows = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        local, remote = (int(fields[n].rpartition(":")[2], 16) for n in (1, 2))
        rows.append(TcpSocket(fields[3], local, remote, fields[9], int(fields[7])))
    return rows


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
    """Return the inodes of a process's sockets; none where it is gone or another's."""
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
