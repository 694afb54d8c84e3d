"""Which ranks have reached the rendezvous, told from their sockets: no help from the job needed."""

from __future__ import annotations

import os
from typing import Dict, Iterable, List, Set, Tuple

from clusterctl.node.run import processes

ESTABLISHED, SYN_SENT, LISTEN = "01", "02", "0A"

Row = Tuple[str, int, int, str]
"""State, local port, remote port, inode."""


def tcp_table(text: str) -> List[Row]:
    """Parse /proc/net/tcp or tcp6."""
    rows = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        local, remote = (int(fields[n].rpartition(":")[2], 16) for n in (1, 2))
        rows.append((fields[3], local, remote, fields[9]))
    return rows


def read_tcp() -> List[Row]:
    """Return this network namespace's TCP sockets."""
    rows: List[Row] = []
    for name in ("tcp", "tcp6"):
        try:
            with open("/proc/net/" + name) as file:
                rows += tcp_table(file.read())
        except OSError:
            continue  # a kernel without IPv6
    return rows


def listening(port: int) -> Set[str]:
    """Return the inodes of the sockets that listen on a port."""
    return {row[3] for row in read_tcp() if row[0] == LISTEN and row[1] == port}


def holders(inodes: Set[str]) -> Set[int]:
    """Return the processes that hold one of these sockets, as far as we may see."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return {pid for pid in pids if sockets_of(pid) & inodes}


def sockets_of(pid: int) -> Set[str]:
    """Return the inodes of a process's sockets; none where it is gone or another's."""
    folder = "/proc/%d/fd" % pid
    found: Set[str] = set()
    try:
        names = os.listdir(folder)
    except OSError:
        return found
    for name in names:
        try:
            target = os.readlink(os.path.join(folder, name))
        except OSError:
            continue  # closed while we looked
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found


def joined(pids: Iterable[int], port: int) -> Set[int]:
    """Return which of these ranks are connected to the master's port, or hold it."""
    rows = read_tcp()
    connected = {row[3] for row in rows if row[0] == ESTABLISHED and row[2] == port}
    return _with_sockets(pids, connected | {r[3] for r in rows if r[0] == LISTEN and r[1] == port})


def trying(pids: Iterable[int], port: int) -> Set[int]:
    """Return which of these ranks are connecting to the master's port and get no answer."""
    return _with_sockets(pids, {r[3] for r in read_tcp() if r[0] == SYN_SENT and r[2] == port})


def _with_sockets(pids: Iterable[int], inodes: Set[str]) -> Set[int]:
    """Return which of these hold one of the sockets.

    A rank is the process that we started and all below it: often a shell with Python under it.
    """
    if not inodes:
        return set()
    try:
        table: Dict[int, processes.Process] = processes.everything()
    except OSError:
        return set()  # nobody can look now; the next time will show it
    return {
        pid
        for pid in pids
        if any(sockets_of(each) & inodes for each in {pid} | processes.descendants([pid], table))
    }
