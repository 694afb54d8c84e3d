"""Run a user's command on all nodes at once."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any, Literal

from clusterctl.errors import NodeError, UsageError
from clusterctl.model.answers import ExecAnswer
from clusterctl.transport.interface import Call, Reply, Request
from clusterctl.values import dataclass
from clusterctl.verbs.events import Emit, Event, Progress
from clusterctl.verbs.rpc import Nodes, node_error, validated_answer
from clusterctl.wire import SCHEMA

OUTPUT_LIMIT = 1 << 20
"""Bytes of a node's output that are kept."""
LIMIT_MARGIN = 30.0
"""Seconds that a node gets beyond the command's own limit."""

FAILED, SILENT = 1, 3

StreamName = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecOptions:
    """How to run it."""

    cwd: str | None = None
    """A folder on the nodes; None: the home."""
    timeout: float | None = None
    """Seconds until it is ended; None: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed(Event):
    """The command printed something on a node."""

    kind = "printed"

    node: str
    stream: StreamName
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeExec:
    """What the command did on one node."""

    node: str
    exit_code: int | None
    """None: the command was not started, or its end is unknown."""
    timed_out: bool = False
    output: tuple[tuple[StreamName, bytes], ...] = ()
    """In the order in which it came."""
    truncated: int = 0
    """Bytes that came after those kept."""
    error: NodeError | None = None
    """Why its end is unknown, or why it did not start."""

    def text(self, *streams: StreamName) -> str:
        """Return what it printed there; bytes that are no text are replaced."""
        data = b"".join(data for stream, data in self.output if not streams or stream in streams)
        return data.decode("utf-8", "replace")

    @property
    def silent(self) -> bool:
        """The node did not answer: what happened there is unknown."""
        return self.error is not None and not self.error.answered

    @property
    def ok(self) -> bool:
        """The command ended with 0."""
        return self.exit_code == 0 and not self.timed_out

    def document(self) -> dict[str, Any]:
        """Return it as JSON shows it."""
        return {
            "node": self.node,
            "exit_code": self.exit_code,
            "timed_out": self.timed_out,
            "stdout": self.text("stdout"),
            "stderr": self.text("stderr"),
            "truncated_bytes": self.truncated,
            "error": self.error.document() if self.error else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What the command did on all nodes, in the inventory's order."""

    command: tuple[str, ...]
    nodes: tuple[NodeExec, ...]

    @property
    def exit_code(self) -> int:
        """0 if it ended with 0 everywhere; 3 if a node did not answer; else 1."""
        if any(node.silent for node in self.nodes):
            return SILENT
        return 0 if all(node.ok for node in self.nodes) else FAILED

    def document(self) -> dict[str, Any]:
        """Return it as JSON shows it."""
        nodes = [node.document() for node in self.nodes]
        return {"schema": SCHEMA, "command": list(self.command), "nodes": nodes}


@dataclass(slots=True)
class _Progress:
    """What is known of one node so far."""

    output: list[tuple[StreamName, bytearray]] = field(default_factory=list)
    kept: int = 0
    dropped: int = 0
    end: ExecAnswer | None = None
    error: NodeError | None = None

    def keep(self, stream: StreamName, data: bytes) -> None:
        kept = data[: OUTPUT_LIMIT - self.kept]
        self.kept += len(kept)
        self.dropped += len(data) - len(kept)
        if self.output and self.output[-1][0] == stream:
            # A tuple for each of many tiny pieces would take more memory than they do.
            self.output[-1][1].extend(kept)
        elif kept:
            self.output.append((stream, bytearray(kept)))


def exec_command(
    nodes: Nodes, command: Sequence[str], options: ExecOptions | None = None, *, emit: Emit
) -> ExecResult:
    """Run a command on every node; a node whose connection breaks ends it there.

    Emits:
        `Progress`, and `Printed` as output comes.
    """
    if not command:
        raise UsageError(
            "no command: expected one after `--`", hint="clusterctl exec -- nvidia-smi -L"
        )
    options = options or ExecOptions()
    names = [node.name for node in nodes.cluster.nodes]
    known = {name: _Progress() for name in names}
    _run(nodes, known, _request(command, options), emit=emit)
    return ExecResult(
        command=tuple(command), nodes=tuple(_finished(name, known[name]) for name in names)
    )


def _request(command: Sequence[str], options: ExecOptions) -> Request:
    args = {"argv": list(command), "cwd": options.cwd, "limit_s": options.timeout}
    timeout = math.inf if options.timeout is None else options.timeout + LIMIT_MARGIN
    return Request(op="exec", args=args, timeout=timeout)


def _run(
    nodes: Nodes,
    known: dict[str, _Progress],
    request: Request,
    *,
    emit: Emit,
) -> None:
    calls: dict[str, Call] = {}
    ended: set[str] = set()
    for reply in nodes.open():
        if reply.node not in known:
            continue
        if reply.ok:
            calls[reply.node] = nodes.start(reply.node, request)
        else:
            known[reply.node].error = reply.error
            ended.add(reply.node)
    for name, item in nodes.follow(calls):
        found = known[name]
        if isinstance(item, Reply):
            found.error = found.error or node_error(item)
            ended.add(name)
            emit(Progress.of_nodes("running", known, ended))
            continue
        stream = item.head.get("stream")
        if stream in {"stdout", "stderr"}:
            found.keep(stream, item.body)
            emit(Printed(node=name, stream=stream, data=item.body))
        elif "error" in item.head:
            found.error = node_error(Reply(node=name, messages=(item,)))
        else:
            end = validated_answer(Reply(node=name, messages=(item,)), ExecAnswer)
            if isinstance(end, NodeError):
                found.error = end
                calls[name].close()  # it may send more of these, without end
            else:
                found.end = end


def _finished(name: str, found: _Progress) -> NodeExec:
    end = found.end if found.error is None else None
    return NodeExec(
        node=name,
        exit_code=end.exit_code if end else None,
        timed_out=found.end is not None and found.end.timed_out,
        output=tuple((stream, bytes(data)) for stream, data in found.output),
        truncated=found.dropped,
        error=found.error,
    )


def equal_outputs(nodes: Iterable[NodeExec]) -> list[tuple[list[str], NodeExec]]:
    """Group the nodes on which the same happened: their names, and one of them."""
    alike: dict[object, tuple[list[str], NodeExec]] = {}
    for node in nodes:
        error = str(node.error) if node.error else ""
        key = (node.exit_code, node.timed_out, node.text("stdout"), node.text("stderr"), error)
        alike.setdefault(key, ([], node))[0].append(node.node)
    return list(alike.values())
