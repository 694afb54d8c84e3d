"""A run on one node, as `stop` finds it: its supervisor alive or dead."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any, Dict, List, NamedTuple

from clusterctl.node import run_lock
from clusterctl.node.file_io import read_json
from clusterctl.node.run.files.run_files import RunFiles
from clusterctl.node.run.files.run_paths import NO_PATHS, NodePaths
from clusterctl.node.run.files.stop_file import remove_stop_file_of
from clusterctl.node.run.operations.status import RecordedProcesses, is_alive, supervisor_keys
from clusterctl.node.run.processes import processes
from clusterctl.node.run.processes.boot import boot_id
from clusterctl.node.run.processes.processes import (
    KILL_TIMEOUT,
    TERM_TO_KILL,
    Process,
    run_environment,
    send_all,
)

POLL_SECONDS = 0.05
EMPTY_SCANS = 2
"""How often nothing must have been seen for it to be proven."""
CLEARED = "; its supervisor had died"
"""The end of the reason that `stop` records in the place of a supervisor."""
CLEARED_UP = "; cleared up later"
"""The end of it if the run was lost before: what a stop finds then is not what it did."""


def held_lock(args: Dict[str, Any]) -> str:
    """Return the lock of a run that has some GPUs of this machine; empty if there is none."""
    machine = run_lock.machine_of(args.get("lock") or run_lock.NAME)
    for holder in run_lock.lock_holders(run_lock.slots(machine)):
        resources = run_lock.valid_resources(holder)
        if resources and (holder.get("run"), holder.get("node")) == (args["run"], args["node"]):
            return "%s/%s" % (machine, ",".join(resources))
    return ""


class LocalRun(NamedTuple):
    """What is known of a run on this node without asking its supervisor."""

    paths: NodePaths
    run: str
    node: str
    lock: str
    job: Dict[str, Any]
    """What was started; empty if the folder is missing or not this user's."""
    recorded: RecordedProcesses

    @classmethod
    def find(cls, args: Dict[str, Any]) -> LocalRun:
        """Read the run's folder; if it is missing take what the controller knows."""
        paths = NodePaths.of(args)
        if paths.ownership_problem():
            paths = NO_PATHS
        job = read_json(paths.job)
        name = job.get("lock") or held_lock(args) or args.get("lock") or run_lock.NAME
        return cls(paths, args["run"], args["node"], name, job, RecordedProcesses(paths))

    def holds_lock(self) -> bool:
        """Tell whether this run's supervisor holds the machine, be it slow to answer."""
        holder = run_lock.query(self.lock, {"ask": "who"}) or {}
        if holder.get("uid") not in (os.getuid(), 0):
            return False
        if "run" not in holder:
            saved = read_json(self.paths.supervisor)
            return is_alive(saved) and bool(saved["pid"] == holder.get("pid"))
        return (holder["run"], holder.get("node")) == (self.run, self.node)

    def request_stop(self, order: Dict[str, Any]) -> bool:
        """Tell the supervisor to end it, as `stop` was asked to; False: there is none."""
        saved = read_json(self.paths.supervisor)
        if is_alive(saved):  # one that was stopped would hear nothing
            for key in supervisor_keys(saved):
                processes.send(key, signal.SIGCONT)
        if not self.holds_lock():
            return False
        request = {"ask": "stop", "run": self.run, "node": self.node}
        told = {name: order.get(name) for name in ("by", "grace", "reason")}
        # Earlier versions expect no null.
        request.update({name: value for name, value in told.items() if value is not None})
        answer = run_lock.query(self.lock, request)
        return answer is not None and "error" not in answer  # another run may have the lock by now

    def wait(self, until: float) -> None:
        """Wait until the supervisor has ended everything and itself, at most until then."""
        while time.monotonic() < until and (self.holds_lock() or self.find_all()):
            time.sleep(POLL_SECONDS)

    def find_all(self) -> List[Process]:
        """Return everything of the run that lives here, its supervisor too."""
        saved = read_json(self.paths.supervisor)
        keeping = supervisor_keys(saved) if is_alive(saved) else []
        return processes.of_run(
            environment=run_environment(self.run, self.node),
            recorded=[*self.recorded.read(), *keeping],
            cgroup=saved.get("cgroup", ""),
        )

    def kill(self) -> List[Process]:
        """KILL until nothing is left, twice: a process within its exec shows no stamp.

        Returns:
            What cannot be ended.
        """
        until = time.monotonic() + TERM_TO_KILL + KILL_TIMEOUT
        left = self.find_all()
        unseen = 0
        while unseen < EMPTY_SCANS and time.monotonic() < until:
            send_all(left, signal.SIGKILL)
            time.sleep(POLL_SECONDS)
            left = self.find_all()
            unseen = 0 if left else unseen + 1
        return left

    def prevent_start(self, reason: str) -> None:
        """Write the end of a run that is about to start: its supervisor starts nothing then.

        To be called before its processes are looked for: either they are found, or they find this.
        """
        if os.path.isdir(self.paths.folder) and not os.path.exists(self.paths.supervisor):
            self._write_end("%s; it had not started here" % reason, [])

    def was_lost(self) -> bool:
        """Tell whether its supervisor died without an end: to clear up changes nothing of that."""
        saved = read_json(self.paths.supervisor)
        return bool(saved) and not is_alive(saved) and not os.path.exists(self.paths.end)

    def write_missing_end(self, reason: str, *, lost: bool = False) -> None:
        """Do what the supervisor could not: remove its stop file, write the end in its reserve."""
        if not self.job or os.path.exists(self.paths.end):
            return
        remove_stop_file_of(self.paths)
        saved = read_json(self.paths.supervisor)
        ranks = saved.get("ranks", [])
        for rank in ranks:
            rank["state"] = "ended"
        reason += CLEARED
        if lost:
            rebooted = saved.get("boot_id") != boot_id()
            reason = "the machine was rebooted" if rebooted else "its supervisor died"
            reason += CLEARED_UP
        self._write_end(reason, ranks, lost=lost)

    def _write_end(self, reason: str, ranks: List[Dict[str, Any]], *, lost: bool = False) -> None:
        if os.path.exists(self.paths.end):
            return
        over = when = time.time()
        if lost:
            with contextlib.suppress(OSError):
                when = os.stat(self.paths.heartbeat).st_mtime
        state, by = ("lost", "lost") if lost else ("stopped", "stop")
        end = {"state": state, "by": by, "exit_code": None, "time": when, "over": over}
        RunFiles(self.paths).end({"schema": 1, **end, "reason": reason, "ranks": ranks})
