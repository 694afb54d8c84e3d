"""Errors that links counted, of interfaces and of RDMA ports."""

import re
from collections.abc import Mapping

from clusterctl.facts.answers import Answers
from clusterctl.facts.fact import Fact, Question, Unreadable
from clusterctl.facts.network.interfaces import parse_interfaces
from clusterctl.facts.network.rdma import ROOT, RdmaPort, parse_rdma
from clusterctl.values import dataclass

STATISTICS = (
    "rx_errors", "tx_errors", "rx_crc_errors", "rx_missed_errors", "rx_dropped", "tx_dropped",
)  # fmt: skip
"""Counters of an interface that only grow if something is wrong with it."""
RDMA_COUNTERS = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors",
    "local_link_integrity_errors", "excessive_buffer_overrun_errors",
)  # fmt: skip
_FOLDERS = {"/sys/class/net/*/statistics": STATISTICS}
_RDMA_FOLDERS = {ROOT + "*/ports/*/counters": RDMA_COUNTERS}
_COUNTER = re.compile(r"[0-9]{1,19}")
"""The kernel's are of 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Counters of a network interface, or of an RDMA port such as `mlx5_0/1`."""

    device: str
    values: tuple[tuple[str, int], ...]


@Fact("counters", Question(folders=_FOLDERS, rdma=_RDMA_FOLDERS))
def parse_counters(answers: Answers) -> tuple[Counters, ...]:
    """Return the counters of the interfaces that have an address, and of the RDMA ports."""
    devices = {
        interface.name: (interface_counters(interface.name), STATISTICS)
        for interface in answers.once(parse_interfaces) or ()
        if interface.addresses and not interface.loopback
    }
    for port in _ports(answers):
        devices[port.name] = (port_counters(port.name), RDMA_COUNTERS)
    found = (
        counters_of(device, {name: answers.word(f"{folder}/{name}") or "" for name in names})
        for device, (folder, names) in devices.items()
    )
    return tuple(counters for counters in found if counters.values)


def interface_counters(name: str) -> str:
    """Return the folder of an interface's counters."""
    return f"/sys/class/net/{name}/statistics"


def port_counters(port: str) -> str:
    """Return the folder of a port's counters; `port` as in `mlx5_0/1`."""
    device, _, number = port.partition("/")
    return f"{ROOT}{device}/ports/{number}/counters"


def counters_of(device: str, values: Mapping[str, str]) -> Counters:
    """Return the counters of a device, without those that are no numbers."""
    numbers = {name: _count(value) for name, value in values.items()}
    known = ((name, value) for name, value in numbers.items() if value is not None)
    return Counters(device=device, values=tuple(sorted(known)))


def folder_values(text: str) -> dict[str, str]:
    """Return the files in the answer for a folder, which are lines `NAME VALUE`."""
    pairs = (line.partition(" ") for line in text.splitlines() if " " in line)
    return {name: value for name, _, value in pairs}


def _count(text: str) -> int | None:
    return int(text) if _COUNTER.fullmatch(text) else None


def _ports(answers: Answers) -> tuple[RdmaPort, ...]:
    try:
        return answers.once(parse_rdma)
    except Unreadable:
        return ()
