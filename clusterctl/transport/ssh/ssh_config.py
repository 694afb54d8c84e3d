"""Where a node really is: the inventory's settings over those that `ssh -G` prints.

OpenSSH itself is asked, since no other reader handles Include, Match and tokens the same way. `ssh
-G` expands the tokens of most keywords, but not those of IdentityFile, CertificateFile,
RevokedHostKeys and ProxyCommand.
"""

import hashlib
import logging
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from clusterctl.errors import NodeError
from clusterctl.inventory.addresses import own_user
from clusterctl.inventory.cluster import Node
from clusterctl.transport.ssh.ssh_config_groups import HostGroups
from clusterctl.values import dataclass

RESOLVE_SECONDS = 10.0
PROCESSES_AT_ONCE = 16
"""Each is done in milliseconds, and a container may allow few."""
DEFAULT_PORT = 22
DEFAULT_IDENTITIES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
"""The keys that are offered if ssh_config cannot be asked."""
DEFAULT_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "~/.ssh/known_hosts")
_NO_ACCOUNT = (
    'as root: echo "me:x:UID:GID::$HOME:/bin/sh" >> /etc/passwd, with `id` for both numbers; or'
    " start the container with -v /etc/passwd:/etc/passwd:ro: ssh needs an account for its user"
)
_NUMBER = re.compile("[0-9]{1,9}")
_DEBUG_LINE = re.compile("^(debug1: |OpenSSH_).*\n?", re.MULTILINE)
"""What `ssh -v` says in addition to its errors."""
_SSH = re.compile(r"(exec\s+)?(\S*/)?ssh\s")
"""A ProxyCommand that is itself a login; `aws ssm`, `nc` and others only carry bytes."""
_VARIABLE_OR_TOKEN = re.compile(r"\$\{([^}]*)\}|%(.)", re.DOTALL)

logger = logging.getLogger(__name__)

Settings = Mapping[str, list[str]]
"""What `ssh -G` prints: each keyword's values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Everything needed to reach a node over SSH."""

    host: str
    """As the inventory calls it: the token `%n`."""
    hostname: str
    """The name or address to connect to."""
    port: int
    user: str
    alias: str = ""
    """HostKeyAlias."""
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
    revoked: tuple[Path, ...] = ()
    """RevokedHostKeys: no host key is accepted unless these allow it."""
    certificates: tuple[Path, ...] = ()
    """CertificateFile: certificates whose names do not tell their keys."""
    forks: bool = False
    """ForkAfterAuthentication: its `ssh` would leave us."""
    gssapi: bool = False
    """GSSAPIAuthentication: OpenSSH offers a Kerberos ticket, which paramiko cannot."""
    connect_timeout: float | None = None

    @property
    def target(self) -> str:
        """The endpoint for messages."""
        name = f"[{self.hostname}]" if ":" in self.hostname else self.hostname
        return f"{name}:{self.port}"

    @property
    def gateway(self) -> str:
        """The way to it that it shares with others: jump hosts or a program; empty: directly."""
        return self.jump or (self.proxy_command or "").replace(self.hostname, "%h")

    @property
    def server(self) -> str:
        """Where each of its logins goes: the node, or the gateway if an `ssh` logs in there too."""
        return self.gateway if _SSH.match(self.proxy_command or "") else self.target

    @property
    def key_name(self) -> str:
        """The name its host key is recorded under."""
        return self.alias or self.hostname

    def tokens(self) -> dict[str, str]:
        """Return the value of each token that IdentityFile and CertificateFile take."""
        here = _local_host()
        port, jump = str(self.port), self.jump or ""
        joined = f"{here}{self.hostname}{port}{self.user}{jump}"
        return {
            "%": "%",
            "C": hashlib.sha1(os.fsencode(joined), usedforsecurity=False).hexdigest(),
            "d": str(Path.home()),
            "h": self.hostname,
            "i": str(os.getuid()),
            "j": jump,
            "k": self.alias or self.host,
            "L": here.partition(".")[0],
            "l": here,
            "n": self.host,
            "p": port,
            "r": self.user,
            "u": own_user(),
        }


