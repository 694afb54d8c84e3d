"""Real runs on this machine: real agents, supervisors, ranks; nodes are loopback addresses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.facts.gpu.accelerators import Gpus
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.software.python import Python
from clusterctl.inventory.cluster import Cluster, Job, LauncherName, Node, Ssh, Stop
from clusterctl.network.choice import Network, NodeNetwork
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.operations.status import find_run, node_status
from clusterctl.node.run.processes import processes
from clusterctl.node.run.processes.processes import run_environment
from clusterctl.plan.certificate import make_identity
from clusterctl.plan.effective import effective
from clusterctl.plan.make import make_plan
from clusterctl.plan.node_job import node_job, node_secrets
from clusterctl.plan.options import Options
from clusterctl.sandbox.loopback import free_port
from clusterctl.transport.connection import LocalConnection
from clusterctl.transport.interface import Request, Timeouts
from clusterctl.wire import Message
from tests.waiting import BUSY, wait_until

Head = dict[str, Any]


class Run:
    """One run over some loopback nodes, driven as a controller drives it."""

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        *,
        nodes: int = 1,
        procs: int | tuple[int, ...] = 1,
        launcher: LauncherName = "direct",
        job: Job | None = None,
        lost_after: float = 15.0,
        start_timeout: float = BUSY,
        state: Path | None = None,
        spares: int | None = None,
    ) -> None:
        self.folder = folder
        self.workdir = folder / "work"
        self.workdir.mkdir(exist_ok=True)
        self.cluster = Cluster(
            name="test",
            same_machine=True,
            job=job or Job(stop=Stop(grace=5)),
            nodes=tuple(
                Node(
                    ssh=Ssh(),
                    host=f"127.0.0.{n + 1}",
                    name=f"n{n}-{uuid.uuid4().hex[:8]}",
                    gpus=0,
                    procs=procs if isinstance(procs, int) else procs[n],
                    python=sys.executable,
                    workdir=str(self.workdir),
                    state=str(state or folder / "state"),
                )
                for n in range(nodes)
            ),
        )
        self.names = [node.name for node in self.cluster.nodes]
        python = Python(asked="", found=True, executable=sys.executable)
        options = Options(
            launcher=launcher,
            command=tuple(command),
            lost_after=lost_after,
            start_timeout=start_timeout,
            spares=spares,
        )
        wanted = effective(self.cluster, options)
        self.job = wanted.job
        self.plan = make_plan(
            wanted,
            {n: NodeFacts(node=n, uid=os.getuid(), gpus=Gpus(), python=python) for n in self.names},
            _network(self.cluster),
            run=f"test-{uuid.uuid4().hex[:12]}",
        )
        self.identity = make_identity(self.plan.run)
        self.secrets: dict[str, str] = {}
        self.webhooks: dict[str, str] = {}
        """The URLs of `job.notify`, by the names of their variables."""
        self.link_port = 0
        self.change: Head = {}
        """What to change of the job that is sent."""

    def paths(self, n: int = 0) -> NodePaths:
        return NodePaths(self.plan.node(self.names[n]).state)

    def call(self, n: int, op: str, args: Head, body: bytes = b"") -> list[Message]:
        """Run an operation of the agent on a node and return all its answers."""
        connection = LocalConnection(self.cluster.nodes[n], timeouts=Timeouts())
        call = connection.call(Request(op=op, args=args, body=body), timeout=60)
        try:
            messages = list(call.messages())
            reply = call.reply()
            assert reply.ok, reply.error
            return messages
        finally:
            call.close()

    def where(self, n: int = 0) -> Head:
        name = self.names[n]
        state = self.cluster.nodes[n].state
        return {"cluster": "test", "run": self.plan.run, "node": name, "state": state}

    def start_request(self, n: int) -> tuple[Head, bytes]:
        """Return the arguments and the body of `start`."""
        plan = self.plan.node(self.names[n])
        state = self.cluster.nodes[n].state
        job = node_job(
            self.plan, plan, self.identity, job=self.job, state=state, link_port=self.link_port
        )
        plan_ = replace(self.plan, env_from=tuple(self.secrets))
        environment = {**self.secrets, **self.webhooks}
        body = node_secrets(plan_, plan, self.identity, environment, tuple(self.webhooks))
        return {"job": {**job, **self.change}}, body

    def start_node(self, n: int, **args: object) -> Head:
        own, body = self.start_request(n)
        return self.call(n, "start", {**own, **args}, body)[-1].head

    def start(self) -> Run:
        """Start all nodes, the master first."""
        for n in range(len(self.names)):
            head = self.start_node(n)
            assert "error" not in head, head
            self.link_port = self.link_port or head["link_port"]
        return self

    def status(self, n: int = 0) -> Head:
        """Return what `status` says of the run itself, without an agent."""
        node: Head = json.loads(json.dumps(node_status(find_run(self.where(n)))))
        return node

    def asked_status(self, n: int = 0) -> Head:
        """Return the answer of an agent."""
        node: Head = self.call(n, "status", self.where(n))[-1].head["node"]
        return node

    def stop(self, n: int = 0, **order: object) -> Head:
        return self.call(n, "stop", {**self.where(n), **order})[-1].head

    def tail(
        self, n: int = 0, *, since: Mapping[str, int] | None = None, **args: object
    ) -> list[Message]:
        return self.call(n, "tail", {**self.where(n), "from": dict(since or {}), **args})

    def ended(self, n: int = 0) -> Head:
        """Follow a node until the run is over there, and return its status then."""
        node: Head = self.tail(n, follow=True)[-1].head["node"]
        return node

    def events(self, n: int = 0) -> list[Head]:
        path = Path(self.paths(n).events)
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def log(self, rank: int, n: int = 0) -> bytes:
        return Path(self.paths(n).folder, f"ranks/{rank}.log").read_bytes()

    def wait_for_log(self, rank: int, text: bytes, n: int = 0, seconds: float = BUSY) -> None:
        path = Path(self.paths(n).folder, f"ranks/{rank}.log")
        wait_until(lambda: path.exists() and text in path.read_bytes(), seconds)

    def delete_folder(self, n: int = 0) -> None:
        """Delete the run's folder, whatever is written into it meanwhile."""

        def is_gone() -> bool:
            shutil.rmtree(self.paths(n).folder, ignore_errors=True)
            return not Path(self.paths(n).folder).exists()

        wait_until(is_gone)

    def pid_of_supervisor(self, n: int = 0) -> int:
        pid: int = self.status(n)["supervisor"]["pid"]
        return pid

    def pid_of_guard(self, n: int = 0) -> int:
        account = json.loads(Path(self.paths(n).supervisor).read_text())
        pid: int = account["guard"][0]
        return pid

    def kill_supervisor_and_guard(self, n: int = 0) -> None:
        """Kill both at once, so that nobody is left to end the job or to write its end."""
        os.killpg(os.getpgid(self.pid_of_supervisor(n)), signal.SIGKILL)

    def left(self) -> list[processes.Process]:
        """Return what still lives of the run on any of its nodes, supervisors on their way out."""
        until = time.monotonic() + 2
        while (living := self._living()) and time.monotonic() < until:
            time.sleep(0.02)
        return living

    def _living(self) -> list[processes.Process]:
        table = processes.process_table()
        found = [
            processes.with_environment(run_environment(self.plan.run, name), table)
            for name in self.names
        ]
        return [table[pid] for pid in set().union(*found)]

    def end(self) -> None:
        """Leave nothing behind, whatever the test did."""
        for n in range(len(self.names)) if self._living() else ():
            self.stop(n, grace=0)
        for process in self._living():
            os.kill(process.pid, signal.SIGKILL)


