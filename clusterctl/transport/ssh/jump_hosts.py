"""Hosts behind other hosts: one `ssh -M` to each jump host, a `-W` through it per node.

Many threads on one paramiko gateway kill its connection, and a login per node at the gateway
meets its MaxStartups; OpenSSH's own multiplexing has neither fault.
"""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Node, Ssh
from clusterctl.safe_text import printable_words
from clusterctl.transport.interface import Timeouts
from clusterctl.transport.ssh.control_master import ControlFolder, ControlMaster, PersonsMaster
from clusterctl.transport.ssh.host_keys import HostKeyVerifier
from clusterctl.transport.ssh.sockets import NoDelaySocket
from clusterctl.transport.ssh.ssh_config import Endpoint, SshConfigResolver, security_key
from clusterctl.transport.stream import Errors
from clusterctl.values import dataclass

ENDING_SECONDS = 1.0
"""How long a program may take to end once its bytes have."""

_Login = tuple[str, Path | None]
"""A chain of jump hosts, and the inventory's key for them."""


class ProxySocket(NoDelaySocket):
    """Our end of a socket pair; at the other end a program carries the bytes on."""

    _explain: Callable[[str], NodeError]
    _process: subprocess.Popen[bytes]
    _errors: Errors

    @classmethod
    def start(cls, argv: list[str], explain: Callable[[str], NodeError]) -> Self:
        """Start a program with its stdin and stdout at the socket; it ends when that is closed."""
        ours, theirs = socket.socketpair()
        found = cls(fileno=ours.detach())
        found._explain = explain
        with theirs:
            found._process = process = subprocess.Popen(
                argv,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        assert process.stderr is not None
        found._errors = Errors(process.stderr, at_end=process.wait)
        return found

    def close(self) -> None:
        """Close our end, and end the program: it may not care about its stdin.

        ssh sends SIGHUP, which a program ignores that was started under nohup.
        """
        super().close()
        if self._process.poll() is None:
            with contextlib.suppress(OSError):  # exited, or the id is reused
                os.killpg(self._process.pid, signal.SIGTERM)

    @property
    def words(self) -> str:
        """What the program has written to stderr."""
        return self._errors.read().decode("utf-8", "backslashreplace").strip()

    def failure(self) -> NodeError | None:
        """Return why the program gave up; None if it may not be its fault."""
        try:
            status = self._process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            status = 0
        words = self.words
        if not words and status:
            words = f"it ended with exit status {status} and no word"
        return self._explain(words) if words else None


@dataclass(frozen=True, slots=True, kw_only=True)
class JumpHost:
    """The last of a chain of jump hosts, logged in to."""

    jump: str
    """The chain, as in ProxyJump."""
    master: ControlMaster

    def dial(self, target: str) -> ProxySocket:
        """Open a socket to a `host:port` behind it."""
        return ProxySocket.start(self.master.argv("-W", target), partial(self.failure, target))

    @property
    def proxy_command(self) -> str:
        """The same as an option of ssh, which fills the address in and has a shell run it."""
        words = [word.replace("%", "%%") for word in self.master.argv()]
        return f"{shlex.join([*words[:-2], '-W'])} '[%h]:%p' {shlex.join(words[-2:])}"

    def failure(self, target: str, words: str) -> NodeError:
        """Return why a host behind it was not reached; `words` of the program lack the reason."""
        # The master's stderr has the reason of a refused channel, but not which channel it was.
        reasons = {
            line.partition("open failed: ")[2]
            for line in self.master.stderr().splitlines()
            if "open failed: " in line
        }
        what = f"{target} through {self.jump}: "
        if len(reasons) > 1:
            what += f"one of: {'; '.join(sorted(reasons))}"
            return NodeError("unreachable", "jump", what, f"try: {_ssh_command(self.jump)}")
        failed = self.master.failure(what + "".join(reasons or [words]), phase="jump")
        if reasons and failed.hint.startswith("try: "):
            # The jump host itself answers: to try it alone would tell nothing.
            host, _, port = target.rpartition(":")
            to = ["-J", self.jump, *(["-p", port] if port != "22" else []), host.strip("[]")]
            failed.hint = f"try: {shlex.join(['ssh', *to, 'true'])}"
        return failed


class JumpHosts:
    """The jump hosts of a cluster, each logged in to once; safe from several threads.

    They end with the folder that holds their sockets. Each is judged by its own part of
    ssh_config, never by that of the nodes behind it.
    """

    def __init__(
        self,
        folder: ControlFolder,
        resolver: SshConfigResolver,
        verifier: HostKeyVerifier,
        timeouts: Timeouts,
    ) -> None:
        """Prepare; a jump host is reached when the first node behind it is."""
        self._folder = folder
        self._resolver = resolver
        self._verifier = verifier
        self._timeouts = timeouts
        self._lock = threading.Lock()
        self._opening: dict[_Login, threading.Lock] = {}
        self._opened: dict[_Login, JumpHost | NodeError] = {}

    def refresh(self) -> None:
        """Try those again that could not be reached."""
        with self._lock:
            self._opened = {j: one for j, one in self._opened.items() if isinstance(one, JumpHost)}

    def open(self, jump: str, identity: Path | None) -> JumpHost:
        """Log in to jump hosts, each through the one before; return the last; else NodeError."""
        return self._open(self._whole(jump), identity)

    def _whole(self, jump: str) -> str:
        """Return the chain with the jump hosts that ssh_config puts before its first."""
        passed: set[str] = set()
        first = jump.partition(",")[0]
        while (before := self._resolver.resolve(_host(first)).jump) is not None:
            passed.add(first)
            jump, first = f"{before},{jump}", before.partition(",")[0]
            if first in passed:
                words = f"jump host {first}: ssh_config leads in a circle ({jump})"
                raise NodeError("unreachable", "jump", words, f"try: {_ssh_command(first)}")
        return jump

    def _open(self, jump: str, identity: Path | None) -> JumpHost:
        login = jump, identity
        with self._lock:
            opening = self._opening.setdefault(login, threading.Lock())
        with opening:
            opened = self._opened.get(login)
            if isinstance(opened, JumpHost) and not opened.master.running:
                opened.master.close()
                opened = None
            if opened is None:
                try:
                    opened = self._log_in_to(jump, identity)
                except NodeError as failure:
                    opened = failure
                self._opened[login] = opened
        if isinstance(opened, NodeError):
            raise opened
        return opened

    def _log_in_to(self, jump: str, identity: Path | None) -> JumpHost:
        """Log in to the last of them.

        Not by ssh's own -J: it would reach the others without our options, keys and patience.
        """
        before, _, last = jump.rpartition(",")
        host = _host(last)
        if (opened := self.opened_by_person(host)) is not None:
            return JumpHost(jump=jump, master=opened)
        endpoint = self._resolver.resolve(host)
        through = self._open(before, identity) if before else None
        options = ["-i", str(identity)] if identity is not None else []
        try:
            master = self.log_in(endpoint, options, name=last, through=through)
        except NodeError as failure:
            words, hint = f"jump host {last}: {failure.message}", failure.hint
            if hint.startswith("try: "):
                hint = f"try: {_ssh_command(jump)}"
            raise NodeError(failure.state, "jump", words, hint) from None
        return JumpHost(jump=jump, master=master)

    def opened_by_person(self, host: Node) -> ControlMaster | None:
        """Return the connection to a host that the person has open; None if there is none."""
        path = self._resolver.control_path(host)
        if path is None:
            return None
        master = PersonsMaster(path, host.host)
        return master if master.running else None

    def log_in(
        self,
        endpoint: Endpoint,
        options: list[str],
        *,
        name: str,
        through: JumpHost | None,
    ) -> ControlMaster:
        """Have OpenSSH log in to a host; raise NodeError if it did not let us in."""
        options = [*self._verifier.openssh_options(endpoint), *options]
        if through is not None:
            options += ["-o", f"ProxyCommand={through.proxy_command}"]
        limit = self._timeouts.connect
        if through is None and endpoint.proxy_command is not None:
            # To ssh this limit is that of the banner, too, and a program may start slowly.
            limit += self._timeouts.handshake
        timeouts = replace(self._timeouts, connect=endpoint.connect_timeout or limit)
        master = self._folder.master(endpoint.host, forks=endpoint.forks)
        try:
            master.open(options, timeouts=timeouts, token=security_key(endpoint))
        except NodeError as failure:
            master.close()
            if through is not None and failure.state in {"lost", "unreachable"}:
                raise through.failure(name, failure.message) from None
            raise
        self._verifier.warn_accepted_by_openssh(master.stderr())
        return master


def _host(jump: str) -> Node:
    """Return one jump host as ssh takes it."""
    host = jump if jump.startswith("ssh://") else f"ssh://{jump}"
    return Node(host=host, name=jump, ssh=Ssh())


def _ssh_command(jump: str) -> str:
    """Return what a user types to try a chain of jump hosts."""
    before, _, last = jump.rpartition(",")
    through = ["-J", before] if before else []
    return shlex.join(["ssh", *through, last, "true"])


def run_proxy_command(endpoint: Endpoint) -> ProxySocket:
    """Open a socket to a node through ssh_config's ProxyCommand."""
    command = f"exec {endpoint.proxy_command}"

    def explain(words: str) -> NodeError:
        hint = (
            f"correct ProxyCommand in ssh_config; try: {shlex.join(['ssh', endpoint.host, 'true'])}"
        )
        said = f"ProxyCommand of ssh_config: {printable_words(words)}"
        return NodeError("lost", "jump", f"{endpoint.target}: {said}", hint)

    # The person's own line of ssh_config, which documents that their shell runs it.
    return ProxySocket.start([os.environ.get("SHELL", "/bin/sh"), "-c", command], explain)
