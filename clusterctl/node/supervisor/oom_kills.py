"""The kernel's own count of processes that its out-of-memory killer ended on this machine."""

from __future__ import annotations

from typing import Optional

VMSTAT = "/proc/vmstat"


def oom_kills() -> Optional[int]:
    """Return the count since the machine started, cgroups' limits included; None: unknown."""
    try:
        with open(VMSTAT) as file:
            for line in file:
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
    except (OSError, ValueError):
        pass
    return None
