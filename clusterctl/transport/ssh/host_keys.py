"""Whether a host's key is the right one: strict, with records of the cluster's own.

The person's known_hosts is read and never written. What `--accept-new` accepts goes into a file
that belongs to the cluster, and `clusterctl forget HOST` takes it out again. A key that another
cluster accepted for the same host name and port is taken over: clusters are renamed and split.
"""

import base64
import itertools
import logging
import re
import shlex
import subprocess
import threading
from pathlib import Path
from typing import Self

from clusterctl.errors import ClusterError, NodeError
from clusterctl.own_files import make_private
from clusterctl.safe_text import printable_words
from clusterctl.state_folder import ANOTHER_FOLDER, state_folder
from clusterctl.transport.ssh.known_hosts import (
    KnownHosts,
    KnownHostsLine,
    Verdict,
    fingerprint,
    known_name,
    record,
)
from clusterctl.transport.ssh.ssh_config import Endpoint
from clusterctl.values import dataclass

KRL = b"SSHKRL\n\0"
"""How a KRL begins."""
REVOKED_HINT = "do not use this host before you know why"
SIZE_LIMIT = 1 << 26
ASK_SECONDS = 10.0


def is_revoked(path: Path, key_type: str, blob: bytes) -> bool:
    """Tell whether a file of RevokedHostKeys has a key: a list, or a KRL, which ssh-keygen reads.

    A file that cannot be read revokes every key, as it does for `ssh`.

    Raises:
        NodeError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            content = file.read(SIZE_LIMIT + 1)
    except (OSError, ValueError) as error:
        raise _unusable_list(path, getattr(error, "strerror", None) or str(error)) from error
    if len(content) > SIZE_LIMIT:
        raise _unusable_list(path, f"expected at most {SIZE_LIMIT} bytes, found more")
    encoded = base64.b64encode(blob)
    if not content.startswith(KRL):
        return encoded in content.split()
    asked = f"{key_type} {encoded.decode()}\n"
    try:
        answer = subprocess.run(
            ["ssh-keygen", "-Q", "-f", str(path), "/dev/stdin"],
            input=asked,
            capture_output=True,
            text=True,
            timeout=ASK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unusable_list(path, f"only ssh-keygen reads a KRL: {error}") from error
    verdict = answer.stdout.strip().rpartition(": ")[2]
    if verdict == "REVOKED":
        return True
    if verdict == "ok" and answer.returncode == 0:
        return False
    raise _unusable_list(path, printable_words(answer.stderr or answer.stdout))


def _unusable_list(path: Path, why: str) -> NodeError:
    words = f"RevokedHostKeys {path}: {why}; without it no host key is accepted"
    command = shlex.join(["ssh-keygen", "-lf", str(path)])
    hint = f"correct RevokedHostKeys in ssh_config, or set `via: openssh`: {command}"
    return NodeError("hostkey", "hostkey", words, hint)


logger = logging.getLogger(__name__)

UNKNOWN_KEY = "unknown_key"
"""In the details of an error: the key that a user may accept."""
CHANGED_KEY = "changed_key"
"""In the details of an error: the command that removes the recorded key, from any file."""
IF_REINSTALLED = "someone may be in between; if the host was reinstalled: "

_MOST_FILES = 16
"""Known hosts of other clusters that `ssh` is given; it refuses more than 32 in all."""
_ORDER: tuple[Verdict, ...] = ("revoked", "known", "changed", "unknown")
"""What counts where a host is recorded under two names."""


def names_of(endpoint: Endpoint) -> tuple[str, ...]:
    """Return the names that a host's key may be recorded under, ours first.

    OpenSSH records a HostKeyAlias as it is written, whatever the port.
    """
    name = known_name(endpoint.key_name, endpoint.port)
    return (name,) if endpoint.key_name == endpoint.hostname else (name, endpoint.key_name)


def removal(name: str, file: str) -> str:
    """Return the command that removes a host's recorded key from a file."""
    return shlex.join(["ssh-keygen", "-R", name, "-f", file])


