"""Reads hosts, logins, addresses and networks; refuses what a shell of ssh would run."""

import ipaddress
import os
import pwd
import re
from collections.abc import Set as AbstractSet

from clusterctl.inventory.problems import InvalidValue, printable
from clusterctl.inventory.ranges import BadRange, expand_hosts

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?")
_SHELLS = r"""'"`;&<>|(){}"""
"""ssh refuses these in a user's name too: a ProxyCommand may pass the name to a shell."""
USER = re.compile(rf"[^\s:/@{_SHELLS}-][^\s:/{_SHELLS}]{{0,254}}")
_LOGIN = re.compile(r"(?P<host>[^:]*|\[[^\[\]]*:[^\[\]]*\]):(?P<port>[0-9]+)")
"""One colon, or brackets around the address: the colons of a bare IPv6 address are its own."""
_SCOPE = re.compile(r"[^%]*(%[A-Za-z0-9._-]+)?")
"""An address may name an interface, which ssh hands to a ProxyCommand's shell."""


def split_login(text: str) -> tuple[str | None, str, str | None]:
    """Split `user@host:port`, the form that ssh takes; the host may be any text."""
    user, at, host = text.rpartition("@")
    found = _LOGIN.fullmatch(host)
    parts = (found["host"], found["port"]) if found else (host, None)
    return (user if at else None, *parts)


def is_jump(value: str) -> bool:
    """Tell whether text is a list of jump hosts, in the form of ProxyJump."""
    return all(map(_is_jump_host, value.split(",")))


def _is_jump_host(value: str) -> bool:
    user, host, _ = split_login(value.removeprefix("ssh://").removesuffix("/"))
    known = _HOST.fullmatch(host) or ip_literal(host) is not None
    return bool(known) and (user is None or USER.fullmatch(user) is not None)


def read_host(value: object) -> tuple[str, ...]:
    """Read a name, an address or a range; return its hosts."""
    if not isinstance(value, str) or not value:
        raise InvalidValue("a host name, an address, or a range as gpu[01-04]", value)
    address = ip_literal(value)
    if address is not None:
        return (address,)
    user, host, port = split_login(value)
    if user is not None or port is not None:
        parts = (("user", user), ("host", host), ("port", port))
        words = ", ".join(printable(f"{key}: {part}") for key, part in parts if part)
        raise InvalidValue(f"each part by its own key ({words})", value)
    hosts = _expanded(value)
    for host in hosts:
        found = value if hosts == (value,) else host
        if host.isdecimal():
            raise InvalidValue(
                "a host name that is more than a number (--nodes 4 is a count)", found
            )
        if not _HOST.fullmatch(host) and ip_literal(host) is None:
            raise InvalidValue("a host name of letters, digits, '.', '_' and '-'", found)
    return hosts


def read_names(value: object) -> tuple[str, ...]:
    """Read the name of a node, or a range of them."""
    names = read_host(value)
    for name in names:
        if ip_literal(name) is not None:
            raise InvalidValue("a name, not an address", name)
    return names


def default_name(host: str) -> str:
    """Return the name of a node that the inventory gives none: its host, as a file name."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", host)


def read_addresses(value: object) -> tuple[str, ...]:
    """Read one address, or a range of them."""
    if not isinstance(value, str) or not value:
        raise InvalidValue("an IP address, or a range of them", value)
    addresses = (value,) if ip_literal(value) else _expanded(value)
    for address in addresses:
        if ip_literal(address) is None:
            raise InvalidValue("an IP address on the data network", address)
    return tuple(str(ipaddress.ip_address(address.strip("[]"))) for address in addresses)


def _expanded(value: str) -> tuple[str, ...]:
    try:
        return expand_hosts(value)
    except BadRange as error:
        raise InvalidValue(error.wanted, found=printable(error.found)) from error


def ip_literal(value: str) -> str | None:
    """Return an IP address without the brackets that some write around IPv6."""
    in_brackets = value.startswith("[") and value.endswith("]") and ":" in value
    bare = value[1:-1] if in_brackets else value
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        return None
    if not _SCOPE.fullmatch(bare):
        return None
    return str(bare)  # no longer marked as unquoted


def read_subnet(value: object) -> str:
    """Read a network; for an address with host bits the error names its network."""
    wanted = "a network as 10.11.7.0/24"
    if not isinstance(value, str) or "/" not in value:
        raise InvalidValue(wanted, value)
    try:
        interface = ipaddress.ip_interface(value)
    except ValueError:
        raise InvalidValue(wanted, value) from None
    if interface.ip != interface.network.network_address:
        raise InvalidValue(str(interface.network), value)
    return str(interface.network)


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
