"""Parses network interfaces from /sys/class/net and `ip -j addr`, or /proc if there is no `ip`."""

from __future__ import annotations

import re
from collections import defaultdict
from ipaddress import IPv4Address, IPv6Interface, ip_interface

from clusterctl.facts.answers import Answers
from clusterctl.facts.routes import parse_routes
from clusterctl.facts.values.network import Interface, RdmaPort, Route

_UP, _LOOPBACK = 0x1, 0x8
_PORT = re.compile(r"\d{1,5}")
_STATE = re.compile(r"\d+: (\w+)")
_RATE = re.compile(r"(\d{1,9})(?:\.\d+)? Gb/sec")


def parse_interfaces(answers: Answers) -> tuple[Interface, ...] | None:
    """Return the interfaces with their addresses; None if nothing could be read."""
    files = answers.below("/sys/class/net/")
    names = {path.split("/")[0] for path in files}
    addresses = _by_ip(answers)
    if addresses is None:
        addresses = _by_proc(answers)
    if addresses is None:
        return None
    return tuple(
        Interface(
            name=name,
            addresses=tuple(addresses.get(name, ())),
            running=_running(answers, name),
            speed_mbps=_positive(answers.number(f"/sys/class/net/{name}/speed")),
            mtu=answers.number(f"/sys/class/net/{name}/mtu"),
            loopback=bool((_flags(answers, name) or 0) & _LOOPBACK) or name == "lo",
        )
        for name in sorted(names | set(addresses))
    )


def parse_rdma(answers: Answers) -> tuple[RdmaPort, ...]:
    """Return the ports of the RDMA devices."""
    found = []
    for path in answers.below("/sys/class/infiniband/"):
        parts = path.split("/")
        if len(parts) != 4 or parts[3] != "state" or not _PORT.fullmatch(parts[2]):  # noqa: PLR2004
            continue
        folder = "/sys/class/infiniband/" + "/".join(parts[:3])
        state = _STATE.match(answers.word(folder + "/state") or "")
        rate = _RATE.match(answers.word(folder + "/rate") or "")
        found.append(
            RdmaPort(
                device=parts[0],
                port=int(parts[2]),
                state=state[1] if state else "",
                link_layer=answers.word(folder + "/link_layer") or "",
                rate_gbps=int(rate[1]) if rate else None,
            )
        )
    return tuple(sorted(found, key=lambda port: (port.device, port.port)))


def _by_ip(answers: Answers) -> dict[str, list[str]] | None:
    listed = answers.json("command:addresses")
    if not isinstance(listed, list):
        return None
    found: dict[str, list[str]] = {}
    for entry in listed:
        if not isinstance(entry, dict) or not isinstance(entry.get("ifname"), str):
            continue
        rows = entry.get("addr_info")
        found[entry["ifname"]] = [
            written
            for row in (rows if isinstance(rows, list) else [])
            if isinstance(row, dict)
            and (written := _address(f"{row.get('local')}/{row.get('prefixlen')}"))
        ]
    return found


def _by_proc(answers: Answers) -> dict[str, list[str]] | None:
    """Derive the addresses from fib_trie, the routes, and if_inet6."""
    trie = answers.text("/proc/net/fib_trie")
    if trie is None:
        return None
    found: dict[str, list[str]] = defaultdict(list)
    routes = parse_routes(answers) or ()
    for address in _local_addresses(trie):
        if address.is_loopback:
            found["lo"].append(f"{address}/8")
        elif route := _own_route(routes, address):
            found[route.interface].append(f"{address}/{route.destination.split('/')[1]}")
    for line in (answers.text("/proc/net/if_inet6") or "").splitlines():
        fields = line.split()
        try:
            found[fields[5]].append(str(IPv6Interface((int(fields[0], 16), int(fields[2], 16)))))
        except (ValueError, IndexError):
            continue
    return dict(found)


def _local_addresses(trie: str) -> list[IPv4Address]:
    """Return the leaves that are `/32 host LOCAL`."""
    found: dict[IPv4Address, None] = {}
    leaf = None
    for line in trie.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == "|--":  # noqa: PLR2004
            leaf = words[1]
        elif words[:3] == ["/32", "host", "LOCAL"] and leaf:
            try:
                found[IPv4Address(leaf)] = None
            except ValueError:
                continue
    return list(found)


def _own_route(routes: tuple[Route, ...], address: IPv4Address) -> Route | None:
    """Return the narrowest route to the address's own network without a gateway."""
    near = [
        route
        for route in routes
        if not route.gateway and address in ip_interface(route.destination).network
    ]
    return max(near, key=lambda r: ip_interface(r.destination).network.prefixlen, default=None)


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


def _positive(value: int | None) -> int | None:
    """Return a speed; None for -1 of the kernel and 0 of some drivers, which mean unknown."""
    return value if value is not None and value > 0 else None
