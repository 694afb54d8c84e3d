"""The ports of a node: which sockets listen, and which the kernel gives to connections."""

import re
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address

from clusterctl.facts.answers import Answers
from clusterctl.facts.fact import Fact, Question
from clusterctl.facts.request import FactRequest
from clusterctl.values import dataclass

LISTENERS = ("/proc/net/tcp", "/proc/net/tcp6")
"""All connections of the node; the kernel takes milliseconds to list them."""
_LISTENING = "0A"
_PORTS = re.compile(r"\s*(\d{1,5})\s+(\d{1,5})\s*")
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A TCP socket that listens."""

    address: str
    port: int
    uid: int | None = None


def _ask(wanted: FactRequest) -> Question:
    return Question(files=LISTENERS if wanted.listeners else ())


@Fact("listeners", _ask)
def parse_listeners(answers: Answers) -> tuple[Listener, ...] | None:
    """Return the TCP sockets that listen; None if the table could not be read."""
    table = answers.text("/proc/net/tcp")
    if table is None:
        return None
    both = (table, answers.text("/proc/net/tcp6") or "")
    return tuple(listener for text in both for listener in _listeners(text))


def _listeners(table: str) -> Iterator[Listener]:
    for line in table.splitlines()[1:]:
        fields = line.split()
        try:
            address, port = fields[1].split(":")
            if fields[3] == _LISTENING:
                yield Listener(address=_address(address), port=int(port, 16), uid=int(fields[7]))
        except (ValueError, IndexError):
            continue


def _address(text: str) -> str:
    """Parse an address as the kernel prints it: 32-bit words in the machine's byte order."""
    raw = bytes.fromhex(text)
    turned = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    return str(IPv6Address(turned) if len(turned) > 4 else IPv4Address(turned))  # noqa: PLR2004


@Fact("ephemeral_ports", file="/proc/sys/net/ipv4/ip_local_port_range")
def parse_port_range(text: str) -> tuple[int, int] | None:
    """Read the range of ephemeral ports."""
    found = _PORTS.fullmatch(text)
    return (int(found[1]), int(found[2])) if found else None


@Fact("reserved_ports", file="/proc/sys/net/ipv4/ip_local_reserved_ports")
def parse_reserved_ports(text: str) -> tuple[tuple[int, int], ...] | None:
    """Return the ranges in a list such as `29500,30000-30010`; None if it is no such list."""
    found = []
    for part in filter(None, text.strip().split(",")):
        match = _RANGE.fullmatch(part)
        if match is None:
            return None
        found.append((int(match[1]), int(match[2] or match[1])))
    return tuple(found)
