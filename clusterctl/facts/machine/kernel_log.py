"""The kernel log's lines that the node selected."""

from typing import Any

from clusterctl.facts.answers import Answers
from clusterctl.facts.fact import Fact, Question, Unreadable, if_gpus
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
