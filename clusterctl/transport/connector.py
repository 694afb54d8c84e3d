"""Connects to a node by what its inventory sets: this machine, paramiko, ssh or srun.

All connections share the keys, known hosts, ssh_config and jump hosts.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, cast

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Node
from clusterctl.inventory.other_programs.allocation import JOB
from clusterctl.safe_text import printable_words
from clusterctl.transport import agent
from clusterctl.transport.concurrency_limit import ConcurrencyLimit, Turn
from clusterctl.transport.connection import Connection, LocalConnection, OpensshConnection
from clusterctl.transport.interface import Timeouts
from clusterctl.transport.ssh import sockets
from clusterctl.transport.ssh.control_master import ControlFolder
from clusterctl.transport.ssh.host_keys import HostKeyVerifier
from clusterctl.transport.ssh.jump_hosts import JumpHosts, run_proxy_command
from clusterctl.transport.ssh.sockets import NoDelaySocket
from clusterctl.transport.ssh.ssh_config import Endpoint, SshConfigResolver
from clusterctl.transport.stream import ExitInfo, ProcessStream, Stream
from clusterctl.transport.translate_errors import translated

_OWN_ERROR = re.compile(rb"^srun: error: (?!.*: tasks? [0-9,-]+: Exited)(.*)", re.MULTILINE)
"""srun's own words, not those on the exit code of what it ran: both have one exit status."""

_OF_JOB = re.compile(
    r"SLURM_(?:ARRAY_|CLUSTER|CONF|JOB_|JOBID$|NODELIST$|RESTART_COUNT$|SUBMIT_|TOPOLOGY_)"
)
"""Variables that tell of the job, and of Slurm itself."""


class SrunStream(ProcessStream):
    """An `srun` that runs a command on one node."""

    def ending(self) -> ExitInfo:
        """Return how it ended; an error of srun's own means that there is no such step."""
        ending = super().ending()
        errors = _OWN_ERROR.findall(ending.errors)
        if not errors:
            return ending
        cause = "srun: " + printable_words(b"\n".join(errors))
        return ExitInfo(connected=False, errors=ending.errors, cause=cause)


class SrunConnection(Connection):
    """A node of the allocation that this process is in."""

    alive = True

    def __init__(self, node: Node, timeouts: Timeouts) -> None:
        """Take the node; there is nothing to open.

        Raises:
            NodeError: there is no allocation, or no srun.
        """
        super().__init__(node, timeouts)
        job = node.ssh.slurm_job
        if not job:
            message = f"{JOB}: expected in the environment for `via: srun`, found none"
            hint = "salloc -N 2, then the same command in its shell"
            raise NodeError("unreachable", "config", message, hint)
        if shutil.which("srun") is None:
            hint = "install Slurm's client programs (slurm-client)"
            raise NodeError("unreachable", "config", "there is no srun on this machine", hint)
        self._job = job

    def start_agent(self) -> Stream:
        """Start the agent as a step of its own, next to the job's other steps."""
        argv = [
            *("srun", f"--jobid={self._job}", f"--nodelist={self.node.host}"),
            *("--nodes=1", "--ntasks=1", "--overlap"),
            # A step that must wait would wait for the end of a training. The ranks choose CPUs.
            *("--immediate=10", "--cpu-bind=none", "--unbuffered"),
            # Else the step starts in a folder that only this machine may have.
            *("--chdir=/", "/bin/sh", "-c", agent.COMMAND),
        ]
        with translated("exec", self.node.name):
            return SrunStream(argv, step_environment(os.environ))


