"""The interface of a fault: it breaks one host, and can be undone."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import KW_ONLY
from pathlib import Path

import psutil

from clusterctl.errors import ClusterError, UsageError
from clusterctl.sandbox import processes
from clusterctl.sandbox.backend import Backend
from clusterctl.sandbox.layout import Host
from clusterctl.sandbox.netns import Netns
from clusterctl.values import dataclass

HIGHEST_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The host and the value of a fault."""

    backend: Backend
    host: Host
    master_port: int
    value: str
    """The value given with the fault, or its default."""

    @property
    def netns(self) -> Netns:
        """The backend, for faults that only hosts of the netns backend can have."""
        assert isinstance(self.backend, Netns)
        return self.backend

    @property
    def folder(self) -> Path:
        """The host's own folder, as this machine sees it."""
        return self.backend.layout.host(self.host.name)

    def port(self) -> int:
        """Return the value as a port; raise UsageError if it is none."""
        if not self.value.isdigit() or not 0 < int(self.value) <= HIGHEST_PORT:
            raise UsageError(f"port: expected 1 to {HIGHEST_PORT}, found {self.value!r}")
        return int(self.value)

    def run(self, argv: list[str], text: str = "") -> None:
        """Run a command on the host; raise ClusterError if it failed."""
        done = self._run(argv, text)
        if done.returncode:
            what = " ".join(argv)
            raise ClusterError(f"{self.host.name}: `{what}` failed: {done.stderr.strip()}")

    def undo(self, argv: list[str], text: str = "") -> None:
        """Run a command that undoes something, which may be undone already."""
        if self.backend.processes(self.host):
            self._run(argv, text)

    def _run(self, argv: list[str], text: str) -> subprocess.CompletedProcess[str]:
        command = self.backend.on(self.host, argv)
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False)

    def start_program(self, program: str, *words: str) -> None:
        """Start a Python program on the host, wait for its `ready`, and leave it running.

        Args:
            program: its source; the host may not see the file that it is from.
            words: its arguments, by which `end_program` finds it again.

        Raises:
            ClusterError: it did not get ready.
        """
        argv = self.backend.on(self.host, [sys.executable, "-I", "-S", "-c", program, *words])
        log = self.folder / "fault.log"
        environment = self.backend.host_environment(self.host)
        with processes.StartingProcesses() as starting:
            starting.spawn(" ".join(words), argv, environment=environment, log=log)
            starting.wait_for("ready")

    def end_program(self, *words: str) -> None:
        """End the program that `start_program` started with these words."""
        processes.end(lambda: {pid for pid in self.pids() if self._ends_with(pid, words)})

    def pids(self) -> set[int]:
        """Return the host's processes."""
        return self.backend.processes(self.host)

    @staticmethod
    def _ends_with(pid: int, words: tuple[str, ...]) -> bool:
        try:
            return tuple(psutil.Process(pid).cmdline()[-len(words) :]) == words
        except psutil.Error:
            return False


@dataclass(frozen=True, slots=True)
class Fault:
    """What can break on a host, and be healed again."""

    kind: str
    """Its name on the command line."""
    summary: str
    """What it does, for `clusterctl sandbox fault --help`."""
    inject: Callable[[Place], None]
    """Breaks it; a UsageError means that nothing was done, a ClusterError that not all was."""
    heal: Callable[[Place], None]
    """Undoes it; a host that was rebooted since has nothing to undo."""
    _: KW_ONLY
    takes: str = ""
    """What VALUE is, if it takes one."""
    default: Callable[[Place], str] = lambda _: ""
    """Returns the default VALUE."""
    loopback: bool = False
    """Hosts of the loopback backend support it, too."""
