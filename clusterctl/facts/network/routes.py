"""The main routing tables, /proc/net/route and /proc/net/ipv6_route."""

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_network

from clusterctl.facts.answers import Answers
from clusterctl.facts.fact import Fact, Question
from clusterctl.values import dataclass

TABLE, TABLE6 = "/proc/net/route", "/proc/net/ipv6_route"
_UP, _REJECT, _LOCAL = 0x1, 0x200, 0x80000000


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A line of the node's main routing table."""

    destination: str
    """A network, `0.0.0.0/0` for the default route."""
    interface: str
    gateway: str = ""
    source: str = ""
    metric: int = 0

    def __post_init__(self) -> None:
        """Refuse what is not a network."""
        ip_network(self.destination)


@Fact("routes", Question(files=(TABLE, TABLE6)))
def parse_routes(answers: Answers) -> tuple[Route, ...] | None:
    """Return the routes of both families; None if no table could be read."""
    table = answers.text(TABLE)
    table6 = answers.text(TABLE6)
    if table is None and table6 is None:
        return None
    return (*_routes4(table or ""), *_routes6(table6 or ""))


def _routes4(table: str) -> Iterator[Route]:
    for line in table.splitlines()[1:]:
        fields = line.split()
        try:
            network = ip_network(f"{_address4(fields[1])}/{_address4(fields[7])}", strict=False)
            flags, gateway = int(fields[3], 16), _address4(fields[2])
            metric = int(fields[6])
        except (ValueError, IndexError):
            continue
        if flags & _UP and not flags & _REJECT:
            yield Route(
                destination=str(network),
                interface=fields[0],
                gateway=str(gateway) if int(gateway) else "",
                metric=metric,
            )


def _address4(text: str) -> IPv4Address:
    """Parse eight hexadecimal digits in the machine's byte order: little-endian."""
    return IPv4Address(int.from_bytes(bytes.fromhex(text), "little"))


def _routes6(table: str) -> Iterator[Route]:
    for line in table.splitlines():
        fields = line.split()
        try:
            network = IPv6Network((int(fields[0], 16), int(fields[1], 16)))
            gateway = IPv6Address(int(fields[4], 16))
            metric, flags, interface = int(fields[5], 16), int(fields[8], 16), fields[9]
        except (ValueError, IndexError):
            continue
        wanted = flags & _UP and not flags & (_REJECT | _LOCAL)
        if wanted and not network.is_multicast and interface != "lo":
            yield Route(
                destination=str(network),
                interface=interface,
                gateway=str(gateway) if int(gateway) else "",
                metric=metric,
            )
