"""Faults of a whole host: its sshd, processes, speed and clock."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import psutil
from typing_extensions import override

from clusterctl.errors import ClusterError, UsageError
from clusterctl.sandbox import cgroup, processes
from clusterctl.sandbox.faults.interface import Fault, Place


def _sshd(place: Place, *, wanted: str = "") -> set[int]:
    """Return the host's sshd processes; the listener alone where its settings file is wanted."""
    found = set()
    for pid in place.pids():
        try:
            process = psutil.Process(pid)
            if process.name().startswith("sshd") and wanted in " ".join(process.cmdline()):
                found.add(pid)
        except psutil.Error:
            continue
    return found


class SshdKilled(Fault):
    """SSH ends; processes that the sessions started keep running."""

    kind = "sshd-killed"
    summary = "sshd is killed, with all its sessions"
    loopback = True

    @override
    def inject(self, place: Place) -> None:
        processes.end(lambda: _sshd(place))

    @override
    def heal(self, place: Place) -> None:
        if place.pids() and not _sshd(place, wanted="sshd_config"):
            place.backend.listen(place.host)


class Frozen(Fault):
    """A kernel that still answers for processes that do not."""

    kind = "frozen"
    summary = "all processes of the host are frozen, but its kernel answers"
    loopback = True

    @override
    def inject(self, place: Place) -> None:
        stopped: set[int] = set()
        while running := place.pids() - stopped:
            processes.send(running, signal.SIGSTOP)
            stopped |= running

    @override
    def heal(self, place: Place) -> None:
        processes.send(place.pids(), signal.SIGCONT)


class Killed(Fault):
    """A power failure; healed by a reboot with the same disks."""

    kind = "killed"
    summary = "the power fails: every process ends at once, and no packet is sent"
    loopback = True

    @override
    def inject(self, place: Place) -> None:
        place.backend.power_off(place.host)

    @override
    def heal(self, place: Place) -> None:
        if not place.pids():
            place.backend.start([place.host])


class Slow(Fault):
    """A host that gets little CPU, such as one that throttles."""

    kind = "slow"
    summary = "the host gets only a part of one CPU"
    takes = "PERCENT"
    default_value = "10"
    loopback = True

    @override
    def inject(self, place: Place) -> None:
        if not place.value.isdigit() or int(place.value) < 1:
            raise UsageError(f"percent of a CPU: expected 1 or more, found {place.value!r}")
        layout = place.backend.layout
        cgroup.limit(layout, place.host.name, place.pids(), int(place.value))

    @override
    def heal(self, place: Place) -> None:
        cgroup.limit(place.backend.layout, place.host.name, place.pids(), None)


class WrongClock(Fault):
    """A wrong clock, for new SSH sessions."""

    kind = "wrong-clock"
    summary = "the clock is off by some seconds, in new sessions"
    takes = "SECONDS"
    default_value = "+300"
    loopback = True

    @override
    def inject(self, place: Place) -> None:
        if not re.fullmatch(r"[+-]\d+", place.value):
            raise UsageError(f"seconds: expected +300 or -300, found {place.value!r}")
        self._restart(
            place,
            {
                "LD_PRELOAD": str(_libfaketime()),
                "FAKETIME": place.value,
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "NO_FAKE_STAT": "1",
            },
        )

    @override
    def heal(self, place: Place) -> None:
        if place.pids():
            self._restart(place, {})

    @staticmethod
    def _restart(place: Place, environment: dict[str, str]) -> None:
        processes.end(lambda: _sshd(place, wanted="sshd_config"))
        place.backend.listen(place.host, environment)


def _libfaketime() -> Path:
    for pattern in ("*/faketime", "faketime"):
        for found in Path("/usr/lib").glob(f"{pattern}/libfaketimeMT.so.1"):
            return found
    raise ClusterError(
        "libfaketime: expected on this machine, found none", hint="sudo apt-get install faketime"
    )
