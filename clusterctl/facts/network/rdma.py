"""InfiniBand, RoCE and EFA devices, from /sys/class/infiniband."""

import re
from dataclasses import replace
from ipaddress import IPv6Address

from clusterctl.facts.answers import NOT_ASKED, Answers
from clusterctl.facts.fact import Fact, Question, Unreadable, if_gpus
from clusterctl.facts.request import FactRequest, program
from clusterctl.values import dataclass

ROOT = "/sys/class/infiniband/"
RDMA_GIDS = 16
"""Places of a table of addresses to read: those of each VLAN and address come first."""
_PLACES = tuple(map(str, range(RDMA_GIDS)))
FOLDERS = {
    "/sys/class/infiniband/*": ("fw_ver", "board_id"),
    "/sys/class/infiniband/*/device": ("vendor",),
    "/sys/class/infiniband/*/ports/*": ("state", "phys_state", "rate", "link_layer", "lid"),
    "/sys/class/infiniband/*/ports/*/pkeys": ("0",),
    "/sys/class/infiniband/*/ports/*/gids": _PLACES,
    "/sys/class/infiniband/*/ports/*/gid_attrs/types": _PLACES,
    "/sys/class/infiniband/*/ports/*/gid_attrs/ndevs": _PLACES,
}
OFI_PLUGINS = (
    "/opt/amazon/ofi-nccl/lib/libnccl-net.so", "/opt/amazon/ofi-nccl/lib64/libnccl-net.so",
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so",
    "/opt/amazon/ofi-nccl/lib/aarch64-linux-gnu/libnccl-net.so",
    "/opt/amazon/aws-ofi-nccl/lib/libnccl-net.so", "/opt/aws-ofi-nccl/lib/libnccl-net.so",
)  # fmt: skip
"""Where installers and images put aws-ofi-nccl."""
_PORT = re.compile(r"\d{1,5}")
_NAMED = re.compile(r"\d+: ?(\w+)")
_RATE = re.compile(r"(\d{1,9})(?:\.\d+)? Gb/sec")
_MTU = re.compile(
    r"^hca_id:\s*(\S+)|^[ \t]+port:\s*(\d{1,5})$|^[ \t]+active_mtu:\s*(\d{1,5})\b", re.MULTILINE
)
_HEX = re.compile(r"0x[0-9a-fA-F]{1,8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gid:
    """An address of an RDMA port, with its place in the port's table."""

    index: int
    address: str
    kind: str = ""
    """`RoCE v2`, or `IB/RoCE v1`."""
    interface: str = ""

    def __post_init__(self) -> None:
        """Refuse what is not an address."""
        IPv6Address(self.address)

    @property
    def family(self) -> str:
        """Return what it is: NCCL needs the same on both ends."""
        address = IPv6Address(self.address)
        if address.ipv4_mapped is not None:
            return f"{self.kind}, IPv4"
        return f"{self.kind}, link-local" if address.is_link_local else f"{self.kind}, IPv6"


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaPort:
    """A port of an RDMA device (InfiniBand or RoCE)."""

    device: str
    port: int
    state: str
    link_layer: str
    rate_gbps: int | None = None
    rate: str = ""
    """As the kernel writes it: `400 Gb/sec (4X NDR)`."""
    phys_state: str = ""
    """`LinkUp`; `Polling` without a cable, `Disabled` if it is switched off."""
    lid: int | None = None
    """0: no subnet manager has given the port an address."""
    pkey: int | None = None
    mtu: int | None = None
    """Bytes of its packets as negotiated; only `ibv_devinfo` tells."""
    gids: tuple[Gid, ...] = ()
    gids_read: int = 0
    """How many places of the table were read."""
    board: str = ""
    firmware: str = ""
    vendor: str = ""
    """Of the PCI device: `0x15b3` is Mellanox, `0x1d0f` Amazon (EFA)."""

    @property
    def name(self) -> str:
        """Its name in `rdma link`."""
        return f"{self.device}/{self.port}"

    @property
    def active(self) -> bool:
        """The port carries traffic."""
        return self.state == "ACTIVE"


_IBV = program("ibv", ["ibv_devinfo"], only_if=(ROOT,))


def _ask(wanted: FactRequest) -> Question:
    return Question(rdma=FOLDERS, commands=() if wanted.gpus == 0 else (_IBV,))


@Fact("rdma", _ask)
def parse_rdma(answers: Answers) -> tuple[RdmaPort, ...]:
    """Return the ports of the RDMA devices: one whose firmware died hangs its readers."""
    whole = answers.by_key.get("rdma", NOT_ASKED)
    if whole.state not in {"ok", "not-asked"}:
        raise Unreadable(whole.why())
    found = []
    mtus = active_mtus(answers.command("ibv").text)
    for path in answers.below(ROOT):
        parts = path.split("/")
        if len(parts) == 4 and parts[3] == "state" and _PORT.fullmatch(parts[2]):  # noqa: PLR2004
            port = _port(answers, parts[0], parts[2])
            found.append(replace(port, mtu=mtus.get(port.name)))
    return tuple(sorted(found, key=lambda port: (port.device, port.port)))


def active_mtus(text: str) -> dict[str, int]:
    """Return the packets' size of each port by its name, from `ibv_devinfo`."""
    found: dict[str, int] = {}
    device = port = ""
    for match in _MTU.finditer(text):
        device, port = match[1] or device, match[2] or port
        if match[3]:
            found[f"{device}/{port}"] = int(match[3])
    return found


@Fact("ofi_plugin", if_gpus(Question(links=OFI_PLUGINS)))
def parse_ofi_plugin(answers: Answers) -> bool | None:
    """Tell whether the plugin that lets NCCL use EFA is in a usual place; None: not known."""
    states = {answers.by_key.get("link:" + path, NOT_ASKED).state for path in OFI_PLUGINS}
    # A file that is no link is an error to a reader of the link: it is there.
    if states & {"ok", "error"}:
        return True
    return False if states == {"absent"} else None


def _port(answers: Answers, device: str, number: str) -> RdmaPort:
    above = ROOT + device
    folder = f"{above}/ports/{number}"
    rate = answers.word(folder + "/rate") or ""
    gbps = _RATE.match(rate)
    indices = range(RDMA_GIDS)
    return RdmaPort(
        device=device,
        port=int(number),
        state=_named(answers.word(folder + "/state")),
        link_layer=answers.word(folder + "/link_layer") or "",
        rate_gbps=int(gbps[1]) if gbps else None,
        rate=rate,
        phys_state=_named(answers.word(folder + "/phys_state")),
        lid=_hex(answers.word(folder + "/lid")),
        pkey=_hex(answers.word(folder + "/pkeys/0")),
        gids=tuple(gid for i in indices if (gid := _gid(answers, folder, i)) is not None),
        gids_read=sum(answers.file(f"{folder}/gids/{i}").good for i in indices),
        board=answers.word(above + "/board_id") or "",
        firmware=answers.word(above + "/fw_ver") or "",
        vendor=answers.word(above + "/device/vendor") or "",
    )


def _gid(answers: Answers, folder: str, index: int) -> Gid | None:
    try:
        address = IPv6Address(answers.word(f"{folder}/gids/{index}") or "")
    except ValueError:
        return None
    # An empty place is all zero, or has a prefix alone.
    if not int(address) & ((1 << 64) - 1):
        return None
    return Gid(
        index=index,
        address=str(address),
        kind=answers.word(f"{folder}/gid_attrs/types/{index}") or "",
        interface=answers.word(f"{folder}/gid_attrs/ndevs/{index}") or "",
    )


def _named(text: str | None) -> str:
    match = _NAMED.match(text or "")
    return match[1] if match else ""


def _hex(text: str | None) -> int | None:
    return int(text, 16) if text and _HEX.fullmatch(text) else None