def step_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a step, which gets all that the job has on its node.

    srun reads its options from variables, too: with SLURM_GPUS_PER_TASK, which `salloc
    --gpus-per-task` sets, a step of one task would get one of the node's GPUs.
    """
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(("SLURM_", "SRUN_")) or _OF_JOB.match(name)
    }


IMPORTING = threading.RLock()
"""Held while paramiko or Fabric is imported: what is hidden from the one, the other needs."""


class _LazyModule(ModuleType):
    """Stands for a module, which is imported when a name of it is first used."""

    def __getattr__(self, name: str) -> object:
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def without_invoke() -> Iterator[None]:
    """Let the block import paramiko without Invoke, which loads slowly.

    paramiko needs it for `Match exec` in ssh_config only, and OpenSSH reads that for us. Others in
    this process who want it still get it.
    """
    with IMPORTING:
        if {"paramiko", "invoke"} & sys.modules.keys():
            yield
            return
        # None there makes the import fail, and paramiko is prepared for that.
        sys.modules["invoke"] = cast("ModuleType", None)
        try:
            yield
        finally:
            del sys.modules["invoke"]
            if "paramiko.config" in sys.modules:
                vars(sys.modules["paramiko.config"])["invoke"] = _LazyModule("invoke")


if TYPE_CHECKING:
    from clusterctl.transport.ssh.paramiko_login import ParamikoConnector


class Connector:
    """Opens connections; safe from several threads."""

    def __init__(
        self, cluster: str, *, timeouts: Timeouts, accept_new: bool, fanout: int | None = None
    ) -> None:
        """Prepare what connections share; files are read when they are first needed."""
        self._timeouts = timeouts
        self._limit = ConcurrencyLimit(timeouts, fanout)
        self._resolver = SshConfigResolver()
        self._verifier = HostKeyVerifier(cluster, accept_new=accept_new)
        self._connecting = 0
        self.folder = ControlFolder()
        """A private one with a short path, for sockets."""
        self._jumps = JumpHosts(self.folder, self._resolver, self._verifier, timeouts)
        self._paramiko: ParamikoConnector | None = None
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Let the next command read ssh_config, known hosts and keys as they are then.

        Jump hosts that could not be reached are tried again. Not while a thread is connecting.
        """
        with self._lock:
            if self._connecting:
                return
            self._resolver.refresh()
            self._verifier.refresh()
            self._jumps.refresh()
            if self._paramiko is not None:
                self._paramiko.keyring.refresh()

    def connect(self, node: Node) -> Connection:
        """Connect as the inventory sets it.

        Raises:
            NodeError: the node cannot be reached.
        """
        with self._lock:
            self._connecting += 1
        try:
            return self._connect(node)
        finally:
            with self._lock:
                self._connecting -= 1

    def _connect(self, node: Node) -> Connection:
        if node.local or node.ssh.via == "srun":
            kind = LocalConnection if node.local else SrunConnection
            child = kind(node, self._timeouts)
            child.in_turn = partial(self._limit.turn, "local" if node.local else "srun", "call")
            return child
        endpoint = self._resolver.resolve(node)
        connection: Connection
        if node.ssh.via == "openssh":
            connection = self._by_openssh(node, endpoint)
        else:
            if endpoint.jump is not None:
                # Not in the node's turn: its login is not the node's.
                self._jumps.open(endpoint.jump, endpoint.identity)
            in_turn = partial(self._limit.login, endpoint.gateway, endpoint.server)
            dial = partial(self._dial, endpoint)
            try:
                connection = self._by_paramiko().connect(node, endpoint, in_turn, dial)
            except NodeError as failure:
                # A host may ask for a second factor, and the person may have given it to ssh.
                opened = self._jumps.opened_by_person(node) if failure.state == "auth" else None
                if opened is None:
                    raise
                connection = OpensshConnection(node, opened, self._timeouts)
        connection.in_turn = partial(self._limit.turn, endpoint.gateway, "call")
        return connection

    def close(self) -> None:
        """Close what connections share, and let no thread wait for a turn."""
        self._limit.close()
        if self._paramiko is not None:
            self._paramiko.keyring.close()
        self.folder.close()

    def _dial(self, endpoint: Endpoint) -> NoDelaySocket:
        if endpoint.jump is not None:
            return self._jumps.open(endpoint.jump, endpoint.identity).dial(endpoint.target)
        if endpoint.proxy_command is not None:
            return run_proxy_command(endpoint)
        limit = endpoint.connect_timeout or self._timeouts.connect
        return sockets.connect(endpoint.hostname, endpoint.port, timeout=limit)

    def _by_openssh(self, node: Node, endpoint: Endpoint) -> Connection:
        """Let the system's ssh connect and log in; it reads its ssh_config itself.

        Jump hosts of the inventory are ours: ssh would reach them without our options and keys.
        """
        if (opened := self._jumps.opened_by_person(node)) is not None:
            return OpensshConnection(node, opened, self._timeouts)
        options: list[str] = []
        settings = (
            ("-l", node.ssh.user),
            ("-p", node.ssh.port),
            ("-i", node.ssh.identity and endpoint.identity),
        )
        for flag, value in settings:
            if value is not None:
                options += [flag, str(value)]
        through = None
        server = endpoint.server
        if node.ssh.jump is not None and endpoint.jump:
            through = self._jumps.open(endpoint.jump, endpoint.identity)
        elif node.ssh.jump is not None:
            options += ["-o", "ProxyCommand=none"]
        elif endpoint.jump:
            server = endpoint.jump  # each ssh logs in there by itself

        def log_in(turn: Turn) -> Connection:
            turn.accepted = True  # ssh does not report when that is
            master = self._jumps.log_in(endpoint, options, name=endpoint.target, through=through)
            connection = OpensshConnection(node, master, self._timeouts)
            connection.login_seconds = turn.seconds
            return connection

        return self._limit.login(endpoint.gateway, server, log_in)

    def _by_paramiko(self) -> ParamikoConnector:
        with self._lock:
            if self._paramiko is None:
                # Its import takes longer than all else that a command imports together.
                with without_invoke():
                    from clusterctl.transport.ssh.paramiko_login import ParamikoConnector  # noqa: PLC0415

                self._paramiko = ParamikoConnector(self._verifier, self._timeouts)
            return self._paramiko
