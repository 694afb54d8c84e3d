"""The facts of some paths on each node, and of its network; no program runs there for them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from clusterctl.errors import NodeError
from clusterctl.facts.answers import Answers
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.parse_facts import parse_facts, read_arguments
from clusterctl.facts.request import FactRequest, PathQuestion
from clusterctl.transport.interface import Request
from clusterctl.verbs.rpc import Nodes, node_error

ANSWER_SECONDS = 180.0
"""Longest a node may take, as for its facts; if a path may take `limit_s`, twice that."""


@dataclass(frozen=True, slots=True)
class Look:
    """The facts of the nodes that answered, and why the others did not."""

    facts: dict[str, NodeFacts] = field(default_factory=dict)
    errors: dict[str, NodeError] = field(default_factory=dict)


def look(nodes: Nodes, paths: Mapping[str, Iterable[str]], *, limit_s: float | None = None) -> Look:
    """Ask nodes about their paths.

    Args:
        paths: of each node; what they have is compared by digests.
        limit_s: longest that one path may take; None: as long as for a check.
    """
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
        if limit_s is not None:
            args["paths"] = [{**path, "limit_s": limit_s} for path in args["paths"]]
        requests[name] = Request(op="read", args=args, stay=True)
    found = Look()
    timeout = ANSWER_SECONDS if limit_s is None else 2 * limit_s
    for reply in nodes.call(requests, timeout=timeout):
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
