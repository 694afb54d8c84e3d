"""Network interfaces, from /sys/class/net and netlink."""

from ipaddress import ip_interface
from typing import Any

from clusterctl.facts.answers import Answers
from clusterctl.facts.fact import Fact, Question
from clusterctl.facts.request import FactRequest
from clusterctl.values import dataclass

FOLDERS = {
    "/sys/class/net/*": (
        "operstate", "carrier", "flags", "speed", "mtu", "duplex", "carrier_changes",
    ),
    "/proc/sys/net/ipv4/conf/*": ("rp_filter", "arp_ignore"),
}  # fmt: skip
SLOTS = {"/sys/class/net/*/device": ("numa_node",)}
"""Asked only if GPUs are planned."""
_UP, _LOOPBACK = 0x1, 0x8


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A network interface."""

    name: str
    addresses: tuple[str, ...] = ()
    """With prefix length, as `10.1.0.5/24`."""
    running: bool | None = None
    """It is up and has carrier."""
    speed_mbps: int | None = None
    mtu: int | None = None
    numa: int | None = None
    """The NUMA node of its slot, read if GPUs are planned."""
    loopback: bool = False
    duplex: str = ""
    """`full` or `half`; empty: unknown, as of virtual links."""
    carrier_changes: int | None = None
    """How often the link came up or went down since boot."""
    parent: str = ""
    """The interface that a VLAN is on."""
    rp_filter: int | None = None
    """1: a packet is dropped if the way back to its sender is through another interface."""
    arp_ignore: int | None = None
    """1 and more: ARP is answered only for addresses of the interface that was asked."""

    def __post_init__(self) -> None:
        """Refuse what is not an address: other code parses them without a check."""
        for address in self.addresses:
            ip_interface(address)


@dataclass(frozen=True, slots=True, kw_only=True)
class BondPort:
    """An interface that belongs to a bond."""

    bond: str
    interface: str
    up: bool


def _ask(wanted: FactRequest) -> Question:
    return Question(folders=FOLDERS if wanted.gpus == 0 else {**FOLDERS, **SLOTS})


@Fact("interfaces", _ask)
def parse_interfaces(answers: Answers) -> tuple[Interface, ...] | None:
    """Return the interfaces with their addresses; None if the kernel did not list them."""
    files = answers.below("/sys/class/net/")
    names = {path.split("/")[0] for path in files}
    listed = _listed(answers)
    if listed is None:
        return None
    addresses, parents = _by_netlink(listed), _parents(listed)
    return tuple(
        Interface(
            name=name,
            addresses=tuple(addresses.get(name, ())),
            running=_running(answers, name),
            speed_mbps=_positive(answers.number(f"/sys/class/net/{name}/speed")),
            mtu=answers.number(f"/sys/class/net/{name}/mtu"),
            numa=_numa(answers, name),
            loopback=bool((_flags(answers, name) or 0) & _LOOPBACK) or name == "lo",
            duplex=_duplex(answers.word(f"/sys/class/net/{name}/duplex")),
            carrier_changes=answers.number(f"/sys/class/net/{name}/carrier_changes"),
            parent=parents.get(name, ""),
            rp_filter=_stricter(answers, name, "rp_filter"),
            arp_ignore=_stricter(answers, name, "arp_ignore"),
        )
        for name in sorted(names | set(addresses))
    )


def _listed(answers: Answers) -> list[dict[str, Any]] | None:
    """Return the interfaces that the kernel lists; None if it did not."""
    listed = answers.json("interfaces")
    if not isinstance(listed, list):
        return None
    return [e for e in listed if isinstance(e, dict) and isinstance(e.get("ifname"), str)]


def _by_netlink(listed: list[dict[str, Any]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in listed:
        rows = entry.get("addr_info")
        found[entry["ifname"]] = [
            written
            for row in (rows if isinstance(rows, list) else [])
            if isinstance(row, dict)
            and (written := _address(f"{row.get('local')}/{row.get('prefixlen')}"))
        ]
    return found


def _parents(listed: list[dict[str, Any]]) -> dict[str, str]:
    """Return the interface that each one is on; that of another namespace has a number only."""
    return {e["ifname"]: e["link"] for e in listed if isinstance(e.get("link"), str)}


@Fact("bond_ports", Question(globs=("/proc/net/bonding/*",)))
def parse_bonds(answers: Answers) -> tuple[BondPort, ...]:
    """Return the ports of all bonds, from /proc/net/bonding."""
    found: list[BondPort] = []
    for bond, answer in answers.below("/proc/net/bonding/").items():
        port = ""
        for line in answer.text.splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "Slave Interface":
                port = value.strip()
            elif name.strip() == "MII Status" and port:  # the bond's own comes before its ports
                found.append(BondPort(bond=bond, interface=port, up=value.strip() == "up"))
                port = ""
    return tuple(found)


def _stricter(answers: Answers, name: str, setting: str) -> int | None:
    """Return a setting of an interface: the kernel takes the higher of `all` and its own."""
    places = (f"/proc/sys/net/ipv4/conf/{each}/{setting}" for each in ("all", name))
    known = [value for path in places if (value := answers.number(path)) is not None]
    return max(known, default=None)


def _duplex(word: str | None) -> str:
    return word if word in {"full", "half"} else ""


def _address(text: str) -> str:
    try:
        return str(ip_interface(text))
    except ValueError:
        return ""


def _flags(answers: Answers, name: str) -> int | None:
    try:
        return int(answers.word(f"/sys/class/net/{name}/flags") or "", 16)
    except ValueError:
        return None


def _running(answers: Answers, name: str) -> bool | None:
    """Return whether it is up and has carrier; the carrier of a link that is down is unreadable."""
    flags = _flags(answers, name)
    if flags is not None and not flags & _UP:
        return False
    carrier = answers.number(f"/sys/class/net/{name}/carrier")
    if carrier is not None:
        return carrier == 1
    state = answers.word(f"/sys/class/net/{name}/operstate")
    return {"up": True, "unknown": True, "down": False, "lowerlayerdown": False}.get(state or "")


def _numa(answers: Answers, name: str) -> int | None:
    """Return the NUMA node of its slot; None for -1, of which the kernel knows none."""
    node = answers.number(f"/sys/class/net/{name}/device/numa_node")
    return node if node is not None and node >= 0 else None


def _positive(value: int | None) -> int | None:
    """Return a speed; None for -1 of the kernel and 0 of some drivers, which mean unknown."""
    return value if value is not None and value > 0 else None
