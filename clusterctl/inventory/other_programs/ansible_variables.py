"""The variables of an Ansible inventory that clusterctl uses."""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from clusterctl.inventory.problems import Plain, Problems, printable

_LETTERS = {"J": "ProxyJump", "p": "Port", "l": "User", "i": "IdentityFile", "o": ""}
"""Options with a value; that of `-o` names itself."""
_WITH_VALUE = frozenset("bcDEeFILmOoQRSWwJpli")
_OPTION_KEYS = {"proxyjump": "jump", "port": "port", "user": "user", "identityfile": "identity"}
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
        key = _OPTION_KEYS.get(name.lower())
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


_KEYS = {
    "host": ("ansible_host", "ansible_ssh_host"),
    "user": ("ansible_user", "ansible_ssh_user"),
    "port": ("ansible_port", "ansible_ssh_port"),
    "identity": ("ansible_ssh_private_key_file", "ansible_private_key_file"),
}
"""Ansible's names of our keys, the older name last."""
_ARGUMENTS = ("ansible_ssh_common_args", "ansible_ssh_extra_args", "ansible_ssh_args")
_PASSWORDS = ("ansible_password", "ansible_ssh_pass", "ansible_ssh_password")
_CONNECTION = "ansible_connection"
_BY_SSH = frozenset({"", "ssh", "smart", "paramiko", "paramiko_ssh", "openssh", "local"})


def node_of(host: str, variables: Mapping[str, Any], problems: Problems) -> dict[str, object]:
    """Return a host as a hosts.yaml has it."""
    node: dict[str, object] = {"host": host}
    for key, value in _settings(variables, problems):
        if not isinstance(value, str) or "{{" in value:
            found = f'"{printable(value)}"' if isinstance(value, str) else "what Ansible computes"
            where = f"{printable(host)}: {found} for {key}"
            problems.add((), wanted="a plain value", found=where, line=1)
        elif key == "host" and "[" in value.removeprefix("["):
            # Not even Ansible expands it, and so all these hosts would be one.
            wanted = "one address in ansible_host (a range belongs into the host's name)"
            problems.add((), wanted=wanted, found=f'"{printable(value)}"', line=1)
        else:
            node[key] = Plain(value) if key == "port" else value
    connection = str(variables.get(_CONNECTION, ""))
    if connection == "local":
        return {"host": "localhost"}
    if connection not in _BY_SSH:
        found = f'"{printable(connection)}"'
        problems.add((), wanted="a host that is reached by SSH", found=found, line=1)
    return node


def _settings(variables: Mapping[str, Any], problems: Problems) -> Iterator[tuple[str, object]]:
    """Yield our keys, each with its value; note what is left."""
    settings: dict[str, object] = {}
    for key, names in _KEYS.items():
        value = next((variables[name] for name in names if name in variables), None)
        if value is not None and value != "":
            settings[key] = value
    for name in (name for name in _ARGUMENTS if name in variables):
        taken, left = read_arguments(str(variables[name]))
        for key, text in taken.items():
            settings.setdefault(key, text)
        for argument in left:
            text = f"not taken over: {printable(argument)} (write it in ~/.ssh/config)"
            problems.note(text, line=1)
    for name in (name for name in _PASSWORDS if name in variables):
        problems.note(f"not taken over: {name}; use a key", line=1)
    yield from settings.items()
