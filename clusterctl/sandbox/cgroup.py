"""Limits the CPU of a host with a control group, version 1 or 2."""

import contextlib
import os
from pathlib import Path

from clusterctl.errors import ClusterError
from clusterctl.sandbox.layout import Layout

MOUNT = Path("/sys/fs/cgroup")
PERIOD = 100_000
"""Microseconds."""


def limit(layout: Layout, host: str, pids: set[int], percent: int | None) -> None:
    """Limit processes and their children to a percentage of one CPU; None: no limit."""
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
        raise ClusterError(f"cannot set a CPU limit in {group}: {error}") from error
    for pid in pids:
        with contextlib.suppress(OSError):  # it has just exited
            (group / "cgroup.procs").write_text(str(pid))


def remove(layout: Layout) -> None:
    """Remove the control groups of this user's sandbox; its processes must have exited."""
    for root in (MOUNT / "cpu", MOUNT):
        for group in root.glob(_name(layout, "*")):
            group.rmdir()


def _root() -> Path:
    version1 = MOUNT / "cpu"
    return version1 if version1.is_dir() else MOUNT


def _name(layout: Layout, host: str) -> str:
    # No name has a dot, so `lab` never matches `lab-2`. Two users may choose the same name.
    return f"clusterctl-{os.getuid()}-{layout.name}.{host}"
