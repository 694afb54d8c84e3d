"""One `ssh -M` and the sessions through it: what OpenSSH does for us, what its errors mean."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from clusterctl.errors import CouldNotTell, NodeError
from clusterctl.safe_text import printable_words
from clusterctl.transport.interface import State, Timeouts
from clusterctl.transport.ssh.host_keys import CHANGED_KEY, IF_REINSTALLED, REVOKED_HINT, removal
from clusterctl.transport.ssh.sockets import KEEPALIVE_IDLE, KEEPALIVE_PROBES
from clusterctl.transport.stream import Errors
from clusterctl.transport.translate_errors import translated

PREFIX = "cctl-"
"""Of the folders with sockets, before the number of the process that made them."""
RSYNC = "r-"
"""Of the sockets in them that wait for an rsync; the socket of a killed command stays."""
LONGEST_PARENT = 40
"""A socket's path may have about a hundred characters, and macOS's TMPDIR takes half of them."""
POLL_SECONDS = 0.01
CLOSING_SECONDS = 5.0
BANNER_SECONDS = 3.0
"""After so long a login shows what the host says: it may wait for the person."""
TOUCH_SECONDS = 60.0
"""For touching the token of each of several connections, one after the other."""
CHECK_SECONDS = 5.0
CHECKED_SECONDS = 5.0
"""For so long a user's connection that answered needs no further `ssh -O check`."""
WORDS_LIMIT = 2000
"""Characters of ssh's words: a host may send a banner of any length."""
REASON_LIMIT = 400

_DIE_WITH_PARENT = """\
exec 3<&0
"$@" 3<&- </dev/null & ssh=$!
(read -r _ <&3; kill $ssh) 2>/dev/null & watch=$!
exec 3<&-
wait $ssh; status=$?
kill $watch 2>/dev/null
exit $status
"""
"""Runs a program and ends it when our end of its stdin closes, however we end.

A master has no reason of its own to end; killed, we would leave it behind forever.
"""

_WORDS: tuple[tuple[str, State], ...] = (
    (r"host key verification failed|revoked by file|host identification has changed", "hostkey"),
    (r"permission denied|too many authentication failures", "auth"),
    (r"connection refused|administratively prohibited|open refused by peer", "refused"),
    (r"could not resolve|name or service not known|name resolution", "unreachable"),
    (r"no route to host|network is unreachable|timed out", "unreachable"),
)

_HINTS: dict[State, str] = {
    "hostkey": "compare the key's fingerprint with the host's own, then: clusterctl check"
    " --accept-new",
    "auth": "OpenSSH itself cannot log in without asking; if the host asks for a code, log in"
    " first, with a ControlPath in ssh_config: ssh -fNM {target}",
}
_CHANGED = re.compile(
    r"^Offending \S+ key in ([^\r\n]+):\d+[ \r]*\n(?:[^\n]*\n){0,4}?"
    r"(?:\S+ )?host key for (\S+) has changed",
    re.IGNORECASE | re.MULTILINE,
)
"""The file and the name of a key that is not the recorded one, in the words of `ssh`."""
_PID = re.compile(rf"{PREFIX}([1-9][0-9]{{0,6}})-")
"""Of folders: no greater number is a process, on Linux or macOS."""

logger = logging.getLogger(__name__)


class ControlFolder:
    """A private folder for sockets, with a path short enough for one; made when first needed.

    Safe from several threads.
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._masters: list[ControlMaster] = []
        self._closed = False

    def master(self, destination: str, *, forks: bool = False) -> ControlMaster:
        """Return a master whose socket will be in the folder; it ends with the folder.

        Args:
            destination: the host, as `ssh` takes it.
            forks: ssh_config has ForkAfterAuthentication for it.

        Raises:
            NodeError: the folder is closed.
        """
        # The name is short and unique, for hosts' names may be long.
        control = self.path / f"m{next(self._numbers)}"
        master = ControlMaster(control, destination, forks=forks)
        with self._lock:
            self._masters = [*(one for one in self._masters if not one.closed), master]
        return master

    @property
    def path(self) -> Path:
        """The folder; raise NodeError if it is closed; its verb was interrupted meanwhile."""
        with self._lock:
            if self._closed:
                raise NodeError("lost", "connect", "the connections of this command are closed")
            if self._path is None:
                parent = _parent()
                _sweep(Path(parent))
                self._path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))
            return self._path

    def close(self) -> None:
        """End every master, also one that is just connecting, and remove the folder."""
        with self._lock:
            self._closed = True
            masters = tuple(self._masters)
        for master in masters:
            master.end()
        for master in masters:
            master.close()
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)


def _parent() -> str:
    """Return TMPDIR, or /tmp if a socket's path would be too long there."""
    chosen = tempfile.gettempdir()
    if len(chosen) > LONGEST_PARENT and os.access("/tmp", os.W_OK):  # noqa: S108  (mkdtemp's is private)
        return "/tmp"  # noqa: S108
    return chosen


