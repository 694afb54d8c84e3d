"""Samples what a rank and its processes have done: output, bytes, CPU time. Cheap: a few reads.

What the kernel counts as read and written (`/proc/PID/io`) has files and pipes, but nothing that a
program sends or receives by the calls for sockets: bytes of TCP connections are read apart, and
those of RDMA devices for the whole node.
"""

from __future__ import annotations

import glob
import os
import socket
import struct
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from clusterctl.node.hang.life import Moved
from clusterctl.node.hang.quota import quota_of
from clusterctl.node.probe.interface_addresses import attributes, dump
from clusterctl.node.run.processes.processes import Process, ProcessKey, read_proc, read_status
from clusterctl.node.tcp_sockets import is_loopback, sockets_of

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
RDMA = "/sys/class/infiniband"

_SOCK_DIAG, _BY_FAMILY = 4, 20
_ESTABLISHED, _INFO = 1 << 1, 2
_SOCKET, _REMOTE_AT, _INODE_AT = 72, 24, 68
"""Of linux/inet_diag.h: the size of a message before its attributes, and places in it."""
_BYTES_AT, _BYTES = 120, struct.Struct("=QQ")
"""Of linux/tcp.h: the bytes that were acknowledged, and those that were received."""


class RankSample(NamedTuple):
    """A rank at one moment."""

    moment: float
    log: Tuple[int, int]
    """Size of its log, and when that was written."""
    ticks: Dict[ProcessKey, int]
    """CPU time of each process."""
    files: Dict[ProcessKey, int]
    """Bytes that each has read and written."""
    main: Dict[ProcessKey, Tuple[float, float]]
    """For how long the main thread of each has run, and has waited for a CPU."""
    switches: Dict[ProcessKey, int]
    """Of each that is stuck in the kernel now: how often it has waited for something."""
    held_back: float
    """Seconds for which the quota of its control group was used up."""


def sample_rank(
    moment: float, log: str, own: Sequence[Process], before: Optional[RankSample] = None
) -> RankSample:
    """Return what a rank has done until now; `own` are its processes."""
    known_bytes = before.files if before is not None else {}
    try:
        found = os.stat(log)
        written = found.st_size, found.st_mtime_ns
    except OSError:
        written = 0, 0
    return RankSample(
        moment,
        written,
        {process.key: process.ticks for process in own},
        {
            # To ask about a process that is stuck in the kernel, as in exec, can hang the reader.
            process.key: known_bytes.get(process.key, 0)
            if process.uninterruptible
            else _file_bytes(process.pid)
            for process in own
        },
        {process.key: _main_thread(process) for process in own},
        {process.key: _switches(process.pid) for process in own if process.uninterruptible},
        quota_of(own[0].pid).seconds if own else 0.0,
    )


def difference(before: RankSample, now: RankSample, others: int = 0) -> Moved:
    """Return what a rank did between two samples; `others`: bytes that moved otherwise.

    A process that is new is counted from its start. To wait for a core counts as CPU time: a rank
    that gets none on a busy machine waits for no other rank.
    """
    ticks = _growth(before.ticks, now.ticks)
    known = {key: queued for key, (_, queued) in before.main.items()}
    waits = (queued - known.get(key, 0.0) for key, (_, queued) in now.main.items())
    return Moved(
        seconds=max(now.moment - before.moment, 0.001),
        printed=now.log != before.log,
        bytes=_growth(before.files, now.files) + others,
        # Who writes to a slow disk is stuck whenever we look, so its bytes are never asked for.
        stores=any(count > before.switches.get(key, count) for key, count in now.switches.items()),
        cpu=ticks / TICKS_PER_SECOND + sum(max(0.0, wait) for wait in waits),
    )


class OwnTime(NamedTuple):
    """For how many seconds the main thread of a rank's busiest process had work of its own."""

    ran: float = 0.0
    queued: float = 0.0
    """It wanted a CPU, and got none."""
    disk: float = 0.0
    """It waited uninterruptibly: for a disk, a file server, or memory from swap."""
    stopped: float = 0.0
    """A signal or a debugger had stopped it."""

    @property
    def all(self) -> float:
        """All of these."""
        return sum(self)


def own_time(before: RankSample, now: RankSample, halts: Halts) -> OwnTime:
    """Return what a rank did for itself between two samples: the rest of the time, it waited."""
    seconds = max(now.moment - before.moment, 0.001)
    found = []
    # Some kernels do not count what is held back as waiting for a CPU.
    held_back = min(seconds, now.held_back - before.held_back)
    for key, (ran, queued) in now.main.items():
        if key in before.main:
            known_ran, known_queued = before.main[key]
            did = min(seconds, ran - known_ran)
            wanted = min(seconds - did, max(queued - known_queued, held_back))
            # What was seen at some moments may be more than there was time for.
            disk, stopped = halts.of(key)
            rest = min(seconds, (seconds - did - wanted) / ((disk + stopped) or 1.0))
            found.append(OwnTime(did, wanted, disk * rest, stopped * rest))
    return max(found, key=lambda one: one.all, default=OwnTime())


