"""Simulates which interface NCCL, Gloo and TensorPipe pick for a value of their variable.

NCCL's rules are those of its `findInterfaces` (2.30). A leading `^` excludes and a following `=`
matches whole names, both for the whole list. Nothing is trimmed; a value of one character is
ignored; a token ends at `:`. Only running interfaces with an address count.
"""

from collections.abc import Iterable
from ipaddress import ip_interface

from clusterctl.facts.network.interfaces import Interface
from clusterctl.facts.network.rdma import RdmaPort
from clusterctl.values import dataclass

MAX_INTERFACES = 16
"""NCCL uses no more."""
MAX_HCAS = 32
"""NCCL uses no more ports of RDMA devices (`MAX_IB_DEVS`)."""

_AUTOMATIC = ("ib", "^docker,lo,virbr", "docker", "lo", "virbr")
"""What NCCL tries in turn if nothing is set; it does not exclude `br-*` or `veth*`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """The interfaces that a library uses; ranks find each other by the first."""

    interfaces: tuple[str, ...] = ()
    problem: str = ""
    """Why the library aborts or picks an unwanted interface."""


def nccl_picks(value: str, interfaces: Iterable[Interface]) -> Pick:
    """Return NCCL's choice for a value of NCCL_SOCKET_IFNAME; empty: nothing is set."""
    usable = [i for i in interfaces if i.running is not False and _addressed(i)]
    usable.sort(key=lambda i: not i.loopback)  # NCCL keeps the kernel's order: it is number 1 there
    if len(value) > 1:
        matched = _matching(value, usable)
        return Pick(interfaces=matched, problem="" if matched else _why_none(value))
    for attempt in _AUTOMATIC:
        matched = _matching(attempt, usable)
        if matched:
            ignored = f"a value of one character ({value!r}) is ignored" if value else ""
            return Pick(interfaces=matched, problem=ignored)
    return Pick(problem="no running interface has an address")


def gloo_picks(value: str, interfaces: Iterable[Interface]) -> Pick:
    """Return Gloo's choice: it needs whole names and aborts on anything else."""
    names = {i.name for i in interfaces if i.running is not False and i.addresses}
    tokens = value.split(",")
    for token in tokens:
        if token not in names:
            return Pick(
                problem=f"Gloo aborts: it needs whole names, and no interface is called {token!r}"
            )
    return Pick(interfaces=tuple(tokens))


def tensorpipe_picks(value: str, interfaces: Iterable[Interface]) -> Pick:
    """Return TensorPipe's choice: one whole name, else it silently falls back to loopback."""
    if value in {i.name for i in interfaces if i.running is not False and i.addresses}:
        return Pick(interfaces=(value,))
    return Pick(problem=f"TensorPipe falls back to 127.0.0.1: no interface is called {value!r}")


def surprises(value: str, interfaces: Iterable[Interface]) -> tuple[str, ...]:
    """Return the interfaces that a token of NCCL's list matches as a prefix only."""
    if value.startswith(("^", "=")) or len(value) < 2:  # noqa: PLR2004  (ignored by NCCL)
        return ()
    names = [i.name for i in interfaces if _addressed(i)]
    tokens = [token.split(":")[0] for token in value.split(",")]
    return tuple(
        name
        for name in names
        if name not in tokens and any(t in names and name.startswith(t) for t in tokens)
    )


def nccl_hcas(value: str, ports: Iterable[RdmaPort]) -> tuple[RdmaPort, ...]:
    """Return the ports that a value of NCCL_IB_HCA chooses; empty: all.

    The syntax is that of the interfaces (`^`, `=`, prefixes); a token may name a port: `mlx5_0:1`.
    """
    if len(value) < 2:  # noqa: PLR2004  (ignored by NCCL)
        return tuple(ports)[:MAX_HCAS]
    exclude = value.startswith("^")
    rest = value[1:] if exclude else value
    exact = rest.startswith("=")
    tokens = [token.split(":") for token in (rest[1:] if exact else rest).split(",")]

    def named(port: RdmaPort) -> bool:
        return any(
            (port.device == name if exact else bool(name) and port.device.startswith(name))
            and (not number or not number[0] or number[0] == str(port.port))
            for name, *number in tokens
        )

    return tuple(port for port in ports if named(port) != exclude)[:MAX_HCAS]


def _matching(value: str, interfaces: list[Interface]) -> tuple[str, ...]:
    exclude = value.startswith("^")
    rest = value[1:] if exclude else value
    exact = rest.startswith("=")
    tokens = [token.split(":")[0] for token in (rest[1:] if exact else rest).split(",")]

    def named(name: str) -> bool:
        return any(name == t if exact else bool(t) and name.startswith(t) for t in tokens)

    return tuple(i.name for i in interfaces if named(i.name) != exclude)[:MAX_INTERFACES]


def _why_none(value: str) -> str:
    if " " in value:
        return "NCCL does not trim spaces"
    if any(token.startswith(("^", "=")) for token in value.lstrip("^=").split(",")):
        return "write `^` and `=` once, before the whole list"
    return "no running interface of this node matches"


def _addressed(interface: Interface) -> bool:
    """Tell whether it has an address that NCCL uses: any IPv4, or IPv6 other than ::1."""
    return any(
        parsed.version == 4 or not parsed.is_loopback  # noqa: PLR2004  (the Internet Protocol's)
        for parsed in map(ip_interface, interface.addresses)
    )