def _sweep(parent: Path) -> None:
    """Remove the folders of commands that were killed, once their masters ended and left them.

    A master removes its own socket when it ends. Others may write to the parent, too: what is not
    a real folder of this user stays, and every file in it that is not such a socket.
    """
    for path in parent.glob(f"{PREFIX}*"):
        found = _PID.match(path.name)
        if found is None:
            continue
        try:
            os.kill(int(found[1]), 0)
        except ProcessLookupError:
            with contextlib.suppress(OSError):
                _remove_left(path)
        except OSError:
            continue


def _remove_left(path: Path) -> None:
    """Remove a folder with nothing but sockets that waited for an rsync; else OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            return
        for name in os.listdir(descriptor):  # noqa: PTH208  (of the folder that was checked)
            mode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
            if name.startswith(RSYNC) and stat.S_ISSOCK(mode):
                os.unlink(name, dir_fd=descriptor)
        path.rmdir()  # never follows a link
    finally:
        os.close(descriptor)


class ControlMaster:
    """An OpenSSH connection held open for others to use."""

    def __init__(self, control: Path, destination: str, *, forks: bool = False) -> None:
        """Keep the path of its socket, and the host as `ssh` takes it.

        Args:
            control: the path of its socket.
            destination: the host, as `ssh` takes it.
            forks: ssh_config lets its ssh fork, and its process would be lost.
        """
        self.control = control
        self.target = destination
        # An older ssh does not know the option, and never has it set.
        self._stays = ("-o", "ForkAfterAuthentication=no") if forks else ()
        self._errors: Errors | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = False
        self._lock = threading.Lock()

    def open(
        self, options: Sequence[str], *, timeouts: Timeouts, token: Path | None = None
    ) -> None:
        """Connect and log in.

        Args:
            options: of `ssh`, besides those that every master has.
            token: the file of a key that wants a touch; without a terminal ssh asks for none.

        Raises:
            NodeError: the host could not be reached, or did not let us in.
        """
        argv = [
            *("ssh", "-M", "-N", "-T", "-a", "-x", "-S", str(self.control)),
            *("-o", "BatchMode=yes", "-o", "ControlPersist=no", "-o", "LogLevel=INFO"),
            *("-o", "ClearAllForwardings=yes", "-o", "PermitLocalCommand=no"),
            *("-o", "RemoteCommand=none", "-o", f"ConnectTimeout={max(timeouts.connect, 1):.0f}"),
            *("-o", f"ServerAliveInterval={KEEPALIVE_IDLE}"),
            *("-o", f"ServerAliveCountMax={KEEPALIVE_PROBES}"),
            *self._stays,
            *options,
            *("--", self.target),
        ]
        if shutil.which("ssh") is None:
            hint = "install OpenSSH's client (openssh-client)"
            raise NodeError("unreachable", "config", "there is no ssh on this machine", hint)
        with self._lock, translated("connect", self.target):
            if self._ending:
                raise NodeError("lost", "connect", "given up")
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _DIE_WITH_PARENT, "sh", *argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            assert self._process.stderr is not None
            try:
                self._errors = Errors(self._process.stderr)
            except CouldNotTell:
                self._process.stderr.close()
                raise
        touch = unsaid = f"touch your security key if it blinks ({token})" if token else ""
        limit = timeouts.connect + timeouts.handshake
        limit += max(timeouts.auth, TOUCH_SECONDS) if token else timeouts.auth
        began = time.monotonic()
        shown = False
        while not self.control.exists():
            if self._process.poll() is not None:
                raise self.failure(self.stderr() or f"ssh ended ({self._process.returncode})")
            waited = time.monotonic() - began
            if waited > BANNER_SECONDS and not shown:
                words = printable_words(self.stderr())
                said = "; ".join(filter(None, (words and f"ssh prints: {words}", unsaid)))
                if said:
                    logger.warning("%s: still logging in; %s", self.target, said)
                shown, unsaid = bool(words), ""
            if waited > limit:
                words = f"{self.target}: ssh has not connected in {limit:.0f} s; {self.stderr()}"
                raise NodeError("timeout", "connect", words, touch)
            time.sleep(POLL_SECONDS)

    @property
    def closed(self) -> bool:
        """It was closed: nothing of it is left."""
        return self._ending and not self.running

    @property
    def running(self) -> bool:
        """It still holds its connection."""
        return self._process is not None and self._process.poll() is None

    def argv(self, *options: str, command: str | None = None) -> list[str]:
        """Return an ssh command that uses this connection, and fails without it."""
        through = ["ssh", "-T", "-a", "-x", "-S", str(self.control), "-o", "BatchMode=yes"]
        # A session asks its master for the forwardings of ssh_config, too.
        through += ["-o", "ClearAllForwardings=yes"]
        # Without a master ssh would log in again.
        through += ["-o", "ProxyJump=none", "-o", "ProxyCommand=false", "-o", "RemoteCommand=none"]
        # Nor may it become a master, or leave us.
        through += ["-o", "ControlMaster=no", *self._stays]
        through += ["-o", "LogLevel=ERROR", *options, "--", self.target]
        return through if command is None else [*through, command]

    def stderr(self) -> str:
        """Return what ssh has written to stderr, without the middle if that is much."""
        written = b"" if self._errors is None else self._errors.read()
        return written.decode("utf-8", "backslashreplace")

    def failure(self, words: str, *, phase: str = "connect") -> NodeError:
        """Return the failure that ssh's words mean."""
        for pattern, state in _WORDS:
            if re.search(pattern, words, re.IGNORECASE):
                named = phase if state in {"refused", "unreachable"} else state
                hint = _HINTS.get(state, "try: ssh {target} true")
                changed = _CHANGED.search(words) if state == "hostkey" else None
                details = {CHANGED_KEY: removal(changed[2], changed[1])} if changed else {}
                if state == "hostkey" and "revoked" in words.lower():
                    hint = REVOKED_HINT
                elif changed:
                    hint = IF_REINSTALLED + details[CHANGED_KEY]
                elif state == "auth" and "gssapi" in words and "publickey" not in words:
                    hint = "get a Kerberos ticket: kinit (GSSAPIAuthentication yes in ssh_config)"
                hint = hint.replace("{target}", shlex.quote(self.target))
                return NodeError(state, named, _short(words), hint, details=details)
        return NodeError("lost", phase, _short(words), f"try: ssh {shlex.quote(self.target)} true")

    def end(self) -> None:
        """Let it end; does not wait for that."""
        with self._lock:
            self._ending = True
            if self._process is not None:
                assert self._process.stdin is not None
                self._process.stdin.close()

    def close(self) -> None:
        """End it, and with it every session through it."""
        self.end()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSING_SECONDS)


