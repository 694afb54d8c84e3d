"""Parses the lines that NVIDIA's driver writes to the kernel log: Xid of GPUs, SXid of switches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from clusterctl.facts.nvidia import pci_address
from clusterctl.facts.values.machine import KernelLog

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)[^)]*\): (\d{1,5})(?:, (.*))?")
_SXID = re.compile(r"SXid \(PCI:([0-9A-Fa-f:.]+)\): (\d{1,6}), (Fatal|Non-fatal)\b,? ?(.*)")
"""The first line of an event; the lines that follow it have its data."""
_ACTION = re.compile(r"changed from .* to \S+ \((.*?)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEvent:
    """An error that the driver logged, of a GPU or of an NVSwitch."""

    address: str
    """The PCI address, without the function for a GPU."""
    number: int
    text: str = ""
    age_s: float | None = None
    fatal: bool = False
    """The driver itself calls it fatal."""
    harmless: bool = False
    """The driver itself calls it non-fatal."""

    @property
    def action(self) -> str:
        """The recovery that an Xid 154 asks for; empty for none."""
        found = _ACTION.search(self.text)
        return "" if found is None or found[1] == "None" else found[1]


def xids(log: KernelLog) -> Iterator[GpuEvent]:
    """Yield the newest event of each number of each GPU."""
    newest: dict[tuple[str, int], GpuEvent] = {}
    for line in log.lines:
        found = _XID.search(line.text)
        if found is None:
            continue
        address, number, text = gpu_address(found[1]), int(found[2]), found[3] or ""
        newest[address, number] = GpuEvent(
            address=address,
            number=number,
            text=text,
            age_s=line.age_s,
            harmless="Nonfatal" in text,
            fatal=" Fatal " in text,
        )
    yield from newest.values()


def sxids(log: KernelLog) -> Iterator[GpuEvent]:
    """Yield the newest event of each number of each NVSwitch."""
    newest: dict[tuple[str, int], GpuEvent] = {}
    for line in log.lines:
        found = _SXID.search(line.text)
        if found is not None:
            address, number = pci_address(found[1]), int(found[2])
            newest[address, number] = GpuEvent(
                address=address,
                number=number,
                text=found[4],
                age_s=line.age_s,
                fatal=found[3] == "Fatal",
                harmless=found[3] == "Non-fatal",
            )
    yield from newest.values()


def gpu_address(bus_id: str) -> str:
    """Return a PCI address without its function, which lines of an Xid lack."""
    return pci_address(bus_id).partition(".")[0]
