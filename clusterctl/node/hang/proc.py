"""What /proc tells of a rank that stands still: each thread's state and where it waits."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

from clusterctl.node.file_io import list_folder
from clusterctl.node.hang.sample import processes_of
from clusterctl.node.probe.interface_addresses import list_interfaces
from clusterctl.node.run.processes import processes
from clusterctl.node.run.processes.processes import read_proc
from clusterctl.node.tcp_sockets import ESTABLISHED, TcpSocket, is_loopback, read_tcp, sockets_of

MOST_THREADS = 256
"""Most threads of a process that are read: a rank of a large job has some dozens."""
WORD_LIMIT = 300
"""Characters of a command, a name or a path."""
MOST_CONNECTIONS = 32
MOST_KERNEL_FRAMES = 32
_FRAME = re.compile(r"^\[<[^>]*>\] ([\w.]+)", re.MULTILINE)


class Task(NamedTuple):
    """One thread, as the kernel shows it."""

    id: int
    name: str
    state: str
    ticks: int
    """CPU time in the kernel's ticks."""


def tasks_of(pid: int) -> List[Task]:
    """Return the threads of a process, the main thread first; none of one that has exited."""
    numbers = sorted(int(name) for name in list_folder("/proc/%d/task" % pid) if name.isdigit())
    found = (_task(pid, number) for number in numbers[:MOST_THREADS])
    return [task for task in found if task is not None]


def _task(pid: int, number: int) -> Optional[Task]:
    line = read_proc(pid, "task/%d/stat" % number)
    opened, closed = line.find(b"("), line.rfind(b")")
    fields = line[closed + 2 :].split()
    if len(fields) < 13:  # noqa: PLR2004
        return None
    name = shown(line[opened + 1 : closed])
    return Task(number, name, fields[0].decode(), int(fields[11]) + int(fields[12]))


def wait_of(pid: int, thread: int) -> str:
    """Return where a thread waits in the kernel; empty: it runs, or that is hidden."""
    word = shown(read_proc(pid, "task/%d/wchan" % thread))
    return "" if word == "0" else word


def kernel_frames(pid: int, thread: int) -> List[Dict[str, Any]]:
    """Return a thread's stack in the kernel, innermost first; only root may read it."""
    text = read_proc(pid, "task/%d/stack" % thread).decode("ascii", "replace")
    return [{"function": name[:WORD_LIMIT]} for name in _FRAME.findall(text)[:MOST_KERNEL_FRAMES]]


def swap_bytes(pid: int) -> int:
    """Return how much of a process's memory is swapped out."""
    words = processes.read_status(pid).get(b"VmSwap", b"").split()
    return int(words[0]) * 1024 if words and words[0].isdigit() else 0


def shown(raw: bytes) -> str:
    """Return a name of the kernel as text."""
    return raw.decode("utf-8", "backslashreplace").strip()[:WORD_LIMIT]


def processes_of_ranks(ranks: Mapping[int, int]) -> Dict[int, List[int]]:
    """Return the living processes of each rank by its pid: its own first, then what it started.

    Below a rank that is another's descendant, they are of the inner one alone.
    """
    roots = set(ranks.values())
    living = [one for one in processes.process_table().values() if not one.exited]
    found = processes_of({pid: rank for rank, pid in ranks.items()}, living)
    return {
        rank: [one.pid for one in sorted(own, key=lambda one: (one.pid not in roots, one.start))]
        for rank, own in found.items()
    }


def stuck_sockets() -> Dict[str, TcpSocket]:
    """Return the connections to other nodes whose data is not taken, by inode."""
    return {
        one.inode: one
        for one in read_tcp()
        if one.state == ESTABLISHED
        and (one.unacknowledged or one.retransmits)
        and not is_loopback(one.remote)
    }


def connections_of(pids: List[int], stuck: Mapping[str, TcpSocket]) -> List[Dict[str, Any]]:
    """Return those of these sockets that these processes hold."""
    if not stuck:
        return []
    held = {inode for pid in pids for inode in sockets_of(pid)} & stuck.keys()
    found = [stuck[inode] for inode in sorted(held)][:MOST_CONNECTIONS]
    return [
        {
            "peer": one.remote,
            "port": one.remote_port,
            "unacknowledged_bytes": one.unacknowledged,
            "retransmits": one.retransmits,
        }
        for one in found
    ]


def own_addresses() -> List[str]:
    """Return this node's addresses in its network namespace, but for the loopback's."""
    try:
        found = {each["local"] for one in list_interfaces() for each in one["addr_info"]}
    except OSError:
        return []  # a container may forbid it
    return sorted(address for address in found if not is_loopback(address))
