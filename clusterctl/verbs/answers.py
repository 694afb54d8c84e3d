"""What a node's reply means: its last answer, the operation's own error, or why there is none."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterctl.transport.interface import Reply, Request
from clusterctl.verbs.events import Progress
from clusterctl.verbs.nodes import Nodes
from clusterctl.verbs.shape import ERROR, NOT_OURS, Shape, wrong

WORDS_LIMIT = 16 * 1024
"""Characters of a node's own words that are passed on."""
ANSWER_SECONDS = 60.0
"""Longest a node may take to look through its runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why an operation did not do what it was asked for on one node."""

    node: str
    kind: str
    """The operation's error kind, or the reply's state where the node did not answer."""
    message: str
    hint: str = ""
    answered: bool
    """The node answered: it is the operation that refused."""
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def advice(self) -> str:
        """The message, and what to do about it."""
        return f"{self.message}; hint: {self.hint}" if self.hint else self.message


def trouble(reply: Reply) -> Trouble | None:
    """Return what went wrong; None: the operation came to its end."""
    if not reply.ok:
        where = f" ({reply.phase})" if reply.phase not in {"", reply.state} else ""
        words = f": {reply.words}" if reply.words else ""
        return Trouble(
            node=reply.node,
            kind=reply.state,
            message=f"{reply.state}{where}{words}",
            hint=reply.hint,
            answered=False,
        )
    error = reply.last.head.get("error") if reply.messages else None
    if not error:
        return None
    strange = wrong(error, ERROR, "its error")
    if strange:
        return not_ours(reply.node, strange)
    return Trouble(
        node=reply.node,
        kind=error["kind"],
        message=error["message"][:WORDS_LIMIT],
        hint=_harmless(error.get("hint") or ""),
        answered=True,
        details=error,
    )


def answer(reply: Reply, shape: Shape) -> Mapping[str, Any] | Trouble:
    """Return what a node's operation found, or why there is nothing of that shape."""
    problem = trouble(reply)
    if problem is not None:
        return problem
    head: Mapping[str, Any] = reply.last.head if reply.messages else {}
    strange = wrong(head, shape)
    return not_ours(reply.node, strange) if strange else head


def not_ours(node: str, strange: str) -> Trouble:
    """Return the trouble with a node whose answer is none that its operation gives."""
    message = f"{NOT_OURS}: {strange}"
    return Trouble(node=node, kind="bad-output", message=message, answered=True)


def _harmless(hint: str) -> str:
    """Return a node's hint; nothing if a shell it is typed into would run more than one command."""
    safe = re.sub(r"('[^']*')|;", lambda found: found[1] or ",", hint)
    unquoted = re.sub(r"'[^']*'|`[a-z_]+:`", "", safe)
    return "" if len(hint) > WORDS_LIMIT or re.search(r"[&|<>$`\"\\\n\r]", unquoted) else safe


def ask(
    nodes: Nodes,
    requests: Mapping[str, Request],
    *,
    phase: str,
    timeout: float = ANSWER_SECONDS,
) -> Generator[Progress, None, dict[str, Reply]]:
    """Run one operation on each of some nodes, and say how far it is.

    Args:
        nodes: among which they are.
        requests: by node.
        phase: what is done, as the person reads it.
        timeout: seconds for each of them.

    Returns:
        Each one's reply.
    """
    replies: dict[str, Reply] = {}
    for reply in nodes.call(requests, timeout=timeout) if requests else ():
        replies[reply.node] = reply
        yield Progress(
            phase=phase,
            done=len(replies),
            total=len(requests),
            waiting_for=tuple(name for name in requests if name not in replies),
        )
    return replies
