"""Functions that read the values of a hosts.yaml, one for each kind of field.

A reader takes the value in the document: text, a list, a mapping, or None if the file has no
value there. It returns the parsed value, or raises `InvalidValue`, which says what it expected.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from clusterctl.inventory.document import Plain
from clusterctl.inventory.problems import nearest, printable, shown
from clusterctl.inventory.ranges import BadRange, expand_hosts

_INTEGER = re.compile(r"0|[1-9][0-9]{0,9}")
_NUMBER = re.compile(r"(0|[1-9][0-9]{0,9})(\.[0-9]{1,3})?")
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?")
_SHELLS = r"""'"`;&<>|(){}"""
"""ssh refuses these in a user's name too: a ProxyCommand may pass the name to a shell."""
_USER = re.compile(rf"[^\s:/@{_SHELLS}-][^\s:/{_SHELLS}]{{0,254}}")
_LOGIN = re.compile(r"(?P<host>[^:]*|\[[^\[\]]*:[^\[\]]*\]):(?P<port>[0-9]+)")
"""One colon, or brackets around the address: the colons of a bare IPv6 address are its own."""
_SCOPE = re.compile(r"[^%]*(%[A-Za-z0-9._-]+)?")
"""An address may name an interface, which ssh hands to a ProxyCommand's shell."""
CLUSTER = re.compile(r"[a-z0-9][a-z0-9-]{0,23}")
PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(==[A-Za-z0-9.!+_-]+)?")
SBATCH_OPTION = re.compile(r"[a-z][a-z_-]+")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")
SIGNALS = ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2")
_DAY = 86400

OWN_SBATCH_OPTIONS = frozenset({
    "array", "batch", "chdir", "clusters", "error", "export", "export-file", "help", "input",
    "no-requeue", "ntasks", "ntasks-per-node", "open-mode", "output", "parsable", "quiet",
    "requeue", "test-only", "usage", "version", "wait", "wrap",
})  # fmt: skip
"""The options of sbatch that a submission has its own value for, or that change its answer."""

T = TypeVar("T")


class InvalidValue(ValueError):  # noqa: N818  (names the value)
    """A value that a field does not take."""

    def __init__(self, wanted: str, value: object = None, *, found: str | None = None) -> None:
        """Show the value as it was written, or the text `found`."""
        super().__init__(wanted)
        self.wanted = wanted
        self.found = shown(value) if found is None else found


def split_login(text: str) -> tuple[str | None, str, str | None]:
    """Split `user@host:port`, the form that ssh takes; the host may be any text."""
    user, at, host = text.rpartition("@")
    found = _LOGIN.fullmatch(host)
    parts = (found["host"], found["port"]) if found else (host, None)
    return (user if at else None, *parts)


def whole_number(low: int, high: int, what: str = "a whole number") -> Callable[[object], int]:
    """Return a reader of whole numbers within bounds, unquoted."""
    wanted = f"{what} from {low} to {high}"

    def read(value: object) -> int:
        if not isinstance(value, str) or not _INTEGER.fullmatch(value):
            raise InvalidValue(wanted, value)
        if not isinstance(value, Plain):
            raise InvalidValue(f"{wanted}, without quotes", value)
        if not low <= int(value) <= high:
            raise InvalidValue(wanted, value)
        return int(value)

    return read


