"""What the nodes have of the paths, as the check `storage.needs` sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from clusterctl.errors import NodeError
from clusterctl.facts.answers import Answers
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.parse_facts import parse_facts, read_arguments
from clusterctl.facts.request import FactRequest, PathQuestion
from clusterctl.transport.interface import Request
from clusterctl.verbs.rpc import Nodes, node_error

LOOK_SECONDS = 300.0
"""Longest a node may take to list its paths; a slow file server has many files to tell of."""


@dataclass(frozen=True, slots=True)
class Look:
    """The facts of the nodes that answered, and why the others did not."""

    facts: dict[str, NodeFacts] = field(default_factory=dict)
    errors: dict[str, NodeError] = field(default_factory=dict)


def look(nodes: Nodes, paths: Mapping[str, Iterable[str]]) -> Look:
    """Ask each node about its paths, and about its network."""
    wanted = {
        name: FactRequest(
            gpus=0,
            listeners=False,
            places=tuple(PathQuestion(path=path, digest=True) for path in dict.fromkeys(own)),
        )
        for name, own in paths.items()
    }
    requests = {}
    for name, each in wanted.items():
        args = read_arguments(each) | {"commands": [], "clock": 0}
        args["paths"] = [{**path, "limit_s": LOOK_SECONDS} for path in args["paths"]]
        requests[name] = Request(op="read", args=args)
    found = Look()
    for reply in nodes.call(requests, timeout=2 * LOOK_SECONDS):
        error = node_error(reply)
        if error is not None:
            found.errors[reply.node] = error
            continue
        try:
            facts = parse_facts(reply.node, Answers.of(reply.last), wanted[reply.node], clock=None)
        except ValueError as wrong:
            found.errors[reply.node] = NodeError("bad-output", "answer", str(wrong))
        else:
            found.facts[reply.node] = facts
    return found
