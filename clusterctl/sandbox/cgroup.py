"""A limit on the CPU that a host gets, by a control group of either version."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from clusterctl.errors import ClusterError
from clusterctl.sandbox.layout import Layout

MOUNT = Path("/sys/fs/cgroup")
PERIOD = 100_000
"""Microseconds."""


def limit(layout: Layout, host: str, pids: set[int], percent: int | None) -> None:
    """Let processes, and what they start, have so many percent of one CPU; None: no limit.

    Raises:
        ClusterError: this machine's control groups cannot do it.
    """
    group = _root() / _name(layout, host)
    if percent is None and not group.exists():
        return
    try:
        group.mkdir(exist_ok=True)
        if (group / "cpu.cfs_quota_us").exists():
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            quota = -1 if percent is None else percent * PERIOD // 100
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            quota_text = "max" if percent is None else str(percent * PERIOD // 100)
            (group / "cpu.max").write_text(f"{quota_text} {PERIOD}")
    except OSError as error:
        raise ClusterError(f"no CPU limit can be set in {group}: {error}") from error
    for pid in pids:
        with contextlib.suppress(OSError):  # it has just gone
            (group / "cgroup.procs").write_text(str(pid))


def remove(layout: Layout) -> None:
    """Remove the control groups of this user's sandbox; its processes must be gone."""
    for root in (MOUNT / "cpu", MOUNT):
        for group in root.glob(_name(layout, "*")):
            group.rmdir()


def _root() -> Path:
    version1 = MOUNT / "cpu"
    return version1 if version1.is_dir() else MOUNT


def _name(layout: Layout, host: str) -> str:
    # A dot, which no name has: `lab` must not be taken for `lab-2`. Users may choose one name.
    return f"clusterctl-{os.getuid()}-{layout.name}.{host}"
