"""Finds why a rank is slow on its node: what slows it down, or takes its CPUs, disk or network.

It reads the counters of the whole machine twice, in a process of its own.
"""

from __future__ import annotations

import glob
import os
import time
from typing import Collection, Dict, Iterable, Mapping, NamedTuple, Optional, Sequence, Tuple

from clusterctl.node.file_io import read_file
from clusterctl.node.hang.gpus import throttled_gpus
from clusterctl.node.hang.proc import swap_bytes
from clusterctl.node.hang.quota import Quota, quota_of
from clusterctl.node.hang.sample import TICKS_PER_SECOND, OwnTime
from clusterctl.node.run.processes import processes
from clusterctl.node.run.processes.processes import Process, read_proc

SECONDS = 4.0
"""Between the two readings."""
NONE = "no reason found on the node"
COUNTERS = {
    "/sys/class/net/*/statistics": ("rx_errors", "tx_errors", "rx_crc_errors", "rx_missed_errors"),
    "/sys/class/infiniband/*/ports/*/counters": (
        "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors",
        "local_link_integrity_errors",
    ),
}  # fmt: skip
"""What only grows if something is wrong; packets that are dropped are not among it."""
SHARE = 0.1
"""The share of the time from which on something counts as the reason."""
NEIGHBORS = 0.3
"""Cores that others' processes use, from which on they are in the way."""
FAULTS = 20.0
"""Pages a second that come from a disk."""
NAME_LIMIT = 80
_USER, _NICE, _SYSTEM, _IRQ, _SOFTIRQ, _STEAL = 0, 1, 2, 5, 6, 7
"""Columns of /proc/stat."""
_MAJOR_FAULTS, _NICENESS = 9, 16
"""Fields of /proc/PID/stat, counted from the state."""


class Reading(NamedTuple):
    """Counters at one moment; all but the last only grow."""

    moment: float
    busy: float
    """Core seconds of all programs on the machine."""
    stolen: float
    """Core seconds that the hypervisor gave to others."""
    run: Dict[int, int]
    """CPU time of each process of the run, in ticks."""
    others: Dict[int, Tuple[int, str]]
    """CPU time of each process that is not of the run, in ticks, and its name."""
    quota: Quota
    """Of the rank's control group."""
    faults: int
    """Pages of the rank that came from a disk."""
    errors: Dict[str, int]
    """Of each network device."""
    swapped: int = 0
    """Bytes of the rank that are swapped out."""


class Node(NamedTuple):
    """What does not change meanwhile."""

    cores: int
    nice: int
    """Of the rank: above 0, others run first."""
    throttled: Sequence[str] = ()
    """GPUs that are slowed down, in words."""


def find_reason(root: int, share: OwnTime, *, on_gpu: bool, seconds: float = SECONDS) -> str:
    """Return in words why a rank is slow; takes some seconds.

    Args:
        root: the pid of its own process.
        share: for which shares of the time it ran, and so on.
        on_gpu: it uses GPUs.
        seconds: how long to watch the machine.
    """
    before = read(root)
    rank = {root} | processes.descendants([root], processes.process_table())
    gpus = throttled_gpus(rank) if on_gpu else ()
    node = Node(os.cpu_count() or 1, _stat(root, _NICENESS), gpus)
    time.sleep(seconds)
    return reason(before, read(root), share, node)


def reason(before: Reading, now: Reading, share: OwnTime, node: Node) -> str:
    """Return in words why a rank is slow; the most certain reason first. Pure."""
    seconds = max(0.001, now.moment - before.moment)
    faults = (now.faults - before.faults) / seconds
    periods = max(1, now.quota.periods - before.quota.periods)
    used_up = (now.quota.used_up - before.quota.used_up) / periods
    stolen = (now.stolen - before.stolen) / seconds / node.cores
    if share.stopped >= SHARE:
        return "a signal or a debugger has it stopped for %s of the time" % _percent(share.stopped)
    if node.throttled:
        return "; ".join(node.throttled)
    if used_up >= SHARE:
        return "its CPU quota is used up in %s of the periods" % _percent(used_up)
    if faults >= FAULTS and now.swapped:
        return "its memory is swapped out: %.0f pages a second come back from the disk" % faults
    if stolen >= SHARE:
        return "the hypervisor gives %s of the CPU time to others (steal)" % _percent(stolen)
    disk = "it waits for a disk or a file server for %s of the time" % _percent(share.disk)
    waits = [(share.queued, _neighbors(before, now, seconds, node)), (share.disk, disk)]
    told = [words for part, words in sorted(waits, reverse=True) if part >= SHARE]
    return next(iter(told), "") or _errors(before, now, seconds) or NONE


