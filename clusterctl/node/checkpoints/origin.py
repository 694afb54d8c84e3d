"""Which run wrote a checkpoint, by the times of its files and of the runs on this node.

What was written belongs to the last run that began before: a node carries one run at a time in a
folder. Runs that share a machine, each with GPUs and a folder of its own, do not count.
All times are compared on one clock, the node's: its runs' folders have it; what only the
controller knows comes with the controller's present time; and on network storage, whose server
may stamp files by a clock of its own, one empty file shows how far that clock is off.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Callable, Dict, NamedTuple, Optional

from clusterctl.node.file_io import list_folder, read_json
from clusterctl.node.run.run_paths import default_state_folder, end_time, run_folders
from clusterctl.node.run_lock import conflict

_LOCAL = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "tmpfs"}
    | {"vfat", "xfs", "zfs"}
)
"""Filesystems whose files are stamped by this machine's own clock."""
_GRAIN = 0.1
"""Seconds by which a file's time may be off on any system."""
_AFTER_END = 1.0
"""Seconds after a run's end in which what it wrote may still get its time."""


class Writer(NamedTuple):
    """Who wrote a checkpoint."""

    run: str
    """Empty: no run that is known of."""
    older: bool = False
    """It was written before the run that is asked about began."""


class _Run(NamedTuple):
    run: str
    began: float
    ended: Optional[float]
    world_size: Optional[int]
    lock: str = ""
    workdir: str = ""


class Origin:
    """The runs that may have written a checkpoint in one folder."""

    def __init__(self, args: Dict[str, Any], folder: str) -> None:
        """Learn of the runs.

        Args:
            args: `cluster`, `run`, `node`, perhaps `state`: where this node keeps the run that
                is asked about; `ancestors`: it and those that it resumes, each with `run` and
                `began` by the controller's clock and its `world_size`; `now`: that clock's time.
            folder: where the checkpoints are.
        """
        here = _runs_here(args)
        self.has_run = args.get("run") in here
        """The run that is asked about was on this node."""
        ahead = time.time() - float(args.get("now") or time.time())
        for one in args.get("ancestors") or ():
            if one["run"] not in here and one.get("began"):
                began, size = float(one["began"]) + ahead, one.get("world_size")
                here[one["run"]] = _Run(one["run"], began, None, size)
        this_run = here.get(str(args.get("run")))
        self._began = this_run.began if this_run else 0.0
        runs = [run for run in here.values() if this_run is None or not _may_overlap(run, this_run)]
        self._runs = sorted(runs, key=lambda run: run.began)
        self._sizes = {run.run: run.world_size for run in self._runs}
        self._ahead = storage_clock_skew(folder)

    def world_size(self, run: str) -> Optional[int]:
        """Return how many ranks a run had; None: that is not known."""
        return self._sizes.get(run)

    def writer(self, written: float, recorded_run: str = "") -> Writer:
        """Return who wrote what has this time; `recorded_run`: what the checkpoint itself says."""
        written -= self._ahead
        older = written < self._began
        if recorded_run:
            return Writer(recorded_run, older)
        last: Optional[_Run] = None
        for run in self._runs:
            if run.began <= written:
                last = run
        if last is None or (last.ended is not None and written > last.ended + _AFTER_END):
            return Writer("", older)
        return Writer(last.run, older)


def _runs_here(args: Dict[str, Any]) -> Dict[str, _Run]:
    """Return all runs of this user that this node has a folder of, of any cluster."""
    found: Dict[str, _Run] = {}
    root = args.get("state") or default_state_folder()
    for paths in (paths for cluster in list_folder(root) for paths in run_folders(root, cluster)):
        saved = read_json(paths.supervisor)
        began = saved.get("began") or _time_of(paths.job)
        if began is None:
            continue
        name = os.path.basename(os.path.dirname(paths.folder))
        ended = end_time(read_json(paths.end))
        job = read_json(paths.job)
        lock, workdir = str(job.get("lock") or ""), str(job.get("workdir") or "")
        if name in found:  # two nodes of one machine
            began = min(began, found[name].began)
            ends = (ended, found[name].ended)
            ended = max(end for end in ends if end) if all(ends) else None
        found[name] = _Run(name, began, ended, job.get("world_size"), lock, workdir)
    return found


def _may_overlap(one: _Run, other: _Run) -> bool:
    """Tell whether two runs may have lived at once, each in a folder of its own."""
    known = one.lock and other.lock and one.workdir != other.workdir
    return bool(known) and not conflict(one.lock, other.lock)


def _time_of(path: str) -> Optional[float]:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


def storage_clock_skew(folder: str, clock: Callable[[], float] = time.time) -> float:
    """Return how many seconds the clock that stamps files in a folder is ahead of `clock`.

    On a local filesystem that is this machine's own. On others it takes an empty file, removed
    at once; if none can be made the clocks are taken for equal.
    """
    if clock is time.time and filesystem_of(folder) in _LOCAL:
        return 0.0
    path = os.path.join(folder, ".clusterctl-clock-%d-%d" % (os.getpid(), time.time_ns()))
    try:
        before = clock()
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            os.write(descriptor, b"\n")
            os.fsync(descriptor)
            stamped = os.fstat(descriptor).st_mtime
        finally:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                os.unlink(path)
    except OSError:
        return 0.0
    off_by = clock() - before
    ahead = stamped - before
    # Between the two looks at the clock the file may have got its time whenever.
    return 0.0 if -_GRAIN <= ahead <= off_by + _GRAIN else ahead


def filesystem_of(folder: str) -> str:
    """Return the type of the filesystem that a folder is on."""
    real = os.path.realpath(folder)
    best = ("", "")
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                before, _, after = line.partition(" - ")
                point = before.split(" ")[4].replace("\\040", " ")
                inside = point in ("/", real) or real.startswith(point + "/")
                if inside and len(point) >= len(best[0]):
                    best = (point, after.split(" ")[0])
    except (OSError, IndexError):
        return ""
    return best[1]