def text(wanted: str, fits: Callable[[str], object]) -> Callable[[object], str]:
    """Return a reader of text for which `fits` returns something true."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not fits(value):
            raise InvalidValue(wanted, value)
        return str(value)

    return read


def choice(*words: str) -> Callable[[object], str]:
    """Return a reader of one of a few words."""
    wanted = "one of " + ", ".join(words) if len(words) > 1 else words[0]

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in words:
            near = nearest(value, words) if isinstance(value, str) else None
            raise InvalidValue(
                f"{near} ({wanted})" if near not in (None, wanted) else wanted, value
            )
        return str(value)

    return read


def shape(kind: type[T], wanted: str) -> Callable[[object], T]:
    """Return a reader that checks for a list or a mapping; other readers take its items."""

    def read(value: object) -> T:
        if not isinstance(value, kind):
            raise InvalidValue(wanted, value)
        return value

    return read


def _is_jump(value: str) -> bool:
    user, host, _ = split_login(value.removeprefix("ssh://").removesuffix("/"))
    known = _HOST.fullmatch(host) or ip_literal(host) is not None
    return bool(known) and (user is None or _USER.fullmatch(user) is not None)


def _is_path(value: str) -> bool:
    return bool(value.strip()) and value.isprintable()


read_name = text("a name of 1 to 24 characters a-z, 0-9 and -, no - in front", CLUSTER.fullmatch)
read_user = text("a user name", _USER.fullmatch)
read_jump = text(
    "[user@]host[:port], several with commas, or none",
    lambda value: all(map(_is_jump, value.split(","))),
)
read_variable = text("a variable name of letters, digits and _", VARIABLE.fullmatch)
read_line = text("a shell line", lambda value: value.strip() and "\0" not in value)
_read_node_path = text("a path on the nodes", _is_path)
_read_path_here = text("a path on this machine", _is_path)
_read_signal = choice(*SIGNALS)
_read_words = shape(list, "a list of words")
_read_gpu_count = whole_number(0, 256, "auto, or a whole number")


def read_gpus(value: object) -> int | None:
    """Read a count of GPUs; `auto` is None."""
    return None if value == "auto" else _read_gpu_count(value)


def read_boolean(value: object) -> bool:
    """Read a truth value as YAML writes it."""
    word = value.lower() if isinstance(value, Plain) else ""
    if word not in _TRUE + _FALSE:
        raise InvalidValue("true or false", value)
    return word in _TRUE


def read_seconds(value: object) -> float:
    """Read a time of at most a day."""
    if not isinstance(value, Plain) or not _NUMBER.fullmatch(value) or float(value) > _DAY:
        raise InvalidValue(f"seconds from 0 to {_DAY}", value)
    return float(value)


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


def read_path(value: object) -> str:
    """Read a path on the nodes; a relative one starts at workdir."""
    path = _read_node_path(value)
    if path.startswith("~"):
        raise InvalidValue("a path on the nodes without ~ (homes differ between nodes)", value)
    return path


def read_absolute(value: object) -> str:
    """Read an absolute path on the nodes."""
    path = read_path(value)
    parts = path.split("/")
    if not path.startswith("/") or ".." in parts:
        raise InvalidValue("an absolute path on the nodes, without ..", value)
    return "/" + "/".join(part for part in parts if part not in ("", "."))


def read_folder(value: object) -> str:
    """Read an absolute path that is not the root."""
    path = read_absolute(value)
    if path == "/":
        raise InvalidValue("a folder of the job's own", value)
    return path


def read_interpreter(value: object) -> str:
    """Read an absolute path, or the name of a program on PATH."""
    path = read_path(value)
    if "/" in path:
        return read_absolute(value)
    if path.split() != [path]:
        raise InvalidValue("one program, as /opt/venv/bin/python", value)
    return path


def read_inside(value: object) -> str:
    """Read a path that stays inside workdir."""
    path = read_path(value)
    if path.startswith("/") or ".." in path.split("/"):
        raise InvalidValue("a file name inside workdir", value)
    return path


def read_local_path(value: object) -> str:
    """Read a path on the controller."""
    try:
        return str(Path(_read_path_here(value)).expanduser())
    except RuntimeError:  # ~user of an unknown user
        raise InvalidValue("a path on this machine", value) from None


def read_package(value: object) -> str:
    """Read a Python package's name, perhaps with one version."""
    if not isinstance(value, str) or not PACKAGE.fullmatch(value):
        raise InvalidValue("a package as axolotl or axolotl==0.12.2", value)
    return str(value)


def read_word(value: object) -> str:
    """Read any text that a process can be given."""
    if not isinstance(value, str) or "\0" in value:
        found = 'nothing (write "" for an empty one)' if value is None else None
        raise InvalidValue("text", value, found=found)
    return str(value)


def read_words(value: object) -> list[object]:
    """Check for a list of words; a reader takes each word."""
    if isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError:
            words = [value]
        raise InvalidValue(f"a list of words: [{', '.join(words)}]", value)
    return _read_words(value)


def _is_ray_address(value: str) -> bool:
    _, host, port = split_login(value.removeprefix("ray://"))
    return value == "auto" or bool(host and port and port.isdigit() and "@" not in value)


read_ray_address = text("auto, HOST:PORT or ray://HOST:PORT", _is_ray_address)
"""Read where a Ray cluster is."""


def read_sbatch_option(value: object) -> str:
    """Read the long name of an option of sbatch, with `-` or `_`; return it with `-`."""
    if not isinstance(value, str) or not SBATCH_OPTION.fullmatch(value):
        raise InvalidValue("an option of sbatch without --, such as gpus-per-node", value)
    name = value.replace("_", "-")
    if name in OWN_SBATCH_OPTIONS:
        raise InvalidValue("an option that clusterctl does not set itself", value)
    return name


def read_signal(value: object) -> str:
    """Read a signal with or without SIG; return it without."""
    if isinstance(value, str) and value.removeprefix("SIG") in SIGNALS:
        return value.removeprefix("SIG")
    return _read_signal(value)
