"""The person's keys: each is read once, shared by every connection, and asked for once.

Reading an RSA key costs 100 ms and holds the interpreter; done per host it takes longer than
everything else.
"""

import base64
import binascii
import getpass
import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.agent import AgentSSH
from paramiko.pkey import PublicBlob

from clusterctl.transport.ssh.ssh_config import Endpoint
from clusterctl.values import dataclass

DEFAULT_NAMES = frozenset(
    f"id_{kind}" for kind in ("rsa", "dsa", "ecdsa", "ecdsa_sk", "ed25519", "ed25519_sk", "xmss")
)
"""Keys in ~/.ssh that OpenSSH tries by default: one that is missing is not reported."""
PASSPHRASE_TRIES = 3
AGENT_SECONDS = 5.0
"""For an agent to list its keys; one behind a connection that is dead never would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCandidate:
    """A key to offer."""

    key: paramiko.PKey
    origin: str
    """Where it comes from, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What one server will be offered."""

    candidates: tuple[KeyCandidate, ...]
    """As OpenSSH orders them: a server hangs up after MaxAuthTries, six by default."""
    skipped: tuple[str, ...]
    """Keys that could not be offered, and why."""
    agent: str = ""
    """Why the agent offers no key; empty if it does."""


class SharedAgent(AgentSSH):
    """A running ssh-agent, asked by one connection at a time."""

    def __init__(self, path: str) -> None:
        """Connect and learn its keys; an agent that does not answer has none."""
        super().__init__()
        self._asking = threading.Lock()
        connection = socket.socket(socket.AF_UNIX)
        self.problem = ""
        """Why it has no keys."""
        try:
            connection.settimeout(AGENT_SECONDS)
            connection.connect(path)
            self._connect(connection)  # type: ignore[attr-defined]  # paramiko's own protocol code
            connection.settimeout(None)  # a user may have to allow a signature
            if not self.get_keys():
                self.problem = "the ssh-agent holds no key"
        except (OSError, paramiko.SSHException) as error:
            connection.close()
            reason = getattr(error, "strerror", None) or str(error)
            self.problem = f"the ssh-agent at {path} does not answer: {reason}"

    def _send_message(self, msg: object) -> tuple[int, paramiko.Message]:
        # paramiko's connections would read each other's answers.
        with self._asking:
            answer: tuple[int, paramiko.Message] = super()._send_message(msg)  # type: ignore[misc]
            return answer

    def close(self) -> None:
        """Close the connection to it."""
        self._close()  # type: ignore[attr-defined]


class Keyring:
    """All keys of a command; safe from several threads."""

    def __init__(self, *, ask: Callable[[str], str] | None = None) -> None:
        """Keep how to ask for a passphrase; by default on a terminal only."""
        self._ask = ask or (
            partial(getpass.getpass, stream=sys.stderr) if _has_terminal() else None
        )
        self._lock = threading.Lock()
        self._agents: dict[str, SharedAgent] = {}
        self._files: dict[Path, paramiko.PKey | str] = {}
        """The key, or why there is none."""

    def offer(self, endpoint: Endpoint) -> Offer:
        """Return the keys for a server: the inventory's, the agent's, then ssh_config's."""
        with self._lock:  # one question at a time
            return self._offer(endpoint)

    def refresh(self) -> None:
        """Keep the keys that were read, and forget what could not be read or was asked."""
        with self._lock:
            self.close()
            self._agents.clear()
            self._files = {path: k for path, k in self._files.items() if not isinstance(k, str)}

    def close(self) -> None:
        """Close the connections to the agents."""
        for agent in self._agents.values():
            agent.close()

    def _offer(self, endpoint: Endpoint) -> Offer:
        found: dict[bytes, KeyCandidate] = {}
        agent = self._agent(endpoint)
        held = {} if agent is None else {key.asbytes(): key for key in agent.get_keys()}
        files, skipped = _key_files(endpoint)
        wanted = {blob for path in files if (blob := public_blob(path))}

        def take(path: Path, *, ask: bool) -> None:
            blob = public_blob(path)
            if blob in held:
                found.setdefault(
                    blob, KeyCandidate(key=held[blob], origin=f"{path} (in the agent)")
                )
                return
            key = self._load(path, ask=ask)
            if isinstance(key, str):
                skipped.append(f"{path}: {key}")
            else:
                found.setdefault(key.asbytes(), KeyCandidate(key=key, origin=str(path)))

        if endpoint.identity:
            take(endpoint.identity, ask=True)
        # The agent's keys that a file names go first: the server hangs up after a few.
        for blob in sorted(held, key=lambda blob: blob not in wanted):
            if not endpoint.identities_only or blob in wanted:
                found.setdefault(blob, KeyCandidate(key=held[blob], origin="the agent"))
        for path in files:
            if path != endpoint.identity:
                # A user who has another key is not asked for every passphrase there is.
                take(path, ask=not found)
        skipped += _add_certificates(found, endpoint.certificates)
        why = "no ssh-agent" if agent is None else agent.problem
        if not why and endpoint.identities_only:
            why = "of the ssh-agent only what IdentityFile names (IdentitiesOnly)"
        return Offer(candidates=tuple(found.values()), skipped=tuple(skipped), agent=why)

    def _agent(self, endpoint: Endpoint) -> SharedAgent | None:
        path = os.environ.get("SSH_AUTH_SOCK", "") if endpoint.agent is None else endpoint.agent
        if not path:
            return None
        if path not in self._agents:
            self._agents[path] = SharedAgent(path)
        return self._agents[path]

    def _load(self, path: Path, *, ask: bool) -> paramiko.PKey | str:
        known = self._files.get(path)
        if known is None or (known == _ENCRYPTED and ask and self._ask):
            known = self._files[path] = self._read(path, ask=ask)
        return known

    def _read(self, path: Path, *, ask: bool) -> paramiko.PKey | str:
        try:
            try:
                return read_key(path)
            except paramiko.PasswordRequiredException:
                if not ask or self._ask is None:
                    return _ENCRYPTED
            for _ in range(PASSPHRASE_TRIES):
                passphrase = self._ask(f"Passphrase for {path}: ")
                try:
                    return read_key(path, passphrase)
                except ValueError:
                    continue
        except (OSError, EOFError) as error:
            return getattr(error, "strerror", None) or str(error) or "no passphrase was given"
        except (ValueError, TypeError, paramiko.SSHException, UnsupportedAlgorithm) as error:
            return f"cannot be used here ({error}); add it to the agent, or set `via: openssh`"
        return "wrong passphrase"


