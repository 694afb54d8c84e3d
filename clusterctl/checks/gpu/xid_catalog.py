"""What each Xid of NVIDIA's driver means for the next run, after NVIDIA's catalog."""

from collections.abc import Mapping

from clusterctl.checks.finding import Status
from clusterctl.values import dataclass

RECOVERY = 154
"""Reports that the driver's request for a recovery changed; its text names the action."""
REBOOT = "sudo reboot (on the node)"
TEST = "dcgmi diag -r 3 (on the node) tests its GPUs"
LOOK = "sudo dmesg | grep -i xid (on the node)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What an Xid means, and what helps."""

    text: str
    status: Status = "fail"
    remedy: str = ""
    """Empty: a reset of the GPU."""


_NVLINK = "sudo nvidia-smi nvlink -e (on the node) counts its errors; reset all its GPUs, or reboot"
XIDS: Mapping[int, Meaning] = {
    46: Meaning(text="the GPU stopped processing"),
    48: Meaning(text="an uncorrectable memory error"),
    54: Meaning(text="its power cable is not connected", remedy="check the GPU's power cables"),
    61: Meaning(text="its power management firmware stopped"),
    62: Meaning(text="its power management firmware halted"),
    64: Meaning(text="a memory row could not be remapped"),
    74: Meaning(text="an NVLink error", remedy=_NVLINK),
    79: Meaning(text="the GPU fell off the bus", remedy=REBOOT),
    92: Meaning(text="many corrected memory errors", status="warn", remedy=TEST),
    94: Meaning(text="a memory error that ended one process", status="warn"),
    95: Meaning(text="a memory error that may reach all processes"),
    109: Meaning(text="a context switch timed out", status="warn"),
    110: Meaning(text="a security fault"),
    119: Meaning(text="the GPU's firmware (GSP) does not answer"),
    120: Meaning(text="an error of the GPU's firmware (GSP)"),
    121: Meaning(text="an error of the link to the CPU (C2C)", status="warn"),
    136: Meaning(text="an NVLink could not be trained", remedy=_NVLINK),
    140: Meaning(text="an uncorrectable memory error"),
    143: Meaning(text="the GPU could not be initialized"),
    **{n: Meaning(text="an NVLink error", remedy=_NVLINK) for n in (*range(144, 151), 155)},
    156: Meaning(text="a faulty part of the GPU was retired", status="warn"),
    157: Meaning(text="a faulty part of the GPU could not be retired"),
    158: Meaning(text="the GPU timed out"),
    160: Meaning(text="faulty memory channels are waiting for their repair", status="warn"),
    161: Meaning(text="faulty memory channels could not be repaired", remedy=TEST),
    167: Meaning(text="the PCIe link timed out", remedy=REBOOT),
    171: Meaning(text="an uncorrectable memory error"),
    172: Meaning(text="an uncorrectable error of the SRAM"),
}  # fmt: skip
"""Number → meaning, after NVIDIA's Xid catalog; a reset or a reboot is what it asks for."""

OF_JOBS = frozenset(
    {
        8, 11, 13, 25, 31, 32, 37, 38, *range(39, 46), 60, 63, 65, 66, 67, 68, 69, *range(70, 74),
        75, 76, 77, 80, *range(82, 87), 88, 89, 93, *range(96, 109), *range(126, 136), 137, 139,
        141, 142, 152, 153, 159, *range(162, 166), 170,
    }
)  # fmt: skip
"""Errors of a program, or notes that need no action: they do not affect the next run."""
