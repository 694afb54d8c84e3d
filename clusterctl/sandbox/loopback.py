"""Hosts as sshd processes on 127.0.0.1, each on a port of its own: no root needed.

They share this machine's files, processes and clock, and differ in HOME, workspace and node state.
"""

import contextlib
import getpass
import os
import random
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import psutil

from clusterctl.errors import ClusterError, UsageError
from clusterctl.sandbox import processes, sshd
from clusterctl.sandbox.backend import Backend, SandboxSpec, in_folder
from clusterctl.sandbox.layout import BackendName, Host

ADDRESS = "127.0.0.1"
PORTS = range(20000, 32768)
"""Below the ephemeral ports, which Linux gives to connections from 32768 on."""
PORT_TRIES = 5
PRIVSEP = Path("/run/sshd")
"""Root's sshd needs this folder. Packages make it when the system starts, containers do not."""


class Loopback(Backend):
    """The backend for anyone who has sshd installed."""

    name: ClassVar[BackendName] = "loopback"

    def plan(self, spec: SandboxSpec) -> list[Host]:
        """Return hosts node1 … whose ports the system will choose."""
        for refused, why in (
            (set(spec.shells) != {"bash"}, "--shells: {} logs in to the shell of this account"),
            (spec.users, "--users: {} logs in as this user"),
            (spec.ip != "4", "--ip: {} has 127.0.0.1"),
            (spec.jumps, "--jumps: {} has hosts that are reached directly"),
        ):
            if refused:
                raise UsageError(
                    why.format("the loopback backend"), hint="--backend netns, as root"
                )
        return [
            Host(
                name=f"node{number}",
                address=ADDRESS,
                port=0,
                users=(getpass.getuser(),),
                shell="",
                interface="lo",
                shared=str(self.layout.shared),
                workspace=str(self.layout.host(f"node{number}") / "workspace"),
                state=str(self.layout.host(f"node{number}") / "state"),
                gpus=spec.gpus,
            )
            for number in range(1, spec.nodes + 1)
        ]

    def begin(self, hosts: Sequence[Host]) -> None:
        """Make the hosts' folders, and an `ssh` that reads the sandbox's own settings."""
        if os.geteuid() == 0:
            PRIVSEP.mkdir(mode=0o755, exist_ok=True)
        for host in hosts:
            folder = self.layout.host(host.name)
            for name in ("home", "workspace", "state", "bin"):
                (folder / name).mkdir(mode=0o700)
            public = self.layout.key.with_suffix(".pub")
            (folder / "authorized_keys").write_text(public.read_text())
        sshd.write_client(self.layout)

    def start(self, hosts: Sequence[Host]) -> list[Host]:
        """Start every sshd, on another port if the chosen one was just taken."""
        started = [self._start(host) for host in hosts]
        if not any(host.port for host in hosts):
            with self.layout.ssh_config.open("a") as config:
                for host in started:
                    config.write(f"Host {host.name}\n  HostName {ADDRESS}\n  Port {host.port}\n")
        return started

    def _start(self, host: Host) -> Host:
        for _ in range(PORT_TRIES):
            placed = host if host.port else replace(host, port=free_port())
            if self._start_sshd(placed, {}):
                return placed
        raise ClusterError(f"{host.name}: no port on {ADDRESS} was free for its sshd")

    def listen(self, host: Host, environment: Mapping[str, str] | None = None) -> None:
        """Start a host's sshd again on its port."""
        if not self._start_sshd(host, environment or {}):
            raise ClusterError(f"{host.name}: port {host.port} was taken by another process")

    def _start_sshd(self, host: Host, more: Mapping[str, str]) -> bool:
        """Start a host's sshd; False: its port is in use."""
        folder = self.layout.host(host.name)
        environment = self.host_environment(host) | {"HOME": str(folder / "home")}
        self._settings(host.name).write_text(
            sshd.configuration(
                port=host.port,
                folder=str(folder),
                environment=environment | dict(more),
                listen=[ADDRESS],
                authorized=f"{folder}/authorized_keys",
            )
        )
        log = folder / "sshd.log"
        is_listening = sshd.watch_log(log)
        argv = [sshd.program(), "-D", "-e", "-f", str(self._settings(host.name))]
        pid = processes.spawn(argv, environment=environment, log=log)
        processes.record(self.layout.pid(host.name), pid)
        return is_listening()

    def master_port(self) -> int:
        """Return a port that is free on this machine, for other sandboxes may be up."""
        return free_port()

    def controller(self, argv: Sequence[str], folder: str) -> list[str]:
        """Run it here, in the folder."""
        return in_folder(folder, argv)

    def on(self, host: Host, argv: Sequence[str]) -> list[str]:
        """Run it here, as a process of this host."""
        environment = self.host_environment(host)
        return ["env", *(f"{name}={value}" for name, value in environment.items()), *argv]

    def processes(self, host: Host) -> set[int]:
        """Return the host's sshd, what it started, and the processes with the host's stamp."""
        return processes.stamped(self.layout.root, host.name) | self._tree(host.name)

    def power_off(self, host: Host) -> None:
        """Stop all processes first, so that none sees another end, then kill them."""
        processes.send(self.processes(host), signal.SIGSTOP)
        processes.end(lambda: self.processes(host))

    def end(self) -> set[int]:
        """Kill every process with the sandbox's stamp, every sshd and what it started."""
        names = [path.name for path in (self.layout.root / "hosts").glob("*")]
        return processes.end(
            lambda: processes.stamped(self.layout.root).union(*(self._tree(n) for n in names))
        )

    def _tree(self, name: str) -> set[int]:
        """Return a host's sshd and all that it started.

        sshd overwrites its environment with its title, so it is found by its settings file.
        """
        found = set()
        for process in psutil.process_iter(["cmdline"]):
            if f"-f {self._settings(name)}" in " ".join(process.info["cmdline"] or ()):
                found |= processes.tree(process.pid)
        return found

    def _settings(self, name: str) -> Path:
        return self.layout.host(name) / "sshd_config"


def free_port(address: str = ADDRESS) -> int:
    """Return a port of this machine's address that is free at this moment.

    It is never an ephemeral one: a run binds its master port long after it was chosen, and no
    connection may have it by then.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in random.sample(PORTS, len(PORTS)):
        with (
            contextlib.suppress(OSError),
            socket.create_server((address, port), family=family),
        ):
            return port
    raise ClusterError(f"no port of {PORTS.start} to {PORTS.stop - 1} on {address} is free")