_ENCRYPTED = "needs its passphrase and there is no terminal to ask; try: ssh-add"


def read_key(path: Path, passphrase: str | None = None) -> paramiko.PKey:
    """Read a private key, and its certificate where one is next to it.

    Raises:
        PasswordRequiredException: it needs a passphrase and none was given.
        ValueError: the passphrase is wrong, or the file is no key.
    """
    secret = None if passphrase is None else passphrase.encode()
    try:
        return paramiko.PKey.from_path(path, secret)  # type: ignore[arg-type]  # bytes, in truth
    except (TypeError, paramiko.PasswordRequiredException) as error:
        if passphrase is None:
            raise paramiko.PasswordRequiredException(str(path)) from error
        raise


def _add_certificates(found: dict[bytes, KeyCandidate], paths: Sequence[Path]) -> list[str]:
    """Put certificates before all keys; return those that cannot be used, with why."""
    skipped = []
    for path in paths:
        try:
            _add_certificate(found, path)
        except (OSError, ValueError, paramiko.SSHException) as error:
            skipped.append(f"{path}: {getattr(error, 'strerror', None) or error}")
    return skipped


def _add_certificate(found: dict[bytes, KeyCandidate], path: Path) -> None:
    """Put a certificate before all keys, if its private key is one of them.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no certificate, or its key is missing.
    """
    certificate = PublicBlob.from_file(str(path))
    kind, mark, _ = certificate.key_type.partition("-cert-v")
    fields = paramiko.Message(certificate.key_blob)
    fields.get_string()  # its type
    fields.get_string()  # a nonce
    parts = {"ssh-rsa": 2, "ssh-ed25519": 1}.get(kind, 2 if kind.startswith("ecdsa-") else 0)
    if not mark or not parts:
        raise ValueError("expected a certificate of an RSA, ECDSA or Ed25519 key")
    public = paramiko.Message()
    public.add_string(kind)
    for _ in range(parts):
        public.add_string(fields.get_binary())
    candidate = found.get(public.asbytes())
    if candidate is None:
        raise ValueError("neither a file nor the agent has its private key")
    # A copy: other servers are offered the key without it. An agent's key breaks `copy.copy`.
    certified = object.__new__(type(candidate.key))
    vars(certified).update(vars(candidate.key))
    certified.public_blob = certificate
    origin = f"{path} ({candidate.origin})"
    others = dict(found)
    found.clear()
    found[certificate.key_blob] = KeyCandidate(key=certified, origin=origin)
    found.update(others)


def public_blob(path: Path) -> bytes:
    """Return the public key that is next to a private one, empty where there is none."""
    public = path if path.suffix == ".pub" else path.with_name(path.name + ".pub")
    try:
        return base64.b64decode(public.read_text().split()[1])
    except (OSError, IndexError, binascii.Error, UnicodeDecodeError):
        return b""


def _key_files(endpoint: Endpoint) -> tuple[list[Path], list[str]]:
    """Return the files to offer, the inventory's first, and those that are missing, with why."""
    files = [endpoint.identity] if endpoint.identity else []
    missing = []
    for path in endpoint.identities:
        problem = _problem(path)
        if not problem:
            files.append(path)
        elif path.name not in DEFAULT_NAMES:
            missing.append(f"{path}: {problem}")
    return files, missing


def _problem(path: Path) -> str:
    """Return why there is no such key; its public half will do for one in the agent."""
    if public_blob(path):
        return ""
    try:
        path.stat()
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def _has_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