class PersonsMaster(ControlMaster):
    """A connection that the person opened, by `ssh -M` or ControlMaster: used, never ended.

    The person may have answered for a code or a touch, which we never can.
    """

    uid = os.getuid()
    """Whose socket it must be: in a folder for all, another person could wait for us."""
    _answered = -math.inf

    @property
    def closed(self) -> bool:
        """It is not ours to close."""
        return False

    @property
    def running(self) -> bool:
        """It answers at its socket, which is the person's own; an answer counts for a while."""
        try:
            found = self.control.lstat()
        except OSError:
            return False
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid != self.uid:
            return False
        if time.monotonic() - self._answered > CHECKED_SECONDS:
            if not self._answers():
                return False
            self._answered = time.monotonic()
        return True

    def _answers(self) -> bool:
        argv = ["ssh", "-S", str(self.control), "-o", "ControlMaster=no", "-O", "check"]
        argv += ["--", self.target]
        try:
            check = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=CHECK_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return check.returncode == 0

    def end(self) -> None:
        """Leave it open."""

    def close(self) -> None:
        """Leave it open."""


def _short(words: str) -> str:
    """Leave OpenSSH's frame of @ signs and its advice away; the fact remains."""
    lines = [line.strip(" @") for line in words.splitlines()]
    dull = ("Someone could be eavesdropping", "IT IS POSSIBLE", "It is also possible")
    text = "\n".join(line for line in lines if line and not line.startswith(dull))
    # The reason comes last: after a long banner it would be cut off.
    return text if len(text) <= WORDS_LIMIT else "…" + text[-REASON_LIMIT:]
