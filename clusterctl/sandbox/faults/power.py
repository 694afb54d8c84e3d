"""Faults of a whole host: its sshd, processes, speed and clock."""

import re
import signal
from functools import partial
from pathlib import Path

import psutil

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


def _kill_sshd(place: Place) -> None:
    processes.end(lambda: _sshd(place))


def _start_sshd(place: Place) -> None:
    if place.pids() and not _sshd(place, wanted="sshd_config"):
        place.backend.listen(place.host)


def _freeze(place: Place) -> None:
    stopped: set[int] = set()
    while running := place.pids() - stopped:
        processes.send(running, signal.SIGSTOP)
        stopped |= running


def _thaw(place: Place) -> None:
    processes.send(place.pids(), signal.SIGCONT)


def _power_off(place: Place) -> None:
    place.backend.power_off(place.host)


def _boot(place: Place) -> None:
    if not place.pids():
        place.backend.start([place.host])


def _slow_down(place: Place) -> None:
    if not place.value.isdigit() or int(place.value) < 1:
        raise UsageError(f"percent of a CPU: expected 1 or more, found {place.value!r}")
    _limit(place, int(place.value))


def _limit(place: Place, percent: int | None) -> None:
    cgroup.limit(place.backend.layout, place.host.name, place.pids(), percent)


def _set_clock(place: Place) -> None:
    if not re.fullmatch(r"[+-]\d+", place.value):
        raise UsageError(f"seconds: expected +300 or -300, found {place.value!r}")
    variables = {
        "LD_PRELOAD": str(_libfaketime()),
        "FAKETIME": place.value,
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }
    _restart_sshd(place, variables)


def _reset_clock(place: Place) -> None:
    if place.pids():
        _restart_sshd(place, {})


def _restart_sshd(place: Place, variables: dict[str, str]) -> None:
    processes.end(lambda: _sshd(place, wanted="sshd_config"))
    place.backend.listen(place.host, variables)


def _libfaketime() -> Path:
    for pattern in ("*/faketime", "faketime"):
        for found in Path("/usr/lib").glob(f"{pattern}/libfaketimeMT.so.1"):
            return found
    raise ClusterError(
        "libfaketime: expected on this machine, found none", hint="sudo apt-get install faketime"
    )


_fault = partial(Fault, loopback=True)

FAULTS = (
    # What the sessions started keeps running.
    _fault("sshd-killed", "sshd is killed, with all its sessions", _kill_sshd, _start_sshd),
    _fault(
        "frozen", "all processes of the host are frozen, but its kernel answers", _freeze, _thaw
    ),
    _fault(
        "killed",
        "the power fails: every process ends at once, and no packet is sent",
        _power_off,
        _boot,
    ),
    _fault(
        "slow",
        "the host gets only a part of one CPU",
        _slow_down,
        lambda place: _limit(place, None),
        takes="PERCENT",
        default=lambda _: "10",
    ),
    _fault(
        "wrong-clock",
        "the clock is off by some seconds, in new sessions",
        _set_clock,
        _reset_clock,
        takes="SECONDS",
        default=lambda _: "+300",
    ),
)
