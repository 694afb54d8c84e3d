"""What is on the cards, by nvidia-smi: read before the first step and after the last."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass

QUERY_SECONDS = 20.0
SETTLE_SECONDS = 10.0
"""The driver frees a killed process's memory after it has ended."""
SAME_MIB = 64
"""Memory that may differ without a process on the card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """Compute processes and used memory of all cards."""

    processes: frozenset[str] = frozenset()
    used_mib: tuple[int, ...] = ()
    error: str = ""
    """Why nothing is known."""


def read() -> Cards:
    """Ask nvidia-smi."""
    try:
        processes = _query("--query-compute-apps=pid,gpu_uuid,process_name")
        used = _query("--query-gpu=memory.used")
        return Cards(processes=frozenset(processes), used_mib=tuple(map(int, used)))
    except subprocess.TimeoutExpired:
        return Cards(error=f"nvidia-smi did not end within {QUERY_SECONDS:g} s")
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        return Cards(error=f"nvidia-smi: {error}")


def _query(what: str) -> list[str]:
    argv = ["nvidia-smi", what, "--format=csv,noheader,nounits"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=QUERY_SECONDS, check=True)
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def left(before: Cards) -> tuple[str, ...]:
    """Wait until the cards are as before; return what is on them besides."""
    until = time.monotonic() + SETTLE_SECONDS
    while (found := difference(before, read())) and time.monotonic() < until:
        time.sleep(0.5)
    return found


def difference(before: Cards, after: Cards) -> tuple[str, ...]:
    """Return what is on the cards after that was not before; an unread card is no clean one."""
    if before.error or after.error:
        return (before.error or after.error,)
    found = [f"process {each}" for each in sorted(after.processes - before.processes)]
    for number, (was, now) in enumerate(zip(before.used_mib, after.used_mib, strict=True)):
        if now > was + SAME_MIB:
            found.append(f"GPU {number}: {now} MiB used, {was} MiB before")
    return tuple(found)
