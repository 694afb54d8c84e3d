"""Hosts behind other hosts: one `ssh -M` to each jump host, a `-W` through it per node.

Many threads on one paramiko gateway kill its connection, and a login per node at the gateway
meets its MaxStartups; OpenSSH's own multiplexing has neither fault.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from clusterctl.errors import NodeError
from clusterctl.transport.control_master import ControlFolder, ControlMaster, HostKeyPolicy
from clusterctl.transport.interface import Timeouts
from clusterctl.transport.sockets import NoDelaySocket
from clusterctl.transport.ssh_config import Endpoint

ENDING_SECONDS = 1.0
"""How long a program may take to end once its bytes have."""


class ProxySocket(NoDelaySocket):
    """Our end of a socket pair; at the other end a program carries the bytes on."""

    explain: Callable[[str], NodeError]
    ended: threading.Event
    words: str
    """What the program wrote to stderr, once it has ended."""

    @classmethod
    def start(cls, argv: list[str], explain: Callable[[str], NodeError]) -> ProxySocket:
        """Start the program; it ends when the socket is closed.

        Args:
            argv: the program, with its stdin and stdout at the socket.
            explain: what its words mean.
        """
        ours, theirs = socket.socketpair()
        found = cls(fileno=ours.detach())
        found.explain = explain
        found.ended = threading.Event()
        errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by the thread that waits)
        with theirs:
            process = subprocess.Popen(
                argv,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=errors,
                start_new_session=True,
            )

        def wait() -> None:
            process.wait()
            with errors:
                errors.seek(0)
                found.words = errors.read(1 << 16).decode("utf-8", "backslashreplace")
            found.ended.set()

        threading.Thread(target=wait, name="way", daemon=True).start()
        return found

    def failure(self) -> NodeError | None:
        """Return why the program gave up; None while it runs or where it said nothing."""
        if not self.ended.wait(ENDING_SECONDS) or not self.words.strip():
            return None
        return self.explain(self.words)


@dataclass(frozen=True, slots=True, kw_only=True)
class JumpHost:
    """The last jump host on a way, logged in to."""

    jump: str
    """The whole way to it."""
    master: ControlMaster

    def argv(self, host: str, port: str) -> list[str]:
        """Return the program that carries bytes from here to an address behind it."""
        return self.master.argv("-W", f"[{host}]:{port}" if ":" in host else f"{host}:{port}")

    @property
    def proxy_command(self) -> str:
        """The same for ssh's option, which fills the address in and has a shell run it."""
        words = [word.replace("%", "%%") for word in self.master.argv()]
        return f"{shlex.join([*words[:-2], '-W'])} '[%h]:%p' {shlex.join(words[-2:])}"

    def failure(self, target: str, words: str) -> NodeError:
        """Return why a way through it was not opened.

        Args:
            target: where it should have led.
            words: of the program that carried the bytes: they lack the reason.
        """
        # The master's stderr has the reason of a refused channel, but not which channel it was.
        reasons = {
            line.partition("open failed: ")[2]
            for line in self.master.said().splitlines()
            if "open failed: " in line
        }
        told = f"{target} through {self.jump}: "
        if len(reasons) > 1:
            told += f"one of: {'; '.join(sorted(reasons))}"
            return NodeError("unreachable", "jump", told, f"try: {_typed(self.jump)}")
        return self.master.failure(told + (reasons.pop() if reasons else words), phase="jump")


class JumpHosts:
    """The jump hosts of a cluster, each logged in to once; safe from several threads.

    They end with the folder that holds their sockets.
    """

    def __init__(self, folder: ControlFolder, policy: HostKeyPolicy, *, timeouts: Timeouts) -> None:
        """Prepare; a jump host is reached when the first node behind it is."""
        self._folder = folder
        self._policy = policy
        self._timeouts = timeouts
        self._lock = threading.Lock()
        self._opening: dict[str, threading.Lock] = {}
        self._gates: dict[str, JumpHost | NodeError] = {}

    def refresh(self) -> None:
        """Try those again that could not be reached."""
        with self._lock:
            self._gates = {j: gate for j, gate in self._gates.items() if isinstance(gate, JumpHost)}

    def dial(self, endpoint: Endpoint, jump: str) -> ProxySocket:
        """Open a way to a node through jump hosts.

        Raises:
            NodeError: a jump host cannot be reached.
        """
        gate = self.open(endpoint, jump)
        argv = gate.argv(endpoint.hostname, str(endpoint.port))
        return ProxySocket.start(argv, partial(gate.failure, endpoint.target))

    def open(self, endpoint: Endpoint, jump: str) -> JumpHost:
        """Log in to jump hosts, each through the one before it, and return the last.

        Raises:
            NodeError: one of them cannot be reached.
        """
        with self._lock:
            opening = self._opening.setdefault(jump, threading.Lock())
        with opening:
            gate = self._gates.get(jump)
            if isinstance(gate, JumpHost) and not gate.master.running:
                gate.master.close()
                gate = None
            if gate is None:
                try:
                    gate = self._log_in(endpoint, jump)
                except NodeError as failure:
                    gate = failure
                self._gates[jump] = gate
        if isinstance(gate, NodeError):
            raise gate
        return gate

    def _log_in(self, endpoint: Endpoint, jump: str) -> JumpHost:
        """Log in to the last of them.

        Not by ssh's own -J: it would reach the others without our options, keys and patience.
        """
        way, _, last = jump.rpartition(",")
        before = self.open(endpoint, way) if way else None
        options = self._policy.options(endpoint.known_hosts)
        if before is not None:
            options += ["-o", f"ProxyCommand={before.proxy_command}"]
        if endpoint.identity is not None:
            options += ["-i", str(endpoint.identity)]
        destination = ["--", last if last.startswith("ssh://") else f"ssh://{last}"]
        master = self._folder.master(destination)
        try:
            master.open(options, timeouts=self._timeouts)
        except NodeError as failure:
            master.close()
            if before is not None and failure.state in {"lost", "unreachable"}:
                failure = before.failure(last, failure.message)
            words, hint = f"jump host {last}: {failure.message}", failure.hint
            if hint.startswith("try: "):
                hint = f"try: {_typed(jump)}"
            raise NodeError(failure.state, "jump", words, hint) from None
        self._policy.tell_accepted(master)
        return JumpHost(jump=jump, master=master)


def _typed(jump: str) -> str:
    """Return what a person types to try a way."""
    way, _, last = jump.rpartition(",")
    return f"ssh {f'-J {way} ' if way else ''}{last} true"


def run_proxy_command(endpoint: Endpoint) -> ProxySocket:
    """Open a way to a node through ssh_config's ProxyCommand."""
    command = f"exec {endpoint.proxy_command}"

    def explain(words: str) -> NodeError:
        hint = "correct ProxyCommand in ssh_config"
        return NodeError("lost", "jump", f"{endpoint.target}: ProxyCommand: {words}", hint)

    # The person's own shell line of ssh_config, which says that a shell runs it.
    return ProxySocket.start([os.environ.get("SHELL", "/bin/sh"), "-c", command], explain)
