"""What a supervisor does by the clock: it shows that it lives, and looks around."""

from __future__ import annotations

from typing import Callable, List, Sequence

from clusterctl.node.event_loop import EventLoop
from clusterctl.node.run.files import ray_folder
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.files.run_files import RunFiles
from clusterctl.node.run.processes import processes
from clusterctl.node.run.processes.processes import Process, ProcessKey, living_descendants
from clusterctl.node.supervisor.log_space import LogSpace
from clusterctl.node.supervisor.ranks.node_ranks import Ranks
from clusterctl.node.supervisor.watch.log_watch import LogWatch
from clusterctl.node.supervisor.worlds.nested_launchers import NestedLaunchers

HEARTBEAT_SECONDS = 1.0
TIMES_SECONDS = 0.5
SCAN_SECONDS = 2.0
FRESH_SECONDS = 86400.0


class Housekeeping:
    """Keeps the run's folder up to date, and notes what died or was started elsewhere."""

    def __init__(
        self,
        loop: EventLoop,
        job: NodeJob,
        record: RunFiles,
        ranks: Ranks,
        guard: Sequence[int],
        on_scan: Sequence[Callable[[List[Process]], None]],
    ) -> None:
        """Do nothing yet."""
        self._loop, self._record, self._ranks, self._on_scan = loop, record, ranks, on_scan
        self._nested = NestedLaunchers(record, job)
        self.guard: ProcessKey = (guard[0], guard[1])
        self._guard_died = False

    @property
    def elsewhere(self) -> List[str]:
        """Return the job's commands that started processes where no search looks."""
        return self._nested.elsewhere

    def start(self) -> None:
        """Do everything, now and then again."""
        self.start_heartbeat()
        self._loop.call_every(TIMES_SECONDS, LogWatch(self._loop, self._record).look)
        self._loop.call_every(TIMES_SECONDS, LogSpace(self._record).check)
        self._loop.call_every(SCAN_SECONDS, self._remember_processes)
        self._loop.call_every(FRESH_SECONDS, self._keep_fresh)

    def start_heartbeat(self) -> None:
        """Only show that this process lives."""
        self._loop.call_every(HEARTBEAT_SECONDS, self._heartbeat)

    def _heartbeat(self) -> None:
        self._check_guard()
        self._record.heartbeat()
        self._record.flush()

    def _check_guard(self) -> None:
        try:
            if self._guard_died or processes.alive(self.guard):
                return
        except OSError:
            return  # it cannot be checked now; the next beat will
        self._guard_died = True
        self._record.event("guard-died", pid=self.guard[0])

    def _keep_fresh(self) -> None:
        self._record.keep_fresh()
        ray_folder.keep_fresh(self._record.paths.folder)

    def _remember_processes(self) -> None:
        try:
            living = living_descendants()
            self._record.record_processes([process.key for process in living])
            self._nested.check(living, self._ranks.snapshots())
            for each in self._on_scan:
                each(living)
        except OSError:
            return  # it cannot be checked now; the next scan will
