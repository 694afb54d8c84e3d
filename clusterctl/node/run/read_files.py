"""Reads what a run's folder keeps, also for operations that must start quickly."""

from __future__ import annotations

import time

from clusterctl.wire import from_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional


def uptime() -> float:
    """Return seconds since boot, sleep included: no one sets this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Return what tells this boot from others: pids of an earlier one mean nothing."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def end_time(end: Optional[Dict[str, Any]]) -> Optional[float]:
    """Return when a part was over, by its end; earlier versions kept only when the end began."""
    return (end or {}).get("over") or (end or {}).get("time")


def read_json(path: str) -> Optional[Dict[str, Any]]:
    """Return a JSON file's object, None where there is none (yet)."""
    try:
        with open(path, "rb") as file:
            value = from_json(file.read().strip())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
