"""known_hosts files as OpenSSH writes them, read with patience and written one line at a time.

paramiko's own reader gives up on `@revoked`, `@cert-authority`, two spaces or one bad line, and
takes quadratic time; here a line that cannot be read is skipped with a warning.
"""

import base64
import fnmatch
import hashlib
import hmac
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import field
from pathlib import Path
from typing import Literal, Self, cast

from clusterctl.own_files import make_private, replace_file
from clusterctl.state_folder import locked
from clusterctl.values import dataclass

logger = logging.getLogger(__name__)

Marker = Literal["", "@revoked", "@cert-authority"]
Verdict = Literal["known", "unknown", "changed", "revoked"]

_HASHED = re.compile(r"\|1\|([A-Za-z0-9+/=]+)\|([A-Za-z0-9+/=]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownHostsLine:
    """One usable line: for which hosts, which key."""

    hosts: str
    key_type: str
    blob: bytes
    marker: Marker = ""
    where: str = ""
    """`file:line`."""

    def matches(self, host: str) -> bool:
        """Say whether the line is about this host, named as OpenSSH does (`[host]:port`)."""
        hashed = _hash_of(self.hosts)
        if hashed:
            salt, digest = hashed
            # OpenSSH hashes the name in lower case, whatever was typed.
            ours = hmac.digest(salt, host.lower().encode(), "sha1")
            return hmac.compare_digest(ours, digest)
        found = False
        for pattern in self.hosts.lower().split(","):
            # OpenSSH's wildcards are * and ? only: a `[` is a literal, as in [host]:port.
            shell = pattern.removeprefix("!").replace("[", "[[]")
            if fnmatch.fnmatchcase(host.lower(), shell):
                if pattern.startswith("!"):
                    return False
                found = True
        return found


@dataclass(frozen=True, slots=True)
class Judgment:
    """What the files have about a host's key."""

    verdict: Verdict
    where: str = ""
    """The line that decided."""


@dataclass(slots=True)
class KnownHosts:
    """The lines of several files, found by name."""

    _exact: dict[str, list[KnownHostsLine]] = field(default_factory=dict)
    _others: list[KnownHostsLine] = field(default_factory=list)
    """Hashed names, wildcards, negations: each is tried."""

    @classmethod
    def load(cls, paths: Iterable[Path]) -> Self:
        """Read the files that exist."""
        known = cls()
        for path in paths:
            try:
                text = path.read_text(encoding="utf-8", errors="surrogateescape")
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                logger.warning("%s: cannot be read: %s", path, error.strerror)
                continue
            for line in parse_known_hosts(text, str(path)):
                known.add(line)
        return known

    def add(self, line: KnownHostsLine) -> None:
        """Take one more line."""
        names = line.hosts.lower().split(",")
        if any(re.search(r"[*?!|]", name) for name in names):
            self._others.append(line)
        else:
            for name in names:
                self._exact.setdefault(name, []).append(line)

    def lines(self, host: str) -> list[KnownHostsLine]:
        """Return the lines about a host."""
        exact = self._exact.get(host.lower(), [])
        return [*exact, *(line for line in self._others if line.matches(host))]

    def key_types(self, host: str) -> tuple[str, ...]:
        """Return the types of the keys that the host is known by."""
        return tuple(dict.fromkeys(line.key_type for line in self.lines(host) if not line.marker))

    def has_authority(self, host: str) -> bool:
        """Say whether a certificate authority vouches for the host, which we cannot check."""
        return any(line.marker == "@cert-authority" for line in self.lines(host))

    def judge(self, host: str, blob: bytes) -> Judgment:
        """Compare a host's key with what is known.

        A host that is known by other types of keys only counts as changed: a machine in
        between could otherwise offer a type that was never recorded.
        """
        lines = self.lines(host)
        for line in lines:
            if line.marker == "@revoked" and line.blob == blob:
                return Judgment("revoked", line.where)
        plain = [line for line in lines if not line.marker]
        for line in plain:
            if line.blob == blob:
                return Judgment("known", line.where)
        return Judgment("changed", plain[0].where) if plain else Judgment("unknown")


def parse_known_hosts(text: str, name: str) -> list[KnownHostsLine]:
    """Return the usable lines of a file; the others are skipped with a warning."""
    lines = []
    for number, raw in enumerate(text.splitlines(), 1):
        words = raw.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"{name}:{number}"
        try:
            lines.append(_parse_words(words, where))
        except ValueError as error:
            logger.warning("%s: skipped: %s", where, error)
    return lines


def _parse_words(words: list[str], where: str) -> KnownHostsLine:
    marker: Marker = ""
    if words[0].startswith("@"):
        if words[0] not in {"@revoked", "@cert-authority"}:
            raise ValueError(f"unknown marker {words[0]}")
        marker = cast("Marker", words[0])
        words = words[1:]
    if len(words) < 3:  # noqa: PLR2004  (hosts, type, key)
        raise ValueError("hosts, key type and key wanted")
    hosts, key_type, encoded = words[:3]
    blob = base64.b64decode(encoded, validate=True)
    if hosts.startswith("|") and not _hash_of(hosts):
        raise ValueError("broken hash")
    if _type_inside(blob) != key_type:
        raise ValueError(f"the key is not of the type {key_type}")
    return KnownHostsLine(hosts=hosts, key_type=key_type, blob=blob, marker=marker, where=where)


def _hash_of(hosts: str) -> tuple[bytes, bytes] | None:
    """Return salt and digest of a hashed name; None where it is not one."""
    found = _HASHED.fullmatch(hosts)
    if found is None:
        return None
    salt, digest = (base64.b64decode(part) for part in found.groups())
    return salt, digest


def _type_inside(blob: bytes) -> str:
    length = int.from_bytes(blob[:4])
    return blob[4 : 4 + length].decode("ascii", "replace")


def known_name(host: str, port: int) -> str:
    """Return the name that OpenSSH records a host under."""
    return host if port == 22 else f"[{host}]:{port}"  # noqa: PLR2004  (the one default port)


def fingerprint(blob: bytes) -> str:
    """Return a key's fingerprint as `ssh` shows it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).rstrip(b"=").decode()


def record(path: Path, host: str, key_type: str, blob: bytes) -> None:
    """Add one line to a file, whole or not at all, also while another process does."""
    line = f"{host} {key_type} {base64.b64encode(blob).decode()}\n"

    def add(text: str) -> str:
        if text and not text.endswith("\n"):
            text += "\n"
        return text if line in text.splitlines(keepends=True) else text + line

    _rewrite(path, add)


def forget(path: Path, host: str) -> int:
    """Drop every line about a host from a file; returns how many there were."""
    dropped = 0

    def drop(text: str) -> str:
        nonlocal dropped
        kept = []
        for raw in text.splitlines(keepends=True):
            if any(line.matches(host) for line in parse_known_hosts(raw, str(path))):
                dropped += 1
            else:
                kept.append(raw)
        return "".join(kept)

    if path.exists():
        _rewrite(path, drop)
    return dropped


def _rewrite(path: Path, change: Callable[[str], str]) -> None:
    make_private(path.parent.parent, path.parent)
    with locked(path):
        old = path.read_text(errors="surrogateescape") if path.exists() else ""
        new = change(old)
        if new != old:
            replace_file(path, new.encode(errors="surrogateescape"), sync=True)
