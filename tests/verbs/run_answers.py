"""Values that tests of verbs build on: a cluster of two, its plan, NodeRuns and tail messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Cluster, Job, Node, Ssh, Stop
from clusterctl.model.from_json import from_json
from clusterctl.model.node_run import NodeRun
from clusterctl.plan.plan import NodePlan, Plan
from clusterctl.verbs.events import Event
from clusterctl.wire import Message

T = TypeVar("T")

RUN = "lab-20260101t000000-abcd"

CLUSTER = Cluster(
    name="lab",
    nodes=tuple(Node(host=name, name=name, ssh=Ssh(), gpus=0) for name in ("a", "b")),
    job=Job(command=("-m", "train")),
)


def rank(number: int, **more: Any) -> dict[str, Any]:
    """Return a rank of a NodeRun."""
    return {
        "rank": number,
        "local_rank": 0,
        "pid": 100 + number,
        "state": "running",
        "exit_code": None,
        "signal": None,
        "joined": True,
        **more,
    }


def part(node: str, state: str = "running", **more: Any) -> dict[str, Any]:
    """Return a NodeRun with one rank."""
    number = "ab".index(node)
    end = None
    if state in {"finished", "failed", "stopped"}:
        by = {"finished": "launcher", "failed": "rank", "stopped": "stop"}[state]
        end = {"state": state, "by": by, "exit_code": 0, "reason": ""}
    return {
        "schema": 1,
        "run": RUN,
        "cluster": "lab",
        "node": node,
        "rank0": number,
        "state": state,
        "ranks": [rank(number)],
        "supervisor": {"pid": 1, "alive": end is None, "beat_age_s": 0.1},
        "end": end,
        "began": 1000.0,
        **more,
    }


def node_run(node: str, state: str = "running", **more: Any) -> NodeRun:
    """Return a NodeRun with one rank as the value that it is read as."""
    return read(part(node, state, **more))


def read(part: dict[str, Any]) -> NodeRun:
    """Return the value that a NodeRun is read as."""
    value: NodeRun = from_json(NodeRun, {"run": RUN, "ranks": [], **part}, "node")
    return value


def data(number: int, offset: int, body: bytes, **more: Any) -> Message:
    """Return bytes of a rank's log as `tail` sends them."""
    head = {"data": f"ranks/{number}.log", "rank": number, "offset": offset, **more}
    return Message(head, body)


def happened(offset: int, kind: str, **more: Any) -> Message:
    """Return a line of events.jsonl as `tail` sends it."""
    event = {"time": 1000.0, "kind": kind, **more}
    return Message({"event": event, "file": "events.jsonl", "offset": offset, "next": offset + 50})


def ended(node: str, state: str = "finished", **more: Any) -> Message:
    """Return the last message of a `tail`."""
    return Message({"node": part(node, state, **more)})


def finish(use_case: Callable[..., T], *args: Any, **more: Any) -> tuple[list[Event], T]:
    """Run a use case; return its events and its result."""
    seen: list[Event] = []
    result = use_case(*args, **more, emit=seen.append)
    return seen, result


def drained(
    stream: Callable[..., Iterable[Event]], *args: Any, **more: Any
) -> tuple[list[Event], dict[str, NodeError]]:
    """Read a stream of events to its end; return them, and the nodes that could not be read."""
    errors: dict[str, NodeError] = {}
    return list(stream(*args, **more, errors=errors)), errors


def node_plan(name: str, rank: int) -> NodePlan:
    return NodePlan(
        node=name, host=name, node_rank=rank, address="", interface="", first_rank=rank,
        procs=1, procs_origin="", device="cpu", workdir="~", state="", lock="",
        launcher_argv=(), argv=(), path_first=None, env=(),
    )  # fmt: skip


PLAN = Plan(
    run=RUN, cluster="lab", launcher="direct", world_size=2,
    nodes=(node_plan("a", 0), node_plan("b", 1)),
    master_address="", master_port=1, env_init=None, env_from=(), stop=Stop(),
    start_timeout=60.0, lost_after=15.0, launcher_decides=False, settings=(),
)  # fmt: skip
