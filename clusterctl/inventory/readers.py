"""How the values of a hosts.yaml are read, each kind by a function.

A reader takes what stands in the document (text, a list, a mapping, or None where
nothing is written) and returns the value, or raises `Unwanted`, which says what was wanted.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Callable
from pathlib import Path

from pydantic_core import PydanticCustomError

from clusterctl.inventory.document import Plain
from clusterctl.inventory.login import split_login
from clusterctl.inventory.problems import nearest, printable, shown
from clusterctl.inventory.ranges import BadRange, expand_hosts

_INTEGER = re.compile(r"0|[1-9][0-9]{0,9}")
_NUMBER = re.compile(r"(0|[1-9][0-9]{0,9})(\.[0-9]{1,3})?")
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?")
_SHELLS = r"""'"`;&<>|(){}"""
"""What ssh, too, refuses in a user's name: a ProxyCommand may name the user to a shell."""
USER = re.compile(rf"[^\s:/@{_SHELLS}-][^\s:/{_SHELLS}]{{0,254}}")
JUMP = re.compile(r"[^\s,-][^\s,]*(,[^\s,-][^\s,]*)*")
CLUSTER = re.compile(r"[a-z0-9][a-z0-9-]{0,23}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")
SIGNALS = ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2")


def Unwanted(wanted: str, found: object) -> PydanticCustomError:  # noqa: N802  (reads as a class)
    """Return the error that a reader raises; `found` is shown as it was written."""
    text = found.text if isinstance(found, _Said) else shown(found)
    return PydanticCustomError("unwanted", "{wanted}", {"wanted": wanted, "found": text})


class _Said:
    """Something found that is a sentence, not a value of the file."""

    def __init__(self, text: str) -> None:
        self.text = text


def whole(low: int, high: int, what: str = "a whole number") -> Callable[[object], int]:
    """Return a reader of whole numbers within bounds, unquoted."""
    wanted = f"{what} from {low} to {high}"

    def read(value: object) -> int:
        if not isinstance(value, Plain) or not _INTEGER.fullmatch(value):
            quoted = isinstance(value, str) and _INTEGER.fullmatch(value)
            raise Unwanted(f"{wanted}, without quotes" if quoted else wanted, value)
        number = int(value)
        if not low <= number <= high:
            raise Unwanted(wanted, value)
        return number

    return read


def text(wanted: str, pattern: re.Pattern[str]) -> Callable[[object], str]:
    """Return a reader of text that matches a pattern."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise Unwanted(wanted, value)
        return str(value)

    return read


def choice(*words: str) -> Callable[[object], str]:
    """Return a reader of one of a few words."""
    wanted = "one of " + ", ".join(words) if len(words) > 1 else words[0]

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in words:
            near = nearest(value, words) if isinstance(value, str) else None
            raise Unwanted(f"{near} ({wanted})" if near not in (None, wanted) else wanted, value)
        return str(value)

    return read


def read_gpus(value: object) -> int | None:
    """Read a count of GPUs; `auto` is None."""
    if isinstance(value, str) and value == "auto":
        return None
    return whole(0, 256, "auto, or a whole number")(value)


def read_yes(value: object) -> bool:
    """Read a truth value as YAML writes it."""
    word = value.lower() if isinstance(value, Plain) else ""
    if word not in _TRUE + _FALSE:
        raise Unwanted("true or false", value)
    return word in _TRUE


def read_seconds(value: object) -> float:
    """Read a time of at most a day."""
    if not isinstance(value, Plain) or not _NUMBER.fullmatch(value) or float(value) > 86400:  # noqa: PLR2004
        raise Unwanted("seconds from 0 to 86400", value)
    return float(value)


def read_host(value: object) -> tuple[str, ...]:
    """Read a name, an address or a range into the hosts it stands for."""
    if not isinstance(value, str) or not value:
        raise Unwanted("a host name, an address, or a range as gpu[01-04]", value)
    address = ip_literal(value)
    if address is not None:
        return (address,)
    login = split_login(value)
    if login.user is not None or login.port is not None:
        parts = (("user", login.user), ("host", login.host), ("port", login.port))
        words = ", ".join(printable(f"{key}: {part}") for key, part in parts if part)
        raise Unwanted(f"each part by its own key ({words})", value)
    hosts = _expanded(value)
    for host in hosts:
        found = value if hosts == (value,) else host
        if host.isdecimal():
            raise Unwanted("a host name that is more than a number (--nodes 4 is a count)", found)
        if not _HOST.fullmatch(host) and ip_literal(host) is None:
            raise Unwanted("a host name of letters, digits, '.', '_' and '-'", found)
    return hosts


def read_addresses(value: object) -> tuple[str, ...]:
    """Read one address, or a range of them."""
    if not isinstance(value, str) or not value:
        raise Unwanted("an IP address, or a range of them", value)
    addresses = (value,) if ip_literal(value) else _expanded(value)
    for address in addresses:
        if ip_literal(address) is None:
            raise Unwanted("an IP address on the data network", address)
    return tuple(str(ipaddress.ip_address(address.strip("[]"))) for address in addresses)


def _expanded(text: str) -> tuple[str, ...]:
    try:
        return expand_hosts(text)
    except BadRange as error:
        raise Unwanted(error.wanted, _Said(printable(error.found))) from error


def ip_literal(text: str) -> str | None:
    """Return an IP address without the brackets that some write around IPv6."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") and ":" in text else text
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        return None
    return bare


