"""Which ranks have reached the rendezvous, by their sockets: the job need not help."""

from __future__ import annotations

from typing import Dict, Iterable, Set

from clusterctl.node.run import processes
from clusterctl.node.tcp_sockets import (
    ESTABLISHED,
    SYN_SENT,
    TcpSocket,
    listening,
    read_tcp,
    sockets_of,
)


def joined(pids: Iterable[int], port: int) -> Set[int]:
    """Return which of these ranks are connected to the master's port, or hold it."""
    there = [each for each in read_tcp() if (each.state, each.remote_port) == (ESTABLISHED, port)]
    return _with_sockets(pids, [*there, *listening(port)])


def connecting(pids: Iterable[int], port: int) -> Set[int]:
    """Return which of these ranks are connecting to the master's port and get no answer."""
    waiting = [each for each in read_tcp() if (each.state, each.remote_port) == (SYN_SENT, port)]
    return _with_sockets(pids, waiting)


def _with_sockets(pids: Iterable[int], sockets: Iterable[TcpSocket]) -> Set[int]:
    """Return which of these hold one of the sockets.

    A rank is the process that we started and all below it: often a shell with Python under it.
    """
    inodes = {each.inode for each in sockets}
    if not inodes:
        return set()
    try:
        table: Dict[int, processes.Process] = processes.process_table()
    except OSError:
        return set()  # nobody can look now; the next time will show it
    return {
        pid
        for pid in pids
        if any(sockets_of(each) & inodes for each in {pid} | processes.descendants([pid], table))
    }