def _network(cluster: Cluster) -> Network:
    def chosen(node: Node) -> NodeNetwork:
        return NodeNetwork(
            address=node.host, interface="lo", subnet="127.0.0.0/8", speed_mbps=None,
            candidates=(), why="a test",
        )  # fmt: skip

    return Network(
        kind="one machine",
        nodes={node.name: chosen(node) for node in cluster.nodes},
        master_address=cluster.master.host,
        master_port=free_port(),
        master_port_why="a test",
    )


def save(run: Run, step: int) -> Path:
    """Write a complete checkpoint, as the ranks of the run would."""
    folder = run.workdir / "ckpt" / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    head = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    data = len(head).to_bytes(8, "little") + head + b"\0" * 4
    (folder / "model.safetensors").write_bytes(data)
    (folder / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
    return folder


@pytest.fixture
def ipv6() -> str:
    """Return this machine's IPv6 loopback address."""
    try:
        free_port("::1")
    except OSError:
        pytest.skip("this machine has no IPv6")
    return "::1"


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of what the agents of earlier tests compiled."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def make_run(tmp_path: Path, compiled: Path) -> Iterator[Callable[..., Run]]:
    """Make runs whose ranks are Python text; every one is ended after the test."""
    runs: list[Run] = []

    def make(text: str, *args: str, **options: Any) -> Run:
        folder = tmp_path / str(len(runs))
        folder.mkdir()
        (folder / "state").mkdir(mode=0o700)
        shutil.copytree(compiled, folder / "state/.compiled", copy_function=os.link)
        runs.append(Run(folder, [sys.executable, "-u", "-c", text, *args], **options))
        return runs[-1]

    yield make
    for run in runs:
        run.end()
        for file in (run.folder / "state/.compiled").glob("*"):
            if not (compiled / file.name).exists():
                os.link(file, compiled / file.name)


def environment_of(pid: int) -> Mapping[bytes, bytes]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)