def own_file(cluster: str) -> Path:
    """Return the known_hosts file of a cluster."""
    return state_folder() / cluster / "known_hosts"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownKey:
    """A host's key that no file has."""

    name: str
    """As known_hosts has it: with the port, unless it is 22."""
    key_type: str
    blob: bytes

    @classmethod
    def of(cls, error: NodeError | None) -> Self | None:
        """Return the key that an error is about; None if it is about something else."""
        key = error.details.get(UNKNOWN_KEY) if error is not None else None
        if key is None:
            return None
        return cls(name=key["name"], key_type=key["type"], blob=base64.b64decode(key["blob"]))

    @property
    def shown(self) -> str:
        """The host, and the fingerprint as `ssh` shows it."""
        return f"{self.name}: {self.key_type} {fingerprint(self.blob)}"

    def accept(self, cluster: str) -> None:
        """Record exactly this key for a cluster; another one is still refused."""
        file = own_file(cluster)
        try:
            record(file, self.name, self.key_type, self.blob)
        except OSError as error:
            raise ClusterError(
                f"{file}: expected a place to record host keys, found: {error.strerror}",
                hint=f"make {state_folder()} writable, or set CLUSTERCTL_STATE to a folder that is",
            ) from error


class HostKeyVerifier:
    """Judges host keys; files are read once a command; safe from several threads."""

    def __init__(self, cluster: str, *, accept_new: bool) -> None:
        """Use the cluster's own file in addition to each endpoint's."""
        self._own_file = own_file(cluster)
        self._accept_new = accept_new
        self._lock = threading.Lock()
        self._known: dict[tuple[Path, ...], KnownHosts] = {}
        self._elsewhere: KnownHosts | None = None

    def refresh(self) -> None:
        """Forget what was read: the files may have changed."""
        with self._lock:
            self._known.clear()
            self._elsewhere = None

    def key_types(self, endpoint: Endpoint) -> tuple[str, ...]:
        """Return the key types the host is known by, to ask the server for those first."""
        names = names_of(endpoint)
        with self._lock:
            known = self._load(endpoint)
            types = [kind for name in names for kind in known.key_types(name)]
            types += () if types else self._load_elsewhere().key_types(names[0])
        return tuple(dict.fromkeys(types))

    def check(self, endpoint: Endpoint, key_type: str, blob: bytes) -> None:
        """Accept a host's key, or not; raise NodeError if it is unknown, changed or revoked."""
        name = known_name(endpoint.key_name, endpoint.port)
        shown = f"{key_type} {fingerprint(blob)}"
        for path in endpoint.revoked:
            if is_revoked(path, key_type, blob):
                words = f"the host key of {name} is revoked (RevokedHostKeys {path}): {shown}"
                raise NodeError("hostkey", "hostkey", words, REVOKED_HINT)
        with self._lock:
            known = self._load(endpoint)
            judgments = [known.judge(own, blob) for own in names_of(endpoint)]
            judged = min(judgments, key=lambda judgment: _ORDER.index(judgment.verdict))
            if judged.verdict == "unknown":
                # Another key there proves nothing: two networks may use one private address.
                accepted = self._load_elsewhere().judge(name, blob)
                if accepted.verdict == "known" or self._accept_new:
                    self._accept(name, key_type, blob)
                    if accepted.verdict == "known":
                        logger.info("%s: host key taken over from %s", name, accepted.where)
                    else:
                        self._warn_accepted(name, shown)
                    return
        if judged.verdict == "unknown":
            words = f"the host key of {name} is not known: {shown}"
            hint = "compare it with the host's own, then: clusterctl check --accept-new"
            if known.has_authority(name):
                words += "; a @cert-authority line is for this host, but only OpenSSH can use it"
                hint += " (or set `via: openssh`)"
            key = {"name": name, "type": key_type, "blob": base64.b64encode(blob).decode()}
            raise NodeError("hostkey", "hostkey", words, hint, details={UNKNOWN_KEY: key})
        if judged.verdict == "changed":
            words = f"the host key of {name} is not the recorded one ({judged.where}): now {shown}"
            remove = removal(name, judged.where.rpartition(":")[0])
            ours = judged.where.startswith(str(self._own_file))
            command = shlex.join(["clusterctl", "forget", endpoint.host]) if ours else remove
            hint = IF_REINSTALLED + command
            raise NodeError("hostkey", "hostkey", words, hint, details={CHANGED_KEY: remove})
        if judged.verdict == "revoked":
            words = f"the host key of {name} is revoked ({judged.where}): {shown}"
            raise NodeError("hostkey", "hostkey", words, REVOKED_HINT)

    def openssh_options(self, endpoint: Endpoint) -> list[str]:
        """Return the options that make `ssh` accept the same keys as `check`.

        Args:
            endpoint: the host that `ssh` is to log in to, never one behind it.
        """
        if self._accept_new:
            try:
                make_private(self._own_file.parent.parent, self._own_file.parent)
                self._own_file.touch(mode=0o600)  # ssh would let all users read it
            except OSError as error:
                raise self._unwritable(endpoint.host, error) from error
        # The first file is also where `ssh` records a new key.
        paths = [self._own_file, *endpoint.known_hosts]
        with self._lock:
            known = self._load(endpoint)
            # Another key there proves nothing, and would keep `ssh` from accepting a new one.
            if not self._accept_new and not any(map(known.lines, names_of(endpoint))):
                paths += self._files_elsewhere_about(endpoint)
        files = " ".join('"' + str(path).replace("%", "%%") + '"' for path in paths)
        strict = "accept-new" if self._accept_new else "yes"
        return ["-o", f"StrictHostKeyChecking={strict}", "-o", f"UserKnownHostsFile={files}"]

    def warn_accepted_by_openssh(self, stderr: str) -> None:
        """Print the fingerprint of each key that `ssh` recorded: it names only the host."""
        for name in re.findall(r"Permanently added '([^']+)'", stderr):
            host = name.partition(",")[0]
            for line in KnownHosts.load([self._own_file]).lines(host):
                with self._lock:
                    elsewhere = self._load_elsewhere().judge(host, line.blob)
                if elsewhere.verdict != "known":
                    self._warn_accepted(name, f"{line.key_type} {fingerprint(line.blob)}")

    def _warn_accepted(self, name: str, shown: str) -> None:
        """Print on stderr which key was accepted unseen, so that it can still be compared."""
        words = "%s: accepted a new host key without a comparison: %s (recorded in %s)"
        logger.warning(words, name, shown, self._own_file)

    def _accept(self, name: str, key_type: str, blob: bytes) -> None:
        try:
            record(self._own_file, name, key_type, blob)
        except OSError as error:
            raise self._unwritable(name, error) from error
        line = KnownHostsLine(hosts=name, key_type=key_type, blob=blob, where=str(self._own_file))
        for known in self._known.values():
            known.add(line)

    def _unwritable(self, name: str, error: OSError) -> NodeError:
        words = f"the host key of {name} cannot be recorded: {self._own_file}: {error.strerror}"
        hint = f"make {state_folder()} writable, or {ANOTHER_FOLDER}"
        return NodeError("hostkey", "hostkey", words, getattr(error, "hint", "") or hint)

    def _load(self, endpoint: Endpoint) -> KnownHosts:
        paths = (*endpoint.known_hosts, self._own_file)
        if paths not in self._known:
            self._known[paths] = KnownHosts.load(paths)
        return self._known[paths]

    def _load_elsewhere(self) -> KnownHosts:
        """Return the keys that this user accepted for other clusters."""
        if self._elsewhere is None:
            self._elsewhere = KnownHosts.load(self._files_elsewhere())
        return self._elsewhere

    def _files_elsewhere_about(self, endpoint: Endpoint) -> list[Path]:
        """Return those that name a host, as few as `ssh` takes: no more than 32 in all."""
        names = names_of(endpoint)
        about = (
            file
            for file in self._files_elsewhere()
            if any(map(KnownHosts.load([file]).lines, names))
        )
        return list(itertools.islice(about, _MOST_FILES))

    def _files_elsewhere(self) -> list[Path]:
        files = sorted(state_folder().glob("*/known_hosts"))
        return [file for file in files if file != self._own_file]
