"""Make the same virtual environment on every node, at the path of the inventory's `python:`."""

import hashlib
import json
import posixpath
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from clusterctl.checks.storage.run_paths import share_of
from clusterctl.errors import NodeError, UsageError
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.model.answers import PlatformAnswer, VenvAnswer
from clusterctl.transport.interface import Call, Reply, Request
from clusterctl.values import dataclass
from clusterctl.verbs.events import Emit, Event, Progress
from clusterctl.verbs.rpc import Nodes, bad_output, call_all, validated_answer
from clusterctl.verbs.setup.requirements import Requirements, download, platforms
from clusterctl.wire import SCHEMA, Message

CHUNK = 1 << 20
FAILED, SILENT = 1, 3

NodeState = Literal["created", "updated", "unchanged", "shared", "failed", "unreachable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupOptions:
    """How to make it."""

    base: str | None = None
    """The interpreter on the nodes to make it with; None: python3."""
    offline: bool = False
    """Send the wheels from this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doing(Event):
    """What a node's installer prints."""

    kind = "doing"

    node: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSetup:
    """What came of it on one node."""

    node: str
    state: NodeState
    venv: str
    version: str = ""
    """Of its Python."""
    packages: Mapping[str, str] = field(default_factory=dict)
    error: NodeError | None = None

    @property
    def ok(self) -> bool:
        """The environment is there."""
        return self.state not in {"failed", "unreachable"}

    def document(self) -> dict[str, Any]:
        """Return it as JSON shows it."""
        return {
            "node": self.node,
            "state": self.state,
            "venv": self.venv,
            "version": self.version,
            "packages": dict(sorted(self.packages.items())),
            "error": self.error.document() if self.error else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupResult:
    """What came of it on all nodes, in the inventory's order."""

    source: str
    nodes: tuple[NodeSetup, ...]

    @property
    def differences(self) -> dict[str, dict[str, str]]:
        """The packages, and `Python`, that nodes have in different versions: by node."""
        made = [node for node in self.nodes if node.packages]
        names = sorted({name for node in made for name in node.packages})
        found = {
            name: {node.node: node.packages.get(name, "none") for node in made} for name in names
        }
        found["Python"] = {node.node: node.version for node in made}
        return {name: known for name, known in found.items() if len(set(known.values())) > 1}

    @property
    def exit_code(self) -> int:
        """0 if all have it alike; 3 if a node did not answer; else 1."""
        if any(node.state == "failed" for node in self.nodes) or self.differences:
            return FAILED
        return 0 if all(node.ok for node in self.nodes) else SILENT

    def document(self) -> dict[str, Any]:
        """Return it as JSON shows it."""
        nodes = [node.document() for node in self.nodes]
        differences = self.differences
        return {
            "schema": SCHEMA,
            "requirements": self.source,
            "nodes": nodes,
            "differences": differences,
        }


def setup(
    nodes: Nodes, requirements: Requirements, options: SetupOptions, *, emit: Emit
) -> SetupResult:
    """Make the environment on every node, once for each path that they share; compare them.

    Emits:
        `Progress`, and `Doing` with what the installers print.

    Raises:
        UsageError: the inventory does not say where it is to be.
        ClusterError: a wheel cannot be downloaded.
    """
    cluster = nodes.cluster
    venvs = {node.name: venv_of(node) for node in cluster.nodes}
    makers = _makers(cluster, venvs)
    names = set(makers.values())
    found: dict[str, Reply] = {}
    with tempfile.TemporaryDirectory(prefix="clusterctl-wheels-") as folder:
        wheels: dict[str, tuple[Path, ...]] = {}
        if options.offline:
            place = Path(folder)
            wheels = _download(nodes, names, requirements, options.base, place, found, emit=emit)
            names -= found.keys()
        _make(nodes, names, venvs, requirements, options, wheels, found, emit=emit)
    return SetupResult(
        source=str(requirements.source),
        nodes=tuple(
            _outcome(node.name, makers[node.name], venvs[node.name], found.get(makers[node.name]))
            for node in cluster.nodes
        ),
    )


def venv_of(node: Node) -> str:
    """Return the folder of the environment whose interpreter `python:` names."""
    folder, name = posixpath.split(node.python or "")
    if posixpath.basename(folder) != "bin" or not name.startswith("python"):
        example = posixpath.join(node.workdir or "/workspace/project", ".venv/bin/python")
        raise UsageError(
            f"{node.name}: expected `python:` to be PATH/bin/python, where the environment is to"
            f" be, found {node.python or 'none'}",
            hint=f"write `defaults: {{python: {example}}}` into the inventory",
        )
    return posixpath.dirname(folder)


def _makers(cluster: Cluster, venvs: Mapping[str, str]) -> dict[str, str]:
    """Return the node that makes each node's environment: the first of those that share it."""
    first: dict[tuple[str, str], str] = {}
    makers = {}
    for node in cluster.nodes:
        venv = venvs[node.name]
        owner = share_of(cluster, venv) or node.name
        makers[node.name] = first.setdefault((owner, venv), node.name)
    return makers


def _download(
    nodes: Nodes,
    names: set[str],
    requirements: Requirements,
    base: str | None,
    folder: Path,
    failed: dict[str, Reply],
    *,
    emit: Emit,
) -> dict[str, tuple[Path, ...]]:
    """Download wheels, once for each kind of node; the nodes that did not tell are in `failed`."""
    requests = {name: Request(op="platform", args={"base": base}) for name in names}
    replies = call_all(nodes, requests, phase="asking for the platform", emit=emit)
    emit(Progress.of_nodes("downloading wheels", names, ()))
    done: dict[tuple[str, ...], tuple[Path, ...]] = {}
    found = {}
    for name, reply in sorted(replies.items()):
        answer = validated_answer(reply, PlatformAnswer)
        if isinstance(answer, NodeError):
            failed[name] = reply
            continue
        kind = (answer.python, answer.arch, answer.glibc)
        if kind not in done:
            place = folder / str(len(done))
            place.mkdir()
            done[kind] = download(requirements, kind[0], platforms(kind[1], kind[2]), place)
        found[name] = done[kind]
    return found


def _make(
    nodes: Nodes,
    names: set[str],
    venvs: Mapping[str, str],
    requirements: Requirements,
    options: SetupOptions,
    wheels: Mapping[str, tuple[Path, ...]],
    found: dict[str, Reply],
    *,
    emit: Emit,
) -> None:
    calls: dict[str, Call] = {}
    for reply in nodes.open():
        if reply.node in names and reply.ok:
            request = _request(venvs[reply.node], requirements, options, wheels.get(reply.node, ()))
            calls[reply.node] = nodes.start(reply.node, request)
        elif reply.node in names:
            found[reply.node] = reply
    emit(Progress.of_nodes("installing", names, found))
    last: dict[str, Message] = {}
    unsent = set(calls)
    for name, item in nodes.follow(calls):
        if isinstance(item, Reply):
            messages = (last[name],) if name in last else ()
            found[name] = Reply(node=name, error=item.error, messages=messages)
            emit(Progress.of_nodes("installing", names, found))
        elif "doing" in item.head:
            emit(Doing(node=name, text=str(item.head["doing"])))
        elif "wants" in item.head and name in unsent:  # a node gets them once
            unsent.remove(name)
            # In parallel with the others' answers: what a node prints must not wait for another's
            # wheels.
            send = (calls[name], wheels.get(name, ()))
            threading.Thread(target=_send_wheels, args=send, daemon=True).start()
        else:
            last[name] = item


def _send_wheels(call: Call, wheels: tuple[Path, ...]) -> None:
    try:
        for wheel in wheels:
            with wheel.open("rb") as file:
                while data := file.read(CHUNK):
                    call.send(Message({}, data))
    except (OSError, NodeError):
        return  # the call's reply says why


def _request(
    venv: str, requirements: Requirements, options: SetupOptions, wheels: tuple[Path, ...]
) -> Request:
    content = json.dumps([requirements.text, options.base]).encode()
    return Request(
        op="make-venv",
        args={
            "venv": venv,
            "base": options.base,
            "digest": hashlib.sha256(content).hexdigest(),
            "wheels": [{"name": wheel.name, "size": wheel.stat().st_size} for wheel in wheels],
        },
        body=requirements.text.encode(),
    )


def _outcome(name: str, maker: str, venv: str, reply: Reply | None) -> NodeSetup:
    answer = bad_output(name, "no answer") if reply is None else validated_answer(reply, VenvAnswer)
    if isinstance(answer, NodeError):
        state: NodeState = "failed" if answer.answered else "unreachable"
        return NodeSetup(node=name, state=state, venv=venv, error=answer)
    return NodeSetup(
        node=name,
        state=answer.state if name == maker else "shared",
        venv=venv,
        version=answer.version,
        packages=answer.packages,
    )
