"""What is known of one rank: expected, running or ended, and how it ended; who else may tell."""

from __future__ import annotations

import re
import time
from typing import Any, Dict, Optional, Tuple

from clusterctl.node.run.processes.processes import ProcessKey
from clusterctl.node.supervisor.ranks.child_watcher import code_and_signal


class Rank:
    """One rank: expected, then running, then ended; and again after a launcher's restart."""

    def __init__(self, rank: int, local_rank: int) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.restarts = 0
        """How often the launcher had started its ranks again by then."""
        self.state = "starting"
        self.pid: Optional[int] = None
        self.start = 0
        self.exit_code: Optional[int] = None
        self.signal: Optional[int] = None
        self.began: Optional[float] = None
        self.ended: Optional[float] = None
        self.joined = False

    @property
    def key(self) -> ProcessKey:
        """Return its process for certain."""
        return self.pid or 0, self.start

    @property
    def running(self) -> bool:
        """It has reported and not ended."""
        return self.state == "running"

    def has_started(self, key: ProcessKey) -> None:
        """Note that its process reported."""
        self.state, (self.pid, self.start) = "running", key
        self.began, self.ended = time.time(), None
        self.exit_code = self.signal = None

    def has_ended(self, status: Optional[int]) -> None:
        """Note that its process ended; None: how is not known yet."""
        self.state, self.ended = "ended", time.time()
        if status is not None:
            self.exit_code, self.signal = code_and_signal(status)

    def snapshot(self) -> Dict[str, Any]:
        """Return it as the controller sees it."""
        return {name: value for name, value in vars(self).items() if name != "start"}

    def describe_end(self) -> str:
        """Say how it ended."""
        if self.signal is not None:
            return "rank %d was killed by signal %d" % (self.rank, self.signal)
        return "rank %d ended with exit code %s" % (self.rank, self.exit_code)


VMSTAT = "/proc/vmstat"


def oom_kills() -> Optional[int]:
    """Return how many processes the kernel's out-of-memory killer has ended on this machine.

    It counts since the machine started, cgroups' limits included; None: unknown.
    """
    try:
        with open(VMSTAT) as file:
            for line in file:
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
    except (OSError, ValueError):
        pass
    return None


_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: \d+ \(pid: (\d+)\)")


_ONLY = re.compile(r"CalledProcessError: .* (?:exit status (\d+)|died with <Signals\.\w+: (\d+)>)")
"""How accelerate reports the end of the only rank of a run, which has no agent of torch."""
ONLY_RANK = 0


def failures_in(log: str) -> Dict[int, Tuple[int, Optional[int]]]:
    """Return pid → exit code (128+n for signal n) and signal, as the launcher's log names them.

    Of a launcher that does not name the pid of its only rank, that is ONLY_RANK.
    """
    found = {int(pid): int(code) for code, pid in _FAILED.findall(log)}
    for code, number in _ONLY.findall(log):
        found[ONLY_RANK] = int(code) if code else -int(number)
    return {pid: (code, None) if code >= 0 else (128 - code, -code) for pid, code in found.items()}
