"""The addresses of this machine: a host with one of them needs no SSH."""

from __future__ import annotations

import ipaddress
import os
import pwd
from collections.abc import Set as AbstractSet

_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})


def own_addresses() -> frozenset[str]:
    """Return the IP addresses of this machine's interfaces, in this network namespace."""
    import psutil  # noqa: PLC0415  (few verbs ask)

    return frozenset(
        normal
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if (normal := normal_address(address.address)) is not None
    )


def is_here(host: str, own: AbstractSet[str]) -> bool:
    """Tell whether a host, as written, is this machine.

    Names other than localhost are not looked up: ssh_config may map them to another host, and a
    slow name server would delay every command.
    """
    if host.lower() in _NAMES:
        return True
    address = normal_address(host)
    if address is None:
        return False
    return ipaddress.ip_address(address).is_loopback or address in own


def normal_address(text: str) -> str | None:
    """Return an IP address in its canonical form; None if the text is not one."""
    try:
        return str(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return None


def own_user() -> str:
    """Return the user who runs this program; the UID if it has no name, as in many containers."""
    user = os.getuid()
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
