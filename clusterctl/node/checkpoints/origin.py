"""Which run wrote a checkpoint, by the times of its files and of the runs on this node.

What was written belongs to the last run that began before, unless another one lived then that may
write to the folder: on other GPUs of this machine, or on a node that shares the folder. Runs whose
checkpoints go elsewhere do not count.
Runs of other inventories leave notes next to the folder.
All times are compared on one clock, the node's: its runs' folders have it; what only the
controller knows comes with the controller's present time; and on network storage, whose server
may stamp files by a clock of its own, one empty file shows how far that clock is off.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, NamedTuple, Optional, Tuple

from clusterctl.node.checkpoints import filesystem
from clusterctl.node.checkpoints.writer_notes import noted_writers
from clusterctl.node.file_io import list_folder, modified, read_json
from clusterctl.node.run.files.run_paths import default_state_folder, end_time, run_folders
from clusterctl.node.run.operations.status import is_alive
from clusterctl.node.run_lock import conflict

_AFTER_END = 1.0
"""Seconds after a run's end in which what it wrote may still get its time."""


class Writer(NamedTuple):
    """Who wrote a checkpoint."""

    run: str
    """Empty: no run that is known of, or one of several."""
    older: bool = False
    """It was written before the run that is asked about began."""
    recorded: bool = False
    """The checkpoint records it; else only the times tell."""
    beside: Tuple[str, ...] = ()
    """The runs that lived then, if they were several: nothing says which one wrote it."""


class _Run(NamedTuple):
    run: str
    began: float
    ended: Optional[float]
    world_size: Optional[int]
    lock: str = ""
    workdir: str = ""
    checkpoints: str = ""
    """The folder that it writes them to; empty: that is not known."""
    live: bool = False


class Origin:
    """The runs that may have written a checkpoint in one folder."""

    def __init__(self, args: Dict[str, Any], folder: str) -> None:
        """Learn of the runs.

        Args:
            args: `cluster`, `run`, `node`, perhaps `state`: where this node keeps the run that
                is asked about; `ancestors`: it and those that it resumes, each with `run` and
                `began` by the controller's clock and its `world_size`; `others`: those that may
                write to the folder from other nodes, each with `run`, `began`, `ended` and
                `live`; `now`: the controller's time.
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
        for one in args.get("others") or ():
            if one["run"] not in here:
                ended = None if one["ended"] is None else float(one["ended"]) + ahead
                began = float(one["began"]) + ahead
                here[one["run"]] = _Run(one["run"], began, ended, None, live=bool(one["live"]))
        self._ahead = filesystem.clock_skew(folder)
        for note in noted_writers(folder, self._ahead):
            if note.run not in here:
                where = note.folder
                here[note.run] = _Run(
                    note.run, note.began, note.ended, None, checkpoints=where, live=note.live
                )
        this_run = here.get(str(args.get("run")))
        self._began = this_run.began if this_run else 0.0
        runs = [
            run
            for run in here.values()
            if _may_write(run, folder) and (this_run is None or not _may_overlap(run, this_run))
        ]
        self._runs = sorted(runs, key=lambda run: run.began)
        self._sizes = {run.run: run.world_size for run in here.values()}

    def world_size(self, run: str) -> Optional[int]:
        """Return how many ranks a run had; None: that is not known."""
        return self._sizes.get(run)

    def writer(self, written: float, recorded_run: str = "") -> Writer:
        """Return who wrote what has this time; `recorded_run`: what the checkpoint itself says."""
        written -= self._ahead
        older = written < self._began
        if recorded_run:
            return Writer(recorded_run, older, recorded=True)
        begun = [run for run in self._runs if run.began <= written]
        there = [run for run in begun if run.live or (run.ended or 0.0) >= written]
        # Of a run without an end, only a later one tells that it was over.
        last = begun[-1:]
        if last and last[0] not in there and not _over(last[0], written):
            there += last
        if len(there) > 1:
            return Writer("", older, beside=tuple(run.run for run in there))
        return Writer(there[0].run if there else "", older)


def _runs_here(args: Dict[str, Any]) -> Dict[str, _Run]:
    """Return all runs of this user that this node has a folder of, of any cluster."""
    found: Dict[str, _Run] = {}
    root = args.get("state") or default_state_folder()
    for paths in (paths for cluster in list_folder(root) for paths in run_folders(root, cluster)):
        saved = read_json(paths.supervisor)
        began = saved.get("began") or modified(paths.job)
        if not began:
            continue
        name = os.path.basename(os.path.dirname(paths.folder))
        ended = end_time(read_json(paths.end))
        job = read_json(paths.job)
        lock, workdir = str(job.get("lock") or ""), str(job.get("workdir") or "")
        checkpoints = str(job.get("checkpoints") or "")
        if checkpoints:
            checkpoints = os.path.join(workdir, os.path.expanduser(checkpoints))
        live = ended is None and is_alive(saved)
        if name in found:  # two nodes of one machine
            began = min(began, found[name].began)
            ends = (ended, found[name].ended)
            ended = max(end for end in ends if end) if all(ends) else None
            live = live or found[name].live
        size = None if job.get("shrunk") else job.get("world_size")
        found[name] = _Run(name, began, ended, size, lock, workdir, checkpoints, live)
    return found


def _over(run: _Run, written: float) -> bool:
    """Tell whether a run had ended, and what it wrote last had got its time."""
    return run.ended is not None and written > run.ended + _AFTER_END


def _may_write(run: _Run, folder: str) -> bool:
    """Tell whether a run may write checkpoints to a folder: into it, or above or below it."""
    if not run.checkpoints:
        return True
    # Links are not followed: the other folder may be on a server that does not answer.
    ours, theirs = os.path.normpath(folder), os.path.normpath(run.checkpoints)
    return os.path.commonpath((ours, theirs)) in (ours, theirs)


def _may_overlap(one: _Run, other: _Run) -> bool:
    """Tell whether two runs may have lived at once, each in a folder of its own."""
    known = one.lock and other.lock and one.workdir != other.workdir
    return bool(known) and not conflict(one.lock, other.lock)
