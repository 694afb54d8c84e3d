"""Reads the arguments for ssh of an Ansible inventory: what we take over, and what is left."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

_LETTERS = {"J": "ProxyJump", "p": "Port", "l": "User", "i": "IdentityFile", "o": ""}
"""Options with a value; that of `-o` names itself."""
_WITH_VALUE = frozenset("bcDEeFILmOoQRSWwJpli")
_KEYS = {"proxyjump": "jump", "port": "port", "user": "user", "identityfile": "identity"}
_NEEDLESS = frozenset(
    {
        *("controlmaster", "controlpersist", "controlpath", "serveraliveinterval"),
        *("serveralivecountmax", "tcpkeepalive", "loglevel", "connecttimeout", "batchmode"),
        *("connectionattempts", "preferredauthentications", "compression", "identitiesonly"),
    }
)
"""Options for one connection, which clusterctl sets itself."""
_ONLY_SSH = frozenset({"identityfile", "-f", "proxyjump", "proxycommand"})
_OPTION = re.compile(r"\s*([A-Za-z]+)(?:\s*=\s*|\s+)(.*?)\s*", re.DOTALL)
_TARGET = re.compile(r"\[?%h\]?:(%p|\d+)")


def read_arguments(text: str) -> tuple[dict[str, str], list[str]]:
    """Return our keys with their values, and the arguments that are not taken over."""
    taken: dict[str, str] = {}
    left: list[str] = []
    for name, value in _options(text):
        key = _KEYS.get(name.lower())
        jump = _jump(value) if name.lower() == "proxycommand" else None
        if key is not None and value:
            taken.setdefault(key, value)
        elif jump is not None:
            taken.setdefault("jump", jump)
        elif name.lower() not in _NEEDLESS:
            left.append(f"{name} {value}".strip())
    return taken, left


def _options(text: str) -> Iterator[tuple[str, str]]:
    """Yield each option's long name, else its letter, and its value; a word has no name."""
    try:
        words = shlex.split(text)
    except ValueError:
        yield "", text
        return
    while words:
        word = words.pop(0)
        letter = word[1:2] if word[:1] == "-" else ""
        if not letter:
            yield "", word
        elif letter in _WITH_VALUE:
            value = word[2:] or (words.pop(0) if words else "")
            option = _OPTION.fullmatch(value) if letter == "o" else None
            name, value = option.groups() if option else (_LETTERS.get(letter) or word[:2], value)
            yield name, value


def _jump(command: str) -> str | None:
    """Return the jump host of a ProxyCommand that is ssh's; None: it is another program."""
    program, _, rest = command.strip().partition(" ")
    options = list(_options(rest))
    named = {name if name == "-W" else name.lower(): value for name, value in options if name}
    host, *ran = [value for name, value in options if not name] or [""]
    through = _TARGET.fullmatch(named.get("-W", "")) or (ran[:1] in (["nc"], ["netcat"]))
    # With its own key or jump host, only ssh_config can tell how it is reached.
    if program.rpartition("/")[2] != "ssh" or named.keys() & _ONLY_SSH or not through:
        return None
    if not host or "%" in host:
        return None
    user, port = named.get("user"), named.get("port")
    login = f"{user}@{host}" if user and "@" not in host else host
    return f"{login}:{port}" if port else login
