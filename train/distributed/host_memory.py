"""How much memory this node can still give its processes: what the machine has, or its cgroups."""

from __future__ import annotations

import os
import re
from pathlib import Path

VERSION_2 = ("memory.max", "memory.current", "inactive_file", "active_file")
VERSION_1 = (
    "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file",
)  # fmt: skip
"""The files of a cgroup with its limit and its use, and what of the use is page cache."""


def physical() -> int:
    """Return the bytes of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available(root: Path = Path("/")) -> int:
    """Return the bytes that can still be used: MemAvailable, or less if a cgroup has a limit.

    Where no file has a number, as on macOS, they are all of the machine's.
    """
    left = [kib * 1024 for kib in _numbers(_text(root / "proc/meminfo"), "MemAvailable:")]
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mounted, names = root / "sys/fs/cgroup", VERSION_2
        elif "memory" in controllers.split(","):
            mounted, names = root / "sys/fs/cgroup/memory", VERSION_1
        else:
            continue
        own = mounted / path.strip("/")  # in a container it may not be mounted, but its root is
        folders = (own, *own.parents) if own.is_relative_to(mounted) else (mounted,)
        for folder in folders:
            if folder.is_relative_to(mounted):
                left += _left(folder, *names)
    return min(left, default=physical())


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _left(folder: Path, limit: str, usage: str, *cached: str) -> list[int]:
    """Return what is left of a cgroup's limit, its page cache counted as free; [] without one."""
    try:
        most = (folder / limit).read_text().strip()
        used = int((folder / usage).read_text())
        stat = (folder / "memory.stat").read_text()
    except OSError:
        return []
    if not most.isdecimal():
        return []
    return [int(most) - used + sum(sum(_numbers(stat, name)) for name in cached)]


def _numbers(text: str, name: str) -> list[int]:
    return [int(number) for number in re.findall(rf"(?m)^{name}\s+(\d+)", text)]
