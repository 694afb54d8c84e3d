"""This boot of the node: what tells it from others, and the clock that counts from it."""

from __future__ import annotations

import time


def uptime() -> float:
    """Return seconds since boot, sleep included: no one sets this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Return what tells this boot from others: pids of an earlier one mean nothing."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
