"""What the processes of a rank show of its rendezvous: sockets, environments, arguments.

The job need not help. A rank is the process that we started and all below it: often a shell with
Python under it.
"""

from __future__ import annotations

import os
from typing import Dict, Iterable, List, NamedTuple, Set, Tuple

from clusterctl.node.run.processes import processes
from clusterctl.node.run.processes.environ_bytes import parse_environ
from clusterctl.node.supervisor.worlds.launcher_names import split_launcher
from clusterctl.node.tcp_sockets import LISTEN, TcpSocket, read_tcp, sockets_of

MAX_WORDS = 16384
"""Bytes of a process's arguments that are read."""


class Member(NamedTuple):
    """One process of a rank."""

    pid: int
    parent: int
    sockets: List[TcpSocket]
    environment: Dict[str, str]
    """As it was given; what the process itself changed is not seen."""
    words: List[str]
    """Its argument list."""
    threads: Tuple[str, ...] = ()
    """Those that torch named (since 2.5) in a process that listens."""

    @property
    def listens_on(self) -> List[int]:
        """The ports that it holds."""
        return [each.local_port for each in self.sockets if each.state == LISTEN]

    @property
    def has_store(self) -> bool:
        """It holds a torch store."""
        return any(name.startswith("pt_tcpstore") for name in self.threads)

    @property
    def is_launcher(self) -> bool:
        """It starts ranks: by its words, or as a program that calls torchrun's `main`."""
        return "pt_elastic" in self.threads or split_launcher(self.words) is not None


def look(pids: Iterable[int]) -> Dict[int, List[Member]]:
    """Return the living processes of these ranks, the rank's own first, by its pid.

    Raises:
        OSError: it cannot be checked now; the next time will show it.
    """
    table = processes.process_table()
    found = {}
    for pid in pids:
        own = [pid, *sorted(processes.descendants([pid], table))]
        living = (table[each] for each in own if each in table and not table[each].exited)
        found[pid] = [(process, sockets_of(process.pid)) for process in living]
    # A rank that still imports has no sockets; to read all of the node takes milliseconds.
    has_any = any(inodes for members in found.values() for _, inodes in members)
    by_inode = {each.inode: each for each in read_tcp()} if has_any else {}
    return {pid: [_member(*one, by_inode) for one in members] for pid, members in found.items()}


def _member(process: processes.Process, inodes: Set[str], by_inode: Dict[str, TcpSocket]) -> Member:
    pid = process.pid
    held = [by_inode[inode] for inode in inodes if inode in by_inode]
    raw = words = b""
    if not process.uninterruptible:  # to read these could hang
        raw = processes.read_proc(pid, "environ")
        words = processes.read_proc(pid, "cmdline")[:MAX_WORDS]
    environment = {os.fsdecode(n): os.fsdecode(v) for n, v in parse_environ(raw).items()}
    threads = _threads(pid) if any(each.state == LISTEN for each in held) else ()
    words_of = os.fsdecode(words).split("\0")
    return Member(pid, process.parent, held, environment, words_of, threads)


def _threads(pid: int) -> Tuple[str, ...]:
    try:
        tasks = os.listdir("/proc/%d/task" % pid)
    except OSError:
        return ()
    names = (os.fsdecode(processes.read_proc(pid, "task/%s/comm" % task)) for task in tasks)
    return tuple(name.strip() for name in names if name.startswith("pt_"))
