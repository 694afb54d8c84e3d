"""The tokens and variables that ssh_config(5) allows in a value, expanded as OpenSSH does.

`ssh -G` expands those of most keywords itself, but not those of IdentityFile and ProxyCommand.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from clusterctl.inventory.machine import own_user

_TOKEN = re.compile(r"%(.)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{([^}]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the tokens stand for: one host, as ssh_config resolved it."""

    host: str
    """As it was named: `%n`."""
    hostname: str
    port: int
    user: str
    alias: str = ""
    """HostKeyAlias."""
    jump: str = ""

    def tokens(self) -> dict[str, str]:
        """Return the value of each token that IdentityFile takes."""
        here = _local_host()
        port = str(self.port)
        joined = f"{here}{self.hostname}{port}{self.user}{self.jump}"
        return {
            "%": "%",
            "C": hashlib.sha1(os.fsencode(joined), usedforsecurity=False).hexdigest(),
            "d": str(Path.home()),
            "h": self.hostname,
            "i": str(os.getuid()),
            "j": self.jump,
            "k": self.alias or self.host,
            "L": here.partition(".")[0],
            "l": here,
            "n": self.host,
            "p": port,
            "r": self.user,
            "u": own_user(),
        }


def expand_path(text: str, target: Target) -> Path:
    """Return a path of ssh_config: `~` first, then `${VARIABLE}` and tokens, as OpenSSH does.

    What has no value stays as it is written, so that the path is reported as missing.
    """
    # A value may hold a percent sign of its own, so each part is expanded once.
    parts = re.split(r"(\$\{[^}]*\}|%.)", str(expand_home(text)))
    tokens = target.tokens() if len(parts) > 1 else {}
    return Path("".join(_expanded(part, tokens) for part in parts))


def expand_command(text: str, target: Target) -> str:
    """Return a ProxyCommand with the tokens that it takes."""
    tokens = {name: value for name, value in target.tokens().items() if name in "%hnpr"}
    return _TOKEN.sub(lambda found: tokens.get(found[1], found[0]), text)


@lru_cache(maxsize=1024)
def expand_home(path: str) -> Path:
    """Return the path with `~` expanded, unless no such user exists; ssh takes quotes too."""
    plain = Path(path.strip('"'))
    try:
        return plain.expanduser()
    except (RuntimeError, ValueError):  # the second: no path at all
        return plain


def _expanded(part: str, tokens: Mapping[str, str]) -> str:
    if variable := _VARIABLE.fullmatch(part):
        return os.environ.get(variable[1], part)
    if token := _TOKEN.fullmatch(part):
        return tokens.get(token[1], part)
    return part


@lru_cache(maxsize=1)
def _local_host() -> str:
    return socket.gethostname()
