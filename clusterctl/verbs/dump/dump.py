"""Take the stacks of a run's ranks on all its nodes at once; of one that is over, those it kept."""

import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterctl.errors import ClusterError, NodeError, UsageError
from clusterctl.hang.verdict import verdict
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.inventory.select import named
from clusterctl.logs import ranks
from clusterctl.model.answers import DumpAnswer
from clusterctl.model.dump import NodeDump
from clusterctl.model.verdict import Verdict
from clusterctl.own_files import replace_file
from clusterctl.transport.interface import Request
from clusterctl.values import dataclass
from clusterctl.verbs.dump.own_py_spy import OwnPySpy, find_py_spy
from clusterctl.verbs.events import Emit, ignore
from clusterctl.verbs.rpc import Nodes, call_all, joined_later, run_args, validated_answer
from clusterctl.verbs.runs.run_state import LIVE
from clusterctl.wire import SCHEMA, plain

LIMIT_SECONDS = 60.0
"""How long a node may take, with a first copy of py-spy over a slow line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpQuery:
    """Of which ranks, and how much."""

    node: str | None = None
    """Only these nodes: names and ranges."""
    rank: str | int | None = None
    """Only these ranks, such as `0-3,7`."""
    native: bool = False
    """With the frames of C and C++."""
    with_locals: bool = False
    """With the values of local variables."""
    keep: bool = False
    """Keep them on the nodes, too, for when the run is over."""
    steady: bool = False
    """But not on a node where the run ends meanwhile."""
    kept: bool = False
    """Take none: only those that the nodes have kept."""

    def args(self) -> dict[str, Any]:
        """Return the arguments of the operation; raise UsageError if the ranks cannot be read."""
        try:
            only = None if self.rank is None else sorted(ranks.parse_ranks(str(self.rank)))
        except ValueError as error:
            raise UsageError(f"--rank: {error}") from error
        kept = {"keep": self.keep, "steady": self.steady, "kept": self.kept}
        return {"only": only, "native": self.native, "locals": self.with_locals, **kept}


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpResult:
    """The stacks of a run's ranks."""

    run: str
    time: float
    """When they were asked for."""
    dumps: tuple[NodeDump, ...]
    """In launch order; none of a node on which the run is over and kept none."""
    states: Mapping[str, str]
    """Node → state of the run there."""
    notes: Mapping[str, str]
    """Node → what was not as it should be."""
    silent: tuple[NodeError, ...]
    """The nodes that did not answer, and why."""
    whole: bool = True
    """All ranks of the run were asked for."""

    @property
    def verdict(self) -> Verdict | None:
        """Return why the run stands still; None: that takes the stacks of all ranks."""
        if not self.whole or not self.dumps:
            return None
        return verdict(self.judged, self.untold)

    @property
    def judged(self) -> tuple[NodeDump, ...]:
        """What the verdict is made from: while the run lives, no stacks that a node kept."""
        live = tuple(one for one in self.dumps if self.states.get(one.node) in LIVE)
        return live or self.at_timeout or self.dumps

    @property
    def at_timeout(self) -> tuple[NodeDump, ...]:
        """What nodes kept when a rank had waited in vain; the others had no rank left by then."""
        return tuple(one for one in self.dumps if one.timed_out)

    @property
    def untold(self) -> tuple[str, ...]:
        """The nodes of whose ranks nothing is known."""
        silent = tuple(error.node for error in self.silent)
        if any(state in LIVE for state in self.states.values()):
            return silent  # an elastic run continues without the others
        if self.at_timeout:
            return silent
        told = {one.node for one in self.dumps}
        return (*silent, *(name for name in self.states if name not in told))

    def document(self, *, stacks: bool = True) -> dict[str, Any]:
        """Return it as the JSON that `dump --json` prints; `stacks`: with the nodes' stacks."""
        silent = {error.node: str(error) for error in self.silent}
        known = {name: plain(getattr(self, name)) for name in ("run", "time", "states", "notes")}
        judged = {"verdict": plain(self.verdict), "silent": silent}
        nodes = {"nodes": plain(self.dumps)} if stacks else {}
        return {"schema": SCHEMA, **known, **nodes, **judged}


