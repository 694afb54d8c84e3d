"""Hosts behind other hosts: one `ssh -M` to each jump host, a `-W` through it per node.

Many threads on one paramiko gateway kill its connection, and a login per node at the gateway
meets its MaxStartups; OpenSSH's own multiplexing has neither fault.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable

from clusterctl.transport.control_master import ControlMaster, Folder, Policy
from clusterctl.transport.failure import Failed
from clusterctl.transport.interface import Timeouts
from clusterctl.transport.sockets import QuickSocket
from clusterctl.transport.ssh_config import Endpoint

ENDING_SECONDS = 1.0
"""How long a program may take to end once its bytes have."""


class ProcessSocket(QuickSocket):
    """Our end of a socket pair; at the other end a program carries the bytes on."""

    explain: Callable[[str], Failed]
    ended: threading.Event
    words: str
    """What the program wrote to stderr, once it has ended."""

    @classmethod
    def start(cls, argv: list[str], explain: Callable[[str], Failed]) -> ProcessSocket:
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

    def failure(self) -> Failed | None:
        """Return why the program gave up; None while it runs or where it said nothing."""
        if not self.ended.wait(ENDING_SECONDS) or not self.words.strip():
            return None
        return self.explain(self.words)


class Jumps:
    """The jump hosts of one command, each logged in to once; safe from several threads.

    They end with the folder that holds their sockets.
    """

    def __init__(self, folder: Folder, policy: Policy, *, timeouts: Timeouts) -> None:
        """Prepare; a jump host is reached when the first node behind it is."""
        self._folder = folder
        self._policy = policy
        self._timeouts = timeouts
        self._lock = threading.Lock()
        self._opening: dict[str, threading.Lock] = {}
        self._masters: dict[str, ControlMaster | Failed] = {}

    def dial(self, endpoint: Endpoint) -> ProcessSocket:
        """Open a way to a node through its jump host.

        Raises:
            Failed: the jump host cannot be reached.
        """
        assert endpoint.jump is not None
        master = self._master(endpoint)
        if isinstance(master, Failed):
            raise master
        host = f"[{endpoint.hostname}]" if ":" in endpoint.hostname else endpoint.hostname

        def explain(words: str) -> Failed:
            # Why a way was refused is told to the master, without saying which way it was.
            reasons = {
                line.partition("open failed: ")[2]
                for line in master.said().splitlines()
                if "open failed: " in line
            }
            told = f"{endpoint.target} through {endpoint.jump}: "
            if len(reasons) > 1:
                told += f"one of: {'; '.join(sorted(reasons))}"
                return Failed("unreachable", "jump", told, f"try: ssh {endpoint.jump} true")
            return master.failure(told + (reasons.pop() if reasons else words), phase="jump")

        argv = master.argv("-W", f"{host}:{endpoint.port}")
        return ProcessSocket.start(argv, explain)

    def _master(self, endpoint: Endpoint) -> ControlMaster | Failed:
        jump = str(endpoint.jump)
        with self._lock:
            opening = self._opening.setdefault(jump, threading.Lock())
        with opening:
            if jump not in self._masters:
                self._masters[jump] = self._log_in(endpoint, jump)
            return self._masters[jump]

    def _log_in(self, endpoint: Endpoint, jump: str) -> ControlMaster | Failed:
        *before, last = jump.split(",")
        destination = ["--", last if last.startswith("ssh://") else f"ssh://{last}"]
        master = self._folder.master(destination)
        options = self._policy.options(endpoint.known_hosts)
        if before:
            options += ["-J", ",".join(before)]
        if endpoint.identity is not None:
            options += ["-i", str(endpoint.identity)]
        try:
            master.open(options, timeouts=self._timeouts)
        except Failed as failure:
            master.close()
            words = f"jump host {jump}: {failure.words}"
            return Failed(failure.state, "jump", words, failure.hint)
        return master


def run_proxy_command(endpoint: Endpoint) -> ProcessSocket:
    """Open a way to a node through ssh_config's ProxyCommand."""
    command = f"exec {endpoint.proxy_command}"

    def explain(words: str) -> Failed:
        hint = "correct ProxyCommand in ssh_config"
        return Failed("lost", "jump", f"{endpoint.target}: ProxyCommand: {words}", hint)

    # The person's own shell line of ssh_config, which says that a shell runs it.
    return ProcessSocket.start([os.environ.get("SHELL", "/bin/sh"), "-c", command], explain)
