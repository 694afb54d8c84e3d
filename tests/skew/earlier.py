"""A version of clusterctl from the past: its agent, a run that it started, and that run's record.

`versions/NAME.tar.xz` has, as `make_fixture.py` put it there:

    clusterctl/      the agent's sources
    requests.json    what its controller sent to start the run, by node
    record.json      what its controller recorded of the run
    nodes/           the run's folder on each node once the run had been stopped, without agent.py
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from clusterctl.sandbox.sandbox import Sandbox
from clusterctl.wire import Message, read_message

VERSIONS = Path(__file__).parent / "versions"
CLUSTER, NODES = "skew", ("node1", "node2")
WORKDIR = "/var/tmp/skew"
STATE = f"/var/tmp/clusterctl-0/{CLUSTER}"
JOB = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("saved")))
print("up", os.environ["RANK"], *sys.argv[1:], flush=True)
time.sleep(600)
"""
COMMAND = ("python3", "-c", JOB)
MARKER = b"skew\n"

_SERVE = f"""
import sys
sys.argv[:] = [sys.argv[1], "clusterctl.node.agent.main:serve", {MARKER!r}]
exec(compile(open(sys.argv[0], "rb").read(), sys.argv[0], "exec"))
"""
"""Runs an agent for one request, as a controller does over SSH."""
_PACK = """
import sys
sys.path.insert(0, sys.argv[1])
from clusterctl.node.agent import loader
sys.stdout.buffer.write(loader.program())
"""


def inventory(sandbox: Sandbox) -> str:
    """Return the inventory of the runs; nothing in it differs from machine to machine but keys."""
    identity = yaml.safe_load(sandbox.inventory.read_text())["ssh"]["identity"]
    job = {"command": list(COMMAND), "launcher": "direct", "checkpoints": "out"}
    document = {
        "cluster": CLUSTER,
        "ssh": {"user": "root", "identity": identity},
        "defaults": {"gpus": 0},
        "workdir": WORKDIR,
        "nodes": list(NODES),
        "job": {**job, "resume_args": ["{checkpoint}"]},
    }
    return yaml.safe_dump(document, sort_keys=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """An earlier version, unpacked."""

    folder: Path

    @classmethod
    def unpack(cls, version: str, folder: Path) -> Earlier:
        """Unpack a version of `versions/`."""
        with tarfile.open(VERSIONS / f"{version}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        return cls(folder=folder)

    @property
    def run(self) -> str:
        """The id of its run."""
        (node,) = (self.folder / "nodes" / NODES[0]).iterdir()
        return node.name

    def agent(self) -> bytes:
        """Return the agent as a run's folder keeps it."""
        argv = [sys.executable, "-I", "-S", "-c", _PACK, str(self.folder)]
        return subprocess.run(argv, check=True, capture_output=True).stdout

    def record(self, state: Path) -> None:
        """Put the record into a controller's state folder."""
        place = state / CLUSTER / self.run
        place.mkdir(0o700, parents=True)
        for path in (state, place.parent):
            path.chmod(0o700)
        shutil.copy(self.folder / "record.json", place)

    def place(self, sandbox: Sandbox) -> None:
        """Put the folders of the run, which is over, on the nodes."""
        agent = self.agent()
        for node in NODES:
            place = f"{STATE}/{self.run}/{node}"
            with io.BytesIO() as packed:
                with tarfile.open(fileobj=packed, mode="w") as archive:
                    archive.add(self.folder / "nodes" / node / self.run, ".")
                unpack = f"umask 77; mkdir -p {place}; tar -xC {place} --no-same-permissions"
                on_node(sandbox, node, ["sh", "-c", unpack], packed.getvalue())
            write = f"umask 77; cat > {place}/agent.py"
            on_node(sandbox, node, ["sh", "-c", write], agent)

    def start(self, sandbox: Sandbox) -> None:
        """Let its agent start the run on the nodes, as its controller did."""
        requests = json.loads((self.folder / "requests.json").read_text())
        port = 0
        for node in NODES:
            head = requests[node]["head"]
            if port:  # where the master's supervisor listens this time
                head["args"]["job"]["link"]["port"] = port
            answer = self.ask(sandbox, node, Message(head, requests[node]["body"].encode()))
            assert "error" not in answer[-1].head, answer
            port = port or answer[-1].head["link_port"]

    def ask(self, sandbox: Sandbox, node: str, request: Message) -> list[Message]:
        """Let its agent answer a request on a node, as if its own controller had sent it."""
        place = f"/tmp/agent-{self.run}.py"
        on_node(sandbox, node, ["sh", "-c", f"cat > {place}"], self.agent())
        argv = ["python3", "-X", "utf8", "-I", "-S", "-c", _SERVE, place]
        output = on_node(sandbox, node, argv, request.encode())
        assert output.startswith(MARKER), output
        stream = io.BytesIO(output[len(MARKER) :])
        messages = iter(lambda: read_message(stream), None)
        return [message for message in messages if "beat" not in message.head]

    def ask_about(
        self, sandbox: Sandbox, node: str, op: str, run: str, **args: Any
    ) -> Mapping[str, Any]:
        """Let its agent answer about a run; return the head of the last answer."""
        where = {"cluster": CLUSTER, "node": node, "run": run, **args}
        return self.ask(sandbox, node, Message({"op": op, "args": where}))[-1].head


def on_node(sandbox: Sandbox, node: str, argv: list[str], data: bytes = b"") -> bytes:
    """Run a command on a node; return what it prints."""
    argv = sandbox.backend.on(sandbox.host(node), argv)
    done = subprocess.run(argv, input=data, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout
