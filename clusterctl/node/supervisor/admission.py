"""Lets nodes join an elastic run: the master's answers to the question `join`."""

from __future__ import annotations

from typing import Any, Callable, Dict

from clusterctl.node.event_loop import EventLoop
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

    def answer(self, request: Dict[str, Any], *, ending: bool) -> Dict[str, Any]:
        """Let a node join, or with `withdraws` expect it no longer; with `asks` only tell.

        Returns:
            `refused` and `message`; or `allowed`; or the number that the node gets, and what its
            supervisor needs to connect, the run's token among it.
        """
        node = str(request.get("node"))
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
        self._loop.call_later(JOIN_SECONDS, lambda: self._withdraw(node))
        connection = {"link_port": self._peers.port, "token": self._token}
        return {"node_rank": number, "nodes": self._members.nodes, **connection}

    def _withdraw(self, node: str) -> None:
        if self._members.withdraw(node):
            self._peers.withdraw(node)
            self._on_change()
