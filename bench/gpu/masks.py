"""Takes what identifies a machine out of a text: reports are attached to public issues."""

from __future__ import annotations

import getpass
import re
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path

NOT_A_NUMBER = frozenset({"n/a", "[n/a]", "0", "none", "unknown", "not available", ""})
COMMON_NAMES = frozenset({"localhost", "root", ""})

_UUID = re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b")
_MAC = re.compile(r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b")
_ELEMENT = re.compile(
    r"(<(\w*(?:serial|guid|pdi|chassis_physical_id)\w*)>)([^<]+)(</\2>)", re.IGNORECASE
)
_FIELD = re.compile(
    r"^(.*\b(?:Serial(?: Number)?|GUID|PDI)\s*:[ \t]*)(\S.*?)([ \t]*)$",
    re.IGNORECASE | re.MULTILINE,
)
_HOME = re.compile(r"/home/[^/\s\"':]+")


class Masks:
    """Equal values get equal names, so that a reader still sees which GPU is which."""

    def __init__(self, known: Iterable[tuple[str, str]] = ()) -> None:
        """Begin with values that are known, such as the host's name, and what to write instead."""
        self._known = sorted(known, key=lambda pair: -len(pair[0]))
        self._numbers: dict[str, dict[str, int]] = {}

    def apply(self, text: str) -> str:
        """Return the text without serial numbers, UUIDs, addresses, names and home folders."""
        for value, name in self._known:
            text = re.sub(rf"(?<![\w.-]){re.escape(value)}(?![\w-])", name, text)
        text = _UUID.sub(lambda found: self._uuid(found[0]), text)
        text = _MAC.sub(lambda found: f"MAC-{self._number('MAC', found[0])}", text)
        text = _ELEMENT.sub(lambda f: f[1] + self._serial(f[3]) + f[4], text)
        text = _FIELD.sub(lambda f: f[1] + self._serial(f[2]) + f[3], text)
        return _HOME.sub("/home/USER", text)

    def _number(self, kind: str, value: str) -> int:
        numbers = self._numbers.setdefault(kind, {})
        return numbers.setdefault(value.lower(), len(numbers) + 1)

    def _uuid(self, value: str) -> str:
        """Return one of the same form: parsers of recordings still read it."""
        if value.startswith("00000000-0000-0000"):
            return value
        return f"00000000-0000-0000-0000-{self._number('UUID', value):012}"

    def _serial(self, value: str) -> str:
        if value.strip().lower() in NOT_A_NUMBER or re.fullmatch(r"MASKED-\d+", value.strip()):
            return value
        return f"MASKED-{self._number('serial', value.strip())}"


def of_this_machine(*folders: tuple[Path, str]) -> Masks:
    """Return masks for this machine's names and addresses, and for folders."""
    names = {socket.gethostname(), socket.gethostname().partition(".")[0], socket.getfqdn()}
    known = [(name, "HOST") for name in names if name not in COMMON_NAMES]
    known += [(address, "ADDRESS") for address in _addresses()]
    known += [(str(folder), name) for folder, name in folders]
    known += [(str(Path.home()), "~")] if Path.home() != Path("/") else []
    user = _user()
    known += [(user, "USER")] if user not in COMMON_NAMES else []
    return Masks(known)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no entry for this uid
        return ""


def _addresses() -> list[str]:
    try:
        done = subprocess.run(
            ["hostname", "-I"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split()