def read_subnet(value: object) -> str:
    """Read a network; an address with host bits in it gets the right one told."""
    wanted = "a network as 10.11.7.0/24"
    if not isinstance(value, str) or "/" not in value:
        raise Unwanted(wanted, value)
    try:
        network = ipaddress.ip_network(value, strict=False)
    except ValueError:
        raise Unwanted(wanted, value) from None
    if str(network) != value and ipaddress.ip_address(value.partition("/")[0]) != (
        network.network_address
    ):
        raise Unwanted(str(network), value)
    return str(network)


def read_path(value: object) -> str:
    """Read a path on the nodes; relative ones are meant from workdir."""
    wanted = "a path on the nodes"
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise Unwanted(wanted, value)
    if value.startswith("~"):
        raise Unwanted(f"{wanted} without ~ (homes differ between nodes)", value)
    return str(value)


def read_absolute(value: object) -> str:
    """Read an absolute path on the nodes."""
    path = read_path(value)
    parts = path.split("/")
    if not path.startswith("/") or ".." in parts:
        raise Unwanted("an absolute path on the nodes, without ..", value)
    return "/" + "/".join(part for part in parts if part not in ("", "."))


def read_folder(value: object) -> str:
    """Read an absolute path that is not the root."""
    path = read_absolute(value)
    if path == "/":
        raise Unwanted("a folder of the job's own", value)
    return path


def read_interpreter(value: object) -> str:
    """Read an absolute path, or a name to be found on PATH."""
    path = read_path(value)
    if "/" in path:
        return read_absolute(value)
    if path.split() != [path]:
        raise Unwanted("one program, as /opt/venv/bin/python", value)
    return path


def read_inside(value: object) -> str:
    """Read a path that stays inside workdir."""
    path = read_path(value)
    if path.startswith("/") or ".." in path.split("/"):
        raise Unwanted("a file name inside workdir", value)
    return path


def read_local_path(value: object) -> str:
    """Read a path on the controller."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise Unwanted("a path on this machine", value)
    try:
        return str(Path(value).expanduser())
    except RuntimeError:  # ~user of someone unknown here
        raise Unwanted("a path on this machine", value) from None


def read_text(value: object) -> str:
    """Read any text that a process can be given."""
    if not isinstance(value, str) or "\0" in value:
        found = 'nothing (write "" for an empty one)' if value is None else shown(value)
        raise Unwanted("text", _Said(found))
    return str(value)


def read_line(value: object) -> str:
    """Read one piece of shell that is not empty."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise Unwanted("a shell line", value)
    return str(value)


def read_words(value: object) -> list[object]:
    """Read the outer shape of a list of words; each word is read by itself."""
    if isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError:
            words = [value]
        raise Unwanted(f"a list of words: [{', '.join(words)}]", value)
    return _listed(value, "a list of words")


def read_paths(value: object) -> list[object]:
    """Read the outer shape of a list of paths."""
    return _listed(value, "a list of paths")


def read_names(value: object) -> list[object]:
    """Read the outer shape of a list of variable names."""
    return _listed(value, "a list of variable names")


def _listed(value: object, wanted: str) -> list[object]:
    if not isinstance(value, list):
        raise Unwanted(wanted, value)
    return value


def read_variables(value: object) -> dict[str, object]:
    """Read the outer shape of an environment."""
    if not isinstance(value, dict):
        raise Unwanted("a mapping of names to values", value)
    return value


_read_known_signal = choice(*SIGNALS)


def read_signal(value: object) -> str:
    """Read a signal, with or without SIG; it is kept without."""
    if isinstance(value, str) and value.removeprefix("SIG") in SIGNALS:
        return value.removeprefix("SIG")
    return _read_known_signal(value)