def dump(
    nodes: Nodes,
    run: str,
    cluster: Cluster,
    query: DumpQuery,
    *,
    limit: float = LIMIT_SECONDS,
    emit: Emit,
) -> DumpResult:
    """Ask every node of a run for the stacks of its ranks.

    `limit`: seconds that a node may take for each answer.

    Raises:
        UsageError: the ranks cannot be read, or the run has no such node.
    """
    began, wanted = time.time(), query.args()
    tool = None if query.kept else find_py_spy()
    asked = cluster.nodes if query.node is None else named(cluster, query.node, option="--node")
    answers: dict[str, DumpAnswer] = {}
    errors: list[NodeError] = []
    while asked:
        found, failed = _ask(nodes, run, cluster, asked, wanted, tool, limit, emit)
        answers |= found
        errors += failed
        names = itertools.chain(*(one.nodes for one in found.values()))
        asked = joined_later(cluster, names) if query.node is None else ()
        cluster = cluster.with_nodes((*cluster.nodes, *asked))
    return DumpResult(
        run=run,
        time=began,
        # Whatever a node calls itself.
        dumps=tuple(
            replace(one.dump, run=run, node=name) for name, one in answers.items() if one.dump
        ),
        states={name: one.state for name, one in answers.items()},
        notes={name: one.note for name, one in answers.items() if one.note},
        silent=tuple(errors),
        whole=query.node is None and query.rank is None,
    )


def send_py_spy(nodes: Nodes, run: str, cluster: Cluster, *, limit: float) -> dict[str, str]:
    """Put py-spy on those nodes of a run that lack it; return by node why one has none.

    A node that does not answer is not among them: it lacks more than that.

    `limit`: seconds that a node may take for each answer.
    """
    wanted, tool = {"store": True}, find_py_spy()
    answers, errors = _ask(nodes, run, cluster, cluster.nodes, wanted, tool, limit, ignore)
    notes = {name: answer.note for name, answer in answers.items() if answer.note}
    return notes | {error.node: str(error) for error in errors if error.answered}


def _ask(
    nodes: Nodes,
    run: str,
    cluster: Cluster,
    asked: tuple[Node, ...],
    wanted: Mapping[str, Any],
    tool: OwnPySpy | None,
    limit: float,
    emit: Emit,
) -> tuple[dict[str, DumpAnswer], list[NodeError]]:
    """Ask some nodes, those without py-spy a second time; return the answers, and what failed."""
    args = {
        node.name: {
            **run_args(run, cluster, node),
            **wanted,
            "tool": tool.words if tool else None,
        }
        for node in asked
    }
    answers: dict[str, DumpAnswer] = {}
    errors: list[NodeError] = []
    body = b""
    left = [node.name for node in asked]
    while left:
        requests = {name: Request(op="dump", args=args[name], body=body) for name in left}
        lacking = []
        replies = call_all(nodes, requests, phase="dump", timeout=limit, emit=emit)
        for name in left:
            answer = validated_answer(replies[name], DumpAnswer)
            if isinstance(answer, NodeError):
                errors.append(answer)
            elif answer.needs_tool and tool and not body:
                lacking.append(name)
            else:
                answers[name] = answer
        left = lacking
        if lacking and tool:
            body = tool.packed
    return {node.name: answers[node.name] for node in asked if node.name in answers}, errors


def write_dumps(folder: Path, result: DumpResult) -> None:
    """Write a file for each node; only this user may read it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for dump in result.dumps:
            data = json.dumps(plain(dump), indent=1).encode()
            replace_file(folder / f"{dump.node}.json", data)
    except OSError as error:
        raise ClusterError(f"cannot write to {folder}: {error.strerror}") from error
