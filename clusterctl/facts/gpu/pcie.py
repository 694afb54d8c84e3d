"""What stands between the GPUs on PCIe: the bridges above them, and the IOMMU."""

from collections.abc import Iterable, Iterator

from clusterctl.facts.answers import Answers
from clusterctl.facts.fact import Fact, Question, if_gpus
from clusterctl.values import dataclass

_DRIVER = "/sys/bus/pci/drivers/nvidia/"
_LEVELS = 4
"""A root port and two switches, each with two bridges but the last of them: seldom more."""
_ABOVE = tuple(_DRIVER + "*" + "/.." * level for level in range(1, _LEVELS + 1))
"""The folder of a GPU is a link into the tree of devices: its parent there is a bridge."""
_FIRST_EXTENDED, _MOST_CAPABILITIES = 0x100, 64
_ACS, _CONTROL = 0x000D, 6
_REDIRECTS = 0x0004 | 0x0008
"""Requests, and the answers to them, go up to the root complex."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge:
    """A PCIe bridge above GPUs."""

    slot: str
    redirects: bool | None = None
    """Its access control (ACS) sends what GPUs exchange up to the CPU; None: only root may look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PciePaths:
    """How NVIDIA's GPUs of a node reach each other without NVLink."""

    bridges: tuple[Bridge, ...] = ()
    iommu: tuple[str, ...] = ()
    """The kinds of their IOMMU groups: `DMA` and `DMA-FQ` translate, `identity` does not."""


@Fact(
    "pcie_paths",
    if_gpus(
        Question(
            globs=tuple(f"{folder}/{name}" for folder in _ABOVE for name in ("config", "uevent")),
            folders={_DRIVER + "*/iommu_group": ("type",)},
        )
    ),
)
def parse_pcie_paths(answers: Answers) -> PciePaths | None:
    """Return the bridges by their slots; None: there is no NVIDIA GPU."""
    files = answers.below(_DRIVER)
    kinds = {answers.word(_DRIVER + path) or "" for path in files if path.endswith("/type")}
    bridges = {one.slot: one for one in _bridges(answers, files)}
    if not bridges and not kinds:
        return None
    found = tuple(bridges[slot] for slot in sorted(bridges))
    return PciePaths(bridges=found, iommu=tuple(sorted(kinds - {""})))


def _bridges(answers: Answers, files: Iterable[str]) -> Iterator[Bridge]:
    for path in files:
        folder, _, name = path.rpartition("/")
        about = answers.text(f"{_DRIVER}{folder}/uevent") or ""
        slots = [line.partition("=")[2] for line in about.splitlines() if "PCI_SLOT_NAME" in line]
        if name == "config" and ".." in folder and slots:
            answer = answers.file(_DRIVER + path)
            yield Bridge(slot=slots[0], redirects=_redirects(answer.data) if answer.good else None)


def _redirects(config: bytes) -> bool | None:
    """Read the control register of ACS from a configuration space; None: root alone sees it."""
    if len(config) < _FIRST_EXTENDED:
        return None
    place = _FIRST_EXTENDED
    for _ in range(_MOST_CAPABILITIES):  # a broken list may be a ring
        header = int.from_bytes(config[place : place + 4], "little")
        if header & 0xFFFF == _ACS:
            control = config[place + _CONTROL : place + _CONTROL + 2]
            return bool(int.from_bytes(control, "little") & _REDIRECTS)
        place = header >> 20
        if place < _FIRST_EXTENDED:
            break
    return False
