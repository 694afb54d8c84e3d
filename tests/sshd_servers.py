"""Real sshd servers on loopback, each with keys and files of its own."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from clusterctl.inventory.cluster import Cluster, Node, Ssh
from clusterctl.sandbox.loopback import free_port
from clusterctl.transport.interface import Reply, Request, Timeouts
from clusterctl.transport.pool import Pool
from clusterctl.transport.ssh.known_hosts import known_name
from tests.waiting import BUSY

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
try:
    USER = getpass.getuser()
except (KeyError, OSError):
    USER = ""
"""An sshd that root does not run lets in only the user who runs it."""


@dataclass
class Sshd:
    """One server: `stop`, `freeze` and `thaw` it, read its `log`."""

    folder: Path
    port: int
    identity: Path
    options: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    children: list[int] = field(default_factory=list)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def public_key(self) -> str:
        kind, key, *_ = (self.folder / "host_key.pub").read_text().split()
        return f"{kind} {key}"

    @property
    def fingerprint(self) -> str:
        shown = subprocess.run(
            ["ssh-keygen", "-l", "-f", str(self.folder / "host_key.pub")],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        return shown.split()[1]

    @property
    def known_line(self) -> str:
        return f"{known_name('127.0.0.1', self.port)} {self.public_key}\n"

    def node(self, name: str | None = None, **ssh: object) -> Node:
        settings = {"port": self.port, "user": USER, "identity": str(self.identity), **ssh}
        label = name or f"127.0.0.1_{self.port}"
        return Node(host="127.0.0.1", name=label, ssh=Ssh(**settings))  # type: ignore[arg-type]

    def start(self) -> None:
        config = self.folder / "sshd_config"
        lines = [
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {self.folder / 'host_key'}",
            f"AuthorizedKeysFile {self.folder / 'authorized_keys'}",
            f"PidFile {self.folder / 'pid'}",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin yes",
            "PermitUserEnvironment yes",
            *self.options,
            # The rc files of whoever runs the tests may start a hundred processes, as pyenv's do.
            f"SetEnv HOME={self.folder}",  # (the first SetEnv counts)
        ]
        config.write_text("\n".join(lines) + "\n")
        with (self.folder / "log").open("a") as log:
            before = len(self.log)  # of a server that was stopped
            self.process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + BUSY
        while "Server listening" not in self.log[before:]:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.01)

    def sessions(self) -> list[int]:
        """Return the pids of the server's descendants."""
        assert self.process is not None
        return descendants(self.process.pid)

    def freeze(self) -> None:
        assert self.process is not None
        frozen: set[int] = set()
        # One that is not frozen yet may start another while we look.
        while new := {self.process.pid, *self.sessions()} - frozen:
            for pid in new:
                # What served until somebody was let in may be on its way out.
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    self.children.append(pid)
            frozen |= new

    def stop(self) -> None:
        if self.process is None:
            return
        for pid in [*self.sessions(), *self.children]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self.process = None


def descendants(pid: int) -> list[int]:
    """Return the processes below one, found in /proc."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parent = int(stat.rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(entry.name))
    found = []
    waiting = [pid]
    while waiting:
        below = parents.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def make_key(path: Path, *, kind: str = "ed25519", passphrase: str = "") -> Path:
    argv = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", str(path)]
    if kind == "rsa":  # a longer one takes seconds to find
        argv += ["-b", "2048"]
    subprocess.run(argv, check=True)
    return path


@pytest.fixture
def ssh_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let every `ssh` that is started read this file in place of the person's own."""
    config, folder = tmp_path / "ssh_config", tmp_path / "ssh-program"
    config.touch()
    folder.mkdir()
    wrapper = folder / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return config


@pytest.fixture
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the cluster's own known_hosts be in the test's folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("CLUSTERCTL_STATE", raising=False)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return tmp_path / "state"


@pytest.fixture
def make_sshd(tmp_path: Path, own_state: Path) -> Iterator[Callable[..., Sshd]]:
    """Start servers that let the test's key in; their host keys are known to cluster `t`."""
    if not USER:
        pytest.skip(f"no sshd lets in user {os.getuid()}, who has no name here")
    servers: list[Sshd] = []
    identity = make_key(tmp_path / "id")

    def make(*options: str, known: bool = True) -> Sshd:
        folder = tmp_path / f"sshd{len(servers)}"
        folder.mkdir()
        make_key(folder / "host_key")
        shutil.copy(tmp_path / "id.pub", folder / "authorized_keys")
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # its privilege separation needs it
        server = Sshd(folder=folder, port=free_port(), identity=identity, options=options)
        server.start()
        servers.append(server)
        if known:
            path = own_state / "clusterctl" / "t" / "known_hosts"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(server.known_line)
        return server

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def sshd(make_sshd: Callable[..., Sshd]) -> Sshd:
    return make_sshd()


def cluster_of(*nodes: Node) -> Cluster:
    return Cluster(name="t", nodes=nodes)


HELLO = Request(op="hello", args={})


def hello(node: Node, timeouts: Timeouts | None = None, *, accept_new: bool = False) -> Reply:
    """Return a node's answer to a greeting, over a connection of its own."""
    with Pool(cluster_of(node), timeouts=timeouts, accept_new=accept_new) as pool:
        (reply,) = pool.call({node.name: HELLO})
    return reply


def opened(node: Node, *, accept_new: bool = False) -> Reply:
    """Return what comes of connecting to a node, of which nothing else is asked."""
    with Pool(cluster_of(node), accept_new=accept_new) as pool:
        (reply,) = pool.open()
    return reply
