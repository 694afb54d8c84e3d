"""Where a node really is: the inventory's words over what `ssh -G` says, its tokens expanded.

`ssh -G` expands those of most keywords itself, but not those of IdentityFile and ProxyCommand.

OpenSSH itself is asked, since nobody else reads Include, Match and tokens as it does.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Node
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


logger = logging.getLogger(__name__)

RESOLVE_SECONDS = 10.0
ASKED_AT_ONCE = 16
"""Processes; each is done in milliseconds, and a container may allow few."""
DEFAULT_PORT = 22
DEFAULTS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
"""The keys that are offered if ssh_config cannot be asked."""
_NUMBER = re.compile("[0-9]{1,9}")
DEFAULT_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "~/.ssh/known_hosts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Everything needed to reach a node over SSH."""

    host: str
    """As the inventory calls it."""
    hostname: str
    """The name or address to connect to."""
    port: int
    user: str
    key_name: str
    """The name its host key is recorded under: HostKeyAlias, or the host name."""
    identity: Path | None = None
    """The inventory's own key: the first to be offered, and asked for if it is encrypted."""
    identities: tuple[Path, ...] = ()
    """ssh_config's keys, or OpenSSH's defaults."""
    identities_only: bool = False
    agent: str | None = None
    """IdentityAgent of ssh_config; None: SSH_AUTH_SOCK; empty: none."""
    jump: str | None = None
    proxy_command: str | None = None
    known_hosts: tuple[Path, ...] = ()
    connect_timeout: float | None = None

    @property
    def target(self) -> str:
        """The endpoint for messages."""
        name = f"[{self.hostname}]" if ":" in self.hostname else self.hostname
        return f"{name}:{self.port}"


class SshConfigResolver:
    """Resolves nodes, each question asked once; safe from several threads."""

    def __init__(self, *, config: Path | None = None) -> None:
        """Use the person's own ssh_config, or this file alone."""
        self._config = config
        self._ssh = shutil.which("ssh")
        self._answers: dict[tuple[str, str | None, int | None], dict[str, list[str]]] = {}
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(ASKED_AT_ONCE)
        self._told = False

    def refresh(self) -> None:
        """Forget the answers: the files may have changed."""
        with self._lock:
            self._answers.clear()

    def resolve(self, node: Node) -> Endpoint:
        """Return where and how the node is reached.

        Raises:
            NodeError: ssh_config cannot be used.
        """
        if self._ssh is None:
            with self._lock:
                if not self._told:
                    logger.warning("no ssh on this machine: only the inventory is read")
                self._told = True
            return endpoint(node, {})
        return endpoint(node, self._ask(node.host, node.ssh.user, node.ssh.port))

    def _ask(self, host: str, user: str | None, port: int | None) -> dict[str, list[str]]:
        key = (host, user, port)
        with self._lock:
            known = self._answers.get(key)
        if known is not None:
            return known
        argv = ["ssh", "-G"]
        if self._config is not None:
            argv += ["-F", str(self._config)]
        if user is not None:
            argv += ["-l", user]
        if port is not None:
            argv += ["-p", str(port)]
        hint = f"try: ssh -G {host}"
        try:
            with self._slots:
                done = subprocess.run(
                    [*argv, "--", host],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    errors="surrogateescape",
                    timeout=RESOLVE_SECONDS,
                    check=False,
                )
        except subprocess.TimeoutExpired as error:
            words = f"ssh -G did not answer in {RESOLVE_SECONDS:.0f} s; a Match exec may hang"
            raise NodeError("unreachable", "config", words, hint) from error
        if done.returncode:
            raise NodeError("unreachable", "config", done.stderr or "ssh -G failed", hint)
        answer: dict[str, list[str]] = {}
        for line in done.stdout.splitlines():
            name, _, value = line.partition(" ")
            answer.setdefault(name.lower(), []).append(value)
        with self._lock:
            self._answers[key] = answer
        return answer


def endpoint(node: Node, said: Mapping[str, list[str]]) -> Endpoint:
    """Lay the inventory's words over ssh_config's.

    Raises:
        NodeError: what stands for a number is none, as with a program that only is called ssh.
    """

    def one(name: str) -> str | None:
        value = said.get(name, [""])[0]
        return None if value in {"", "none"} else value

    hostname = one("hostname") or node.host
    if node.ssh.jump is not None:
        jump, proxy_command = (None if node.ssh.jump == "none" else node.ssh.jump), None
    else:
        jump, proxy_command = one("proxyjump"), one("proxycommand")
    timeout = _number("connecttimeout", one("connecttimeout"))
    user = node.ssh.user or one("user") or own_user()
    port = node.ssh.port or _number("port", one("port")) or DEFAULT_PORT
    alias = one("hostkeyalias") or ""
    target = Target(
        host=node.host, hostname=hostname, port=port, user=user, alias=alias, jump=jump or ""
    )
    return Endpoint(
        host=node.host,
        hostname=hostname,
        port=port,
        user=user,
        key_name=alias or hostname,
        identity=expand_home(node.ssh.identity) if node.ssh.identity else None,
        identities=tuple(expand_path(p, target) for p in said.get("identityfile", DEFAULTS)),
        identities_only=one("identitiesonly") == "yes",
        agent=_agent(said),
        jump=jump,
        proxy_command=expand_command(proxy_command, target) if proxy_command else None,
        known_hosts=_known_hosts(said),
        connect_timeout=timeout,
    )


def _number(name: str, value: str | None) -> int | None:
    if value is None:
        return None
    if not _NUMBER.fullmatch(value):
        words = f"ssh -G prints {name} {value[:20]!r}, expected a number"
        raise NodeError("unreachable", "config", words, "is `ssh` on PATH the one of OpenSSH?")
    return int(value)


def _known_hosts(said: Mapping[str, list[str]]) -> tuple[Path, ...]:
    """Return the files of known_hosts, which `ssh -G` names on one line without quotes."""
    names = ("userknownhostsfile", "globalknownhostsfile")
    lines = [line for name in names for line in said.get(name, [])]
    if not lines:
        return tuple(map(expand_home, DEFAULT_KNOWN_HOSTS))
    # A space before `/` or `~` parts two paths; any other is part of one.
    paths = [path for line in lines for path in re.split(r" (?=[/~])", line)]
    return tuple(expand_home(path) for path in paths if path not in {"", "none"})


def _agent(said: Mapping[str, list[str]]) -> str | None:
    value = said.get("identityagent", ["SSH_AUTH_SOCK"])[0]
    if value == "SSH_AUTH_SOCK":
        return None
    if value == "none":
        return ""
    # `$NAME` stays as it is written; `ssh -G` expands all else.
    return os.environ.get(value[1:], "") if value.startswith("$") else str(expand_home(value))
