"""The kernel log's lines that the node selected, and what they tell of its GPUs."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from clusterctl.facts.answers import Answers
from clusterctl.facts.fact import Fact, Question, Unreadable, if_gpus
from clusterctl.facts.gpu.nvidia import pci_address
from clusterctl.facts.machine.machine_state import parse_uptime
from clusterctl.values import dataclass

PATTERNS = (
    "NVRM: Xid", "SXid", "fallen off the bus", "nvidia-nvswitch", "nvidia-peermem ", " in libnccl",
)  # fmt: skip
"""What a line must contain, one of these."""
NEWEST, LENGTH = 500, 1024
"""Lines, and letters of a line, that count: a node sends no more lines, and they are shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLine:
    """A line of the kernel log."""

    age_s: float | None
    """Seconds since it was written; None: the machine's uptime is unknown."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLog:
    """The lines of the kernel log that contain one of `PATTERNS`, the oldest first."""

    source: str
    """`kmsg`, `dmesg` or `journal`."""
    lines: tuple[KernelLine, ...] = ()


@Fact("kernel_log", if_gpus(Question(kernel_log=PATTERNS, files=("/proc/uptime",))))
def parse_kernel_log(answers: Answers) -> KernelLog | None:
    """Return the log; None if it was not asked for."""
    found: Any = answers.json("kernel-log")
    if not isinstance(found, dict):
        if "kernel-log" in answers.by_key:
            raise Unreadable(answers.why("kernel-log"))
        return None
    if "error" in found:
        raise Unreadable(str(found["error"]))
    uptime = parse_uptime(answers.text("/proc/uptime") or "")
    lines = found.get("lines")
    return KernelLog(
        source=str(found.get("source", "")),
        lines=tuple(
            KernelLine(
                age_s=None if uptime is None else max(uptime - line[0], 0.0),
                text=line[1][:LENGTH],
            )
            for line in (lines[-NEWEST:] if isinstance(lines, list) else [])
            if isinstance(line, list)
            and [type(part) for part in line] in ([float, str], [int, str])
        ),
    )


_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]{1,20})[^)]*\): (\d{1,5})(?:, (.*))?")
_SXID = re.compile(r"SXid \(PCI:([0-9A-Fa-f:.]+)\): (\d{1,6}), (Fatal|Non-fatal)\b,? ?(.*)")
"""The first line of an event; the lines that follow it have its data."""
_FELL = re.compile(
    r"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?([0-9A-Fa-f]+:[0-9A-Fa-f:.]+)\b"
    r".*fallen off the bus",
    re.DOTALL,
)
"""The driver also logs it without an Xid, for one that does not answer when the driver loads."""
FELL_OFF = 79
_SWITCH = re.compile(r"nvidia-nvswitch\d+: (Failed to (?:initialize|register) device\b.*)")
_CRASH = re.compile(
    r"(\S{1,20}\[\d{1,10}\]):? (?:segfault|general protection)\b.* in libnccl[\w.-]*"
)
_PEERMEM = re.compile(r"nvidia-peermem \w+:\d+ (.*)")
_LATE_FREE = "detected invalid context"
"""The driver frees memory of a process that was killed, whose context no longer exists."""
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
            if (fell := _FELL.search(line.text)) and (gpu_address(fell[1]), FELL_OFF) not in newest:
                newest[gpu_address(fell[1]), FELL_OFF] = GpuEvent(
                    address=gpu_address(fell[1]),
                    number=FELL_OFF,
                    text="GPU has fallen off the bus",
                    age_s=line.age_s,
                )
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


def dead_switches(log: KernelLog) -> Iterator[KernelLine]:
    """Yield, with the driver's own words, that an NVSwitch could not be initialized."""
    for line in log.lines:
        if found := _SWITCH.search(line.text):
            yield replace(line, text=found[1])


def crashes(log: KernelLog) -> Iterator[KernelLine]:
    """Yield the processes that crashed in NCCL, such as `python[123]`, the newest last."""
    for line in log.lines:
        if found := _CRASH.search(line.text):
            yield replace(line, text=found[1])


def peermem_errors(log: KernelLog) -> Iterator[KernelLine]:
    """Yield the errors of nvidia-peermem in its own words, the newest last."""
    return (line for line in _peermem(log) if _LATE_FREE not in line.text)


def late_frees(log: KernelLog) -> Iterator[KernelLine]:
    """Yield the lines of nvidia-peermem that a killed process leaves, the newest last."""
    return (line for line in _peermem(log) if _LATE_FREE in line.text)


def _peermem(log: KernelLog) -> Iterator[KernelLine]:
    for line in log.lines:
        if found := _PEERMEM.search(line.text):
            yield replace(line, text=found[1])


def gpu_address(bus_id: str) -> str:
    """Return a PCI address without its function, which lines of an Xid lack."""
    return pci_address(bus_id).partition(".")[0]