def _neighbors(before: Reading, now: Reading, seconds: float, node: Node) -> str:
    """Say who uses the CPUs that a rank waits for."""
    own = sum(ticks - before.run.get(pid, 0) for pid, ticks in now.run.items())
    others = max(0.0, now.busy - before.busy - own / TICKS_PER_SECOND) / seconds
    grown = {
        pid: ticks - before.others.get(pid, (0, ""))[0] for pid, (ticks, _) in now.others.items()
    }
    first = max(grown, key=lambda pid: grown[pid], default=None)
    nice = ", and it runs at nice %d" % node.nice if node.nice > 0 else ""
    if others < NEIGHBORS:
        return "it waits for a CPU, and the run's own processes use them" + nice
    text = "other processes use %.1f of %d cores" % (others, node.cores)
    if first is None or grown[first] < SHARE * seconds * TICKS_PER_SECOND:
        return text + nice  # those of another container are hidden
    return "%s, %s (pid %d) the most%s" % (text, now.others[first][1], first, nice)


def _errors(before: Reading, now: Reading, seconds: float) -> str:
    grown = {
        name: count - before.errors[name]
        for name, count in now.errors.items()
        if count > before.errors.get(name, count)
    }
    worst = max(grown, key=lambda name: grown[name], default=None)
    if worst is None:
        return ""
    return "the errors of %s grow: %.3g a second" % (worst[:NAME_LIMIT], grown[worst] / seconds)


def _percent(share: float) -> str:
    return "%.0f %%" % (100 * min(1.0, share))


def read(root: int) -> Reading:
    """Read the counters of the machine, of the run, and of the rank with this process."""
    table = processes.process_table()
    rank = {root} | processes.descendants([root], table)
    supervisor = os.getppid()  # this runs in a child of it
    run = {supervisor} | processes.descendants([supervisor], table)
    busy, stolen = machine_time(read_file("/proc/stat").decode("ascii", "replace"))
    return Reading(
        moment=time.monotonic(),
        busy=busy,
        stolen=stolen,
        run={pid: table[pid].ticks for pid in run if pid in table},
        others=_others(table, run),
        quota=quota_of(root),
        faults=sum(_stat(pid, _MAJOR_FAULTS) for pid in rank),
        errors=_error_counters(),
        swapped=sum(map(swap_bytes, rank)),
    )


def _others(table: Mapping[int, Process], run: Collection[int]) -> Dict[int, Tuple[int, str]]:
    return {
        pid: (one.ticks, read_proc(pid, "comm").decode("utf-8", "backslashreplace").strip())
        for pid, one in table.items()
        if pid not in run and one.ticks
    }


def machine_time(text: str) -> Tuple[float, float]:
    """Return the core seconds of all programs, and those that were stolen, by /proc/stat."""
    columns = [int(word) for word in text.partition("\n")[0].split()[1:]]
    columns += [0] * (_STEAL + 1 - len(columns))
    busy = sum(columns[each] for each in (_USER, _NICE, _SYSTEM, _IRQ, _SOFTIRQ))
    return busy / TICKS_PER_SECOND, columns[_STEAL] / TICKS_PER_SECOND


def _stat(pid: int, at: int) -> int:
    """Return a field of /proc/PID/stat, counted from the state; 0 if it cannot be read."""
    fields = read_proc(pid, "stat").rpartition(b")")[2].split()
    return int(fields[at]) if len(fields) > at else 0


def _error_counters() -> Dict[str, int]:
    found: Dict[str, int] = {}
    for pattern, names in COUNTERS.items():
        for folder in glob.glob(pattern):
            parts = folder.split("/")
            count = _sum(os.path.join(folder, name) for name in names)
            if count is not None and parts[4] != "lo":
                found[parts[4]] = found.get(parts[4], 0) + count
    return found


def _sum(paths: Iterable[str]) -> Optional[int]:
    texts = [read_file(path).strip() for path in paths]
    known = [int(text) for text in texts if text.isdigit()]
    return sum(known) if known else None