class SshConfigResolver:
    """Resolves nodes, each question asked once; safe from several threads."""

    def __init__(self, *, config: Path | None = None) -> None:
        """Use the person's own ssh_config, or this file alone."""
        self._config = config
        self._ssh = shutil.which("ssh")
        self._answers: dict[tuple[object, ...], tuple[str, Settings]] = {}
        """One of the hosts that share an answer, and the answer."""
        self._asking: dict[tuple[object, ...], threading.Lock] = {}
        self._groups: HostGroups | None = None
        self._grouped = False
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(PROCESSES_AT_ONCE)
        self._warned = False

    def refresh(self) -> None:
        """Forget the answers: the files may have changed."""
        with self._lock:
            self._answers.clear()
            self._grouped = False

    def resolve(self, node: Node) -> Endpoint:
        """Return where and how the node is reached; NodeError if ssh_config cannot be used."""
        if self._ssh is None:
            with self._lock:
                if not self._warned:
                    logger.warning("no ssh on this machine: only the inventory is read")
                self._warned = True
            return endpoint(node, {})
        return endpoint(node, self._settings(node.host, node.ssh.user, node.ssh.port))

    def control_path(self, node: Node) -> Path | None:
        """Return a host's ControlPath, its tokens expanded: no two hosts share an answer."""
        asked = node.host, node.ssh.user, node.ssh.port
        if self._ssh is None or not _one(self._settings(*asked), "controlpath"):
            return None
        path = _one(self._ask(*asked)[0], "controlpath")
        return None if path is None else expand_home(path)

    def _settings(self, host: str, user: str | None, port: int | None) -> Settings:
        """Return the settings of a host, by one answer for all that ssh_config treats alike.

        A process takes 5 ms of CPU time, and a cluster has many hosts.
        """
        with self._lock:
            if not self._grouped:
                # Also if it fails: the others ask for themselves then.
                self._grouped, self._groups = True, None
                settings, debug = self._ask(host, user, port, "-v")
                self._groups = HostGroups.of(debug)
                self._answers[self._key(host, user, port)] = host, settings
            key = self._key(host, user, port)
            asking = self._asking.setdefault(key, threading.Lock())
        with asking:
            if key not in self._answers:
                self._answers[key] = host, self._ask(host, user, port)[0]
            asked, settings = self._answers[key]
        if asked == host or settings.get("hostname") != [asked]:
            return settings
        return {**settings, "hostname": [host]}

    def _key(self, host: str, user: str | None, port: int | None) -> tuple[object, ...]:
        group = self._groups.group(host) if self._groups is not None else None
        # The inventory's port goes before the answer's; without one, the answer's is the host's.
        return (host, user, port) if group is None else (group, user, port is None)

    def _ask(
        self, host: str, user: str | None, port: int | None, *options: str
    ) -> tuple[Settings, str]:
        """Return what `ssh -G` prints of a host, and its words on stderr."""
        # Without -N it refuses a host that has ForkAfterAuthentication.
        argv = ["ssh", "-G", "-N", *options]
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
            words = _DEBUG_LINE.sub("", done.stderr) or "ssh -G failed"
            if "No user exists for uid" in words:
                hint = _NO_ACCOUNT
            raise NodeError("unreachable", "config", words, hint)
        answer: dict[str, list[str]] = {}
        for line in done.stdout.splitlines():
            name, _, value = line.partition(" ")
            answer.setdefault(name.lower(), []).append(value)
        return answer, done.stderr


