"""Lets nodes join an elastic run: the master's answers to the question `join`."""

from __future__ import annotations

from typing import Any, Callable, Dict

from clusterctl.node.event_loop import EventLoop, Timer
from clusterctl.node.peer_link.run_tokens import node_token
from clusterctl.node.supervisor.members import Members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterctl.node.peer_link.peer_link import Peers

JOIN_SECONDS = 600.0
"""How long a node that was let in may take until its supervisor is there."""


class Admission:
    """Lets nodes join, and expects those no longer that do not come."""

    def __init__(
        self,
        loop: EventLoop,
        members: Members,
        peers: Peers,
        token: str,
        on_change: Callable[[], None],
    ) -> None:
        self._loop, self._members, self._peers = loop, members, peers
        self._token, self._on_change = token, on_change
        self._timers: Dict[str, Timer] = {}
        """By node: when it is expected no longer."""

    def answer(self, request: Dict[str, Any], *, ending: bool) -> Dict[str, Any]:
        """Let a node join, or with `withdraws` expect it no longer; with `asks` only tell.

        Returns:
            `refused` and `message`; or `allowed`; or the number that the node gets, and what its
            supervisor needs to connect, its token among it.
        """
        node = str(request.get("joins"))
        if request.get("withdraws"):
            self._withdraw(node)
            return {}
        if ending:
            return {"refused": "over", "message": "the run is ending"}
        for refusal in self._members.refusal(node):
            return {"refused": refusal.kind, "message": refusal.message}
        if request.get("asks"):
            return {"allowed": True}
        number = self._members.admit(node)
        self._peers.expect(node)
        self._on_change()
        self._cancel_timer(node)
        self._timers[node] = self._loop.call_later(JOIN_SECONDS, lambda: self._withdraw(node))
        connection = {"link_port": self._peers.port, "token": node_token(self._token, node)}
        return {"node_rank": number, "nodes": self._members.nodes, **connection}

    def arrive(self, node: str) -> None:
        """Count a node as there: its supervisor has come."""
        self._cancel_timer(node)
        self._members.arrive(node)

    def _cancel_timer(self, node: str) -> None:
        timer = self._timers.pop(node, None)
        if timer is not None:
            timer.cancel()

    def _withdraw(self, node: str) -> None:
        self._cancel_timer(node)
        if self._members.withdraw(node):
            self._peers.withdraw(node)
            self._on_change()