class Halts:
    """How often processes were seen stuck in the kernel, or stopped, since the last sample."""

    def __init__(self) -> None:
        """Nothing was seen so far."""
        self._looks = 0
        self._seen: Dict[Tuple[ProcessKey, str], int] = {}

    def see(self, living: Sequence[Process]) -> None:
        """Look at the states of all processes."""
        self._looks += 1
        for process in living:
            if process.state in "DTt":
                key = process.key, process.state.upper()
                self._seen[key] = self._seen.get(key, 0) + 1

    def of(self, key: ProcessKey) -> Tuple[float, float]:
        """Return the share of the looks at which a process was in state D, and stopped."""
        looks = max(1, self._looks)
        return self._seen.get((key, "D"), 0) / looks, self._seen.get((key, "T"), 0) / looks


def _growth(before: Dict[ProcessKey, int], now: Dict[ProcessKey, int]) -> int:
    return sum(max(0, count - before.get(key, 0)) for key, count in now.items())


def _switches(pid: int) -> int:
    return int(read_status(pid).get(b"voluntary_ctxt_switches", b"0"))


def _main_thread(process: Process) -> Tuple[float, float]:
    words = read_proc(process.pid, "schedstat").split()  # a process's is that of its main thread
    if len(words) < 2 or words[0] == b"0":  # noqa: PLR2004  (a kernel without it: all its threads)
        return process.ticks / TICKS_PER_SECOND, 0.0
    return int(words[0]) / 1e9, int(words[1]) / 1e9


def _file_bytes(pid: int) -> int:
    fields = [line.split() for line in read_proc(pid, "io").splitlines()]
    # What a memory map reads is counted in read_bytes alone.
    wanted = (b"rchar:", b"wchar:", b"read_bytes:")
    return sum(int(words[1]) for words in fields if len(words) > 1 and words[0] in wanted)


def processes_of(roots: Dict[int, int], living: Sequence[Process]) -> Dict[int, List[Process]]:
    """Return the processes of each rank, by it; `roots`: rank by the pid of its own process."""
    parents = {process.pid: process.parent for process in living}
    found: Dict[int, List[Process]] = {rank: [] for rank in roots.values()}
    for process in living:
        pid: Optional[int] = process.pid
        while pid is not None and pid not in roots:
            pid = parents.get(pid)
        if pid is not None:
            found[roots[pid]].append(process)
    return found


def tcp_bytes() -> Dict[str, int]:
    """Return what each TCP connection to another machine has moved, by inode; as far as known.

    Both directions: what is acknowledged there, and what was received.
    """
    found: Dict[str, int] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            found.update(_ask_kernel(family))
        except (OSError, struct.error):
            continue  # a kernel without it, or a container that forbids it
    return found


def socket_bytes(table: Dict[str, int], own: Sequence[Process]) -> Dict[str, int]:
    """Return the part of a table that these processes' connections have."""
    held = {inode for process in own for inode in sockets_of(process.pid)}
    return {inode: table[inode] for inode in held & table.keys()}


def moved_by(before: Dict[str, int], now: Dict[str, int]) -> int:
    """Return the bytes that connections which were there before have moved since."""
    return sum(max(0, count - before.get(inode, count)) for inode, count in now.items())


def rdma_bytes() -> int:
    """Return what this machine's RDMA devices have received; InfiniBand counts words of 4 bytes."""
    total = 0
    for path in glob.glob(RDMA + "/*/ports/*/counters/port_rcv_data"):
        try:
            with open(path) as file:
                total += 4 * int(file.read())
        except (OSError, ValueError):
            continue
    return total


def _ask_kernel(family: int) -> Iterator[Tuple[str, int]]:
    request = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _ESTABLISHED)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        for body in dump(kernel, _BY_FAMILY, request + bytes(48)):
            info = dict(attributes(body, _SOCKET)).get(_INFO, b"")
            if len(info) < _BYTES_AT + _BYTES.size or _is_here(family, body[_REMOTE_AT:]):
                continue
            inode = struct.unpack_from("=I", body, _INODE_AT)[0]
            yield str(inode), sum(_BYTES.unpack_from(info, _BYTES_AT))


def _is_here(family: int, remote: bytes) -> bool:
    raw = remote[: 4 if family == socket.AF_INET else 16]
    text = socket.inet_ntop(family, raw).lower()
    return is_loopback(text.removeprefix("::ffff:"))
