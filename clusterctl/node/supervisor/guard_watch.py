"""Notes it when the guard, the supervisor's parent, has died."""

from __future__ import annotations

from typing import Sequence

from clusterctl.node.run.files.run_files import RunFiles
from clusterctl.node.run.processes import run_processes as processes
from clusterctl.node.run.processes.run_processes import ProcessKey


class GuardWatch:
    """Looks whether the guard lives, until it does not."""

    def __init__(self, record: RunFiles, guard: Sequence[int]) -> None:
        self._record = record
        self.key: ProcessKey = (guard[0], guard[1])
        self._died = False

    def check(self) -> None:
        """Look once."""
        try:
            if self._died or processes.alive(self.key):
                return
        except OSError:
            return  # it cannot be checked now; the next beat will
        self._died = True
        self._record.event("guard-died", pid=self.key[0])
