"""A project and a way to run `clusterctl` on it in a sandbox, for tests of whole runs."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from clusterctl.errors import ClusterError
from clusterctl.sandbox.netns import Netns
from clusterctl.sandbox.sandbox import Sandbox
from tests.waiting import BUSY

ROOT = Path(__file__).parent.parent.parent
JOB = """
import os, signal, socket, sys, time

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
    server = socket.create_server(place, family=family)
    peers = [server.accept()[0] for _ in range(world - 1)]
    for peer in peers:
        peer.sendall(b"go")
else:
    while True:
        try:
            peer = socket.create_connection(place)
            break
        except OSError:
            time.sleep(0.02)
    assert peer.recv(2)
print("all met", flush=True)
for step in range(int(os.environ.get("STEPS", "3"))):
    print(f"rank {rank} step {step}", flush=True)
    time.sleep(0.1)
if os.environ.get("BAD") == str(rank):
    if "CODE" in os.environ:
        sys.exit(int(os.environ["CODE"]))
    os.kill(os.getpid(), signal.SIGKILL)
if "BAD" in os.environ:
    time.sleep(600)
"""
"""Ranks that meet on the master's port, step, and end as they are told."""

ECHO = """
import json, os, sys
print(json.dumps([sys.argv[1:], {k: v for k, v in os.environ.items() if k.startswith("EVIL")}]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A folder with a job, and the command to run on it."""

    sandbox: Sandbox
    folder: Path
    state: Path
    inventory: Path
    """The sandbox's, with a workdir of this project's own: a sync refuses another's files."""
    workdir: str
    """As the hosts see it; on the folder that they share."""
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def placed(self) -> Path:
        """Where the workdir lies on this machine."""
        return self.sandbox.shared / Path(self.workdir).name

    def settings(self, env: Mapping[str, str] | None) -> dict[str, str]:
        """Return the environment of a command."""
        return {
            "PYTHONPATH": str(ROOT),
            "CLUSTERCTL_STATE": str(self.state),
            "CLUSTERCTL_INVENTORY": str(self.inventory),
            **(env or {}),
        }

    def run(
        self, *words: str, env: Mapping[str, str] | None = None, seconds: float = BUSY
    ) -> subprocess.CompletedProcess[str]:
        """Run `clusterctl` on the controller's side and wait for it."""
        argv = [sys.executable, "-m", "clusterctl", *words]
        return self.sandbox.run(argv, env=self.settings(env), cwd=self.folder, timeout=seconds)

    def start(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        stdout: int | IO[bytes] = subprocess.PIPE,
        stderr: int | IO[bytes] = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start `clusterctl` on the controller's side."""
        # As from a shell, whatever signals the tests themselves were started to ignore.
        argv = ["env", "--default-signal", sys.executable, "-u", "-m", "clusterctl", *words]
        process = subprocess.Popen(
            self.sandbox.command(argv, cwd=self.folder),
            env=self.sandbox.environment() | self.settings(env),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            text=True,
        )
        self.started.append(process)
        return process

    def close(self) -> None:
        """Undo faults, stop every run and leave no command, also after a test that failed."""
        try:
            if self.sandbox.faults():
                self.sandbox.heal()
            following = [process for process in self.started if process.poll() is None]
            if following or self.has_run():
                self.run("stop", "--all", "--grace", "0")
        finally:
            for process in self.started:
                process.kill()
                with process:
                    pass

    def has_run(self) -> bool:
        """Tell whether a run holds a host."""
        backend = self.sandbox.backend
        for host in self.sandbox.hosts:
            with suppress(ClusterError):  # it is off
                pid = backend.init_pid(host.name) if isinstance(backend, Netns) else "self"
                if "@clusterctl-run" in Path(f"/proc/{pid}/net/unix").read_text():
                    return True
        return False

    def launch(
        self, *words: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Launch without torch: `direct` is the quickest launcher."""
        return self.run("launch", "--launcher", "direct", *words, env=env)

    def status(self, run: str | None = None) -> dict[str, Any]:
        """Return `status --json`."""
        answer = self.run("status", "--json", *([run] if run else []))
        document: dict[str, Any] = json.loads(answer.stdout)
        return document

    def wait_for(self, run: str, state: str) -> None:
        """Wait until a run is in a state."""
        if state not in {"running", "stopping"}:
            # One command, not one for each look.
            self.run("logs", "--follow", "--tail", "1", *([run] if run else []))
        until = time.monotonic() + BUSY
        while (found := self.status(run)["state"]) != state:
            assert time.monotonic() < until, f"{run} is {found}, expected {state}"
            time.sleep(0.2)

    def wait_for_text(self, text: str) -> None:
        """Wait until the job has printed a text."""
        follower = self.start("logs", "--follow", "--raw")
        assert follower.stdout is not None
        assert follower.stderr is not None
        assert any(text in line for line in follower.stdout), follower.stderr.read()
        signal_all(follower, signal.SIGKILL)


def lines_of(rank: int, stdout: str) -> list[str]:
    """Return the job's step lines of one rank, as `logs --raw` gives them."""
    return [line for line in stdout.splitlines() if line.startswith(f"rank {rank} step")]


def signal_all(controller: subprocess.Popen[str], number: int) -> None:
    """Send a signal to a command and to what brought it to the controller's side."""
    children = Path(f"/proc/{controller.pid}/task/{controller.pid}/children").read_text()
    for pid in (*map(int, children.split()), controller.pid):
        os.kill(pid, number)


def checkpoint(folder: Path, step: int, run: str) -> Path:
    """Write a checkpoint as the training program does in a run."""
    path = folder / f"step-{step:06d}"
    path.mkdir(parents=True)
    (path / "__0_0.distcp").write_bytes(b"shard of step %d" % step * 100)
    files = {
        file.name: {
            "size": file.stat().st_size,
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        }
        for file in path.iterdir()
    }
    manifest = path / "MANIFEST.json"
    manifest.write_text(json.dumps({"schema": 1, "step": step, "run": run, "files": files}))
    (path / "COMPLETE").write_text(hashlib.sha256(manifest.read_bytes()).hexdigest() + "\n")
    return path
