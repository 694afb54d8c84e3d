"""Reads what a machine has used until now, from files of the kernel that always answer at once."""

from __future__ import annotations

import os
from typing import Dict, NamedTuple, Optional, Tuple

from clusterctl.node.file_io import read_file
from clusterctl.node.run.samples.row import Machine

_NOT_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd")
"""No disks, or made of some that are counted themselves."""
_SECTOR = 512


class Counters(NamedTuple):
    """Counts that only grow."""

    cpu_ticks: Optional[int]
    received: Optional[int]
    sent: Optional[int]
    read: Optional[int]
    written: Optional[int]
    rdma: Optional[int]


def counters(rdma: Optional[int]) -> Counters:
    """Read them; `rdma` is read by another."""
    received, sent = _network()
    read, written = _disks()
    return Counters(_busy_ticks(), received, sent, read, written, rdma)


def use_between(before: Counters, now: Counters, seconds: float) -> Machine:
    """Return what was used in between, and the memory in use now."""
    rates = [
        None if old is None or new is None else round(max(0, new - old) / seconds)
        for old, new in zip(before, now)
    ]
    ticks, *others = rates
    cpu = None if ticks is None else round(100 * ticks / os.sysconf("SC_CLK_TCK"))
    total, free = memory()
    return Machine(cpu, None if total is None or free is None else total - free, *others)


def memory() -> Tuple[Optional[int], Optional[int]]:
    """Return the bytes of all memory, and of what programs could still have."""
    found: Dict[str, int] = {}
    for line in read_file("/proc/meminfo").decode("ascii", "replace").splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            found[name] = 1024 * int(rest.split()[0])
    return found.get("MemTotal"), found.get("MemAvailable")


def _busy_ticks() -> Optional[int]:
    words = read_file("/proc/stat").decode("ascii", "replace").split(None, 10)
    if len(words) < 9 or words[0] != "cpu":  # noqa: PLR2004
        return None
    user, nice, system, _idle, _wait, *rest = map(int, words[1:8])
    return user + nice + system + sum(rest)


def _network() -> Tuple[Optional[int], Optional[int]]:
    """Return what all cards have received and sent; in a container, what its interfaces have."""
    found = {}
    for line in read_file("/proc/net/dev").decode("ascii", "replace").splitlines()[2:]:
        name, _, counts = line.partition(":")
        words = counts.split()
        if name.strip() != "lo" and len(words) > 8:  # noqa: PLR2004
            found[name.strip()] = int(words[0]), int(words[8])
    # A bridge, a bond and a VLAN count again what their cards do.
    cards = [each for name, each in found.items() if os.path.exists(_DEVICE % name)]
    counted = cards or list(found.values())
    if not counted:
        return None, None
    return sum(each[0] for each in counted), sum(each[1] for each in counted)


def _disks() -> Tuple[Optional[int], Optional[int]]:
    try:
        disks = {name for name in os.listdir("/sys/block") if not name.startswith(_NOT_DISKS)}
    except OSError:
        return None, None
    lines = (
        line.split()
        for line in read_file("/proc/diskstats").decode("ascii", "replace").splitlines()
    )
    counted = [words for words in lines if len(words) > 9 and words[2] in disks]  # noqa: PLR2004
    if not counted:
        return None, None
    read, written = (_SECTOR * sum(int(words[place]) for words in counted) for place in (5, 9))
    return read, written


_DEVICE = "/sys/class/net/%s/device"
