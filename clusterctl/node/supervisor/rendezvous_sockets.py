"""Which ranks have reached the rendezvous, told from their sockets: no help from the job needed."""

from __future__ import annotations

from typing import Dict, Iterable, Set

from clusterctl.node.run import processes
from clusterctl.node.tcp_sockets import ESTABLISHED, LISTEN, SYN_SENT, read_tcp, sockets_of


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
        table: Dict[int, processes.Process] = processes.process_table()
    except OSError:
        return set()  # nobody can look now; the next time will show it
    return {
        pid
        for pid in pids
        if any(sockets_of(each) & inodes for each in {pid} | processes.descendants([pid], table))
    }