def endpoint(node: Node, settings: Settings) -> Endpoint:
    """Lay the inventory's settings over those of ssh_config; NodeError for a bad number."""
    one = partial(_one, settings)
    if node.ssh.jump is not None:
        jump, proxy_command = (None if node.ssh.jump == "none" else node.ssh.jump), None
    else:
        jump, proxy_command = one("proxyjump"), one("proxycommand")
    found = Endpoint(
        host=node.host,
        hostname=one("hostname") or node.host,
        port=node.ssh.port or _number("port", one("port")) or DEFAULT_PORT,
        user=node.ssh.user or one("user") or own_user(),
        alias=one("hostkeyalias") or "",
        identity=expand_home(node.ssh.identity) if node.ssh.identity else None,
        identities_only=one("identitiesonly") == "yes",
        agent=_agent(settings),
        jump=jump,
        known_hosts=_known_hosts(settings),
        forks=one("forkafterauthentication") == "yes",
        gssapi=one("gssapiauthentication") == "yes",
        connect_timeout=_number("connecttimeout", one("connecttimeout")),
    )
    identities = settings.get("identityfile", DEFAULT_IDENTITIES)
    return replace(
        found,
        identities=tuple(expand_path(path, found) for path in identities),
        certificates=tuple(expand_path(p, found) for p in settings.get("certificatefile", ())),
        revoked=tuple(expand_path(p, found) for p in _paths(settings, "revokedhostkeys")),
        proxy_command=expand_command(proxy_command, found) if proxy_command else None,
    )


def expand_path(text: str, target: Endpoint) -> Path:
    """Return a path of ssh_config: `~` first, then `${VARIABLE}` and tokens, as OpenSSH does.

    What has no value stays as it is written, so that the path is reported as missing.
    """

    def value(found: re.Match[str]) -> str:
        variable, token = found.groups()
        if variable is not None:
            return os.environ.get(variable, found[0])
        return target.tokens().get(token, found[0])

    # A value may hold a percent sign of its own, and is not expanded again.
    return Path(_VARIABLE_OR_TOKEN.sub(value, str(expand_home(text))))


def expand_command(text: str, target: Endpoint) -> str:
    """Return a ProxyCommand with the tokens that it takes."""
    tokens = {name: value for name, value in target.tokens().items() if name in "%hnpr"}
    return re.sub("%(.)", lambda found: tokens.get(found[1], found[0]), text, flags=re.DOTALL)


def security_key(target: Endpoint) -> Path | None:
    """Return the first of its key files whose key is in a FIDO token; such a one wants a touch."""
    for path in (target.identity, *target.identities):
        if path is None:
            continue
        try:
            with path.with_name(path.name.removesuffix(".pub") + ".pub").open("rb") as file:
                if file.read(3) == b"sk-":
                    return path
        except (OSError, ValueError):
            continue
    return None


@lru_cache(maxsize=1024)
def expand_home(path: str) -> Path:
    """Return the path with `~` expanded, unless no such user exists; ssh takes quotes too."""
    plain = Path(path.strip('"'))
    try:
        return plain.expanduser()
    except (RuntimeError, ValueError):  # the second: no path at all
        return plain


@lru_cache(maxsize=1)
def _local_host() -> str:
    return socket.gethostname()


def _number(name: str, value: str | None) -> int | None:
    if value is None:
        return None
    if not _NUMBER.fullmatch(value):
        words = f"ssh -G prints {name} {value[:20]!r}, expected a number"
        raise NodeError("unreachable", "config", words, "is `ssh` on PATH the one of OpenSSH?")
    return int(value)


def _known_hosts(settings: Settings) -> tuple[Path, ...]:
    """Return the files of known_hosts, which `ssh -G` names on one line without quotes."""
    names = ("userknownhostsfile", "globalknownhostsfile")
    if not any(settings.get(name) for name in names):
        return tuple(map(expand_home, DEFAULT_KNOWN_HOSTS))
    return tuple(expand_home(path) for path in _paths(settings, *names))


def _paths(settings: Settings, *names: str) -> list[str]:
    """Return the files of keywords that take several."""
    lines = [line for name in names for line in settings.get(name, [])]
    # A space before `/` or `~` parts two paths; any other is part of one.
    paths = [path for line in lines for path in re.split(r" (?=[/~])", line)]
    return [path for path in paths if path not in {"", "none"}]


def _one(settings: Settings, name: str) -> str | None:
    value = settings.get(name, [""])[0]
    return None if value in {"", "none"} else value


def _agent(settings: Settings) -> str | None:
    value = settings.get("identityagent", ["SSH_AUTH_SOCK"])[0]
    if value == "SSH_AUTH_SOCK":
        return None
    if value == "none":
        return ""
    # `$NAME` stays as it is written; `ssh -G` expands all else.
    return os.environ.get(value[1:], "") if value.startswith("$") else str(expand_home(value))
