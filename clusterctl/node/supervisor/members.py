"""Lets nodes join a run: the master counts who is there, lost or expected, and answers `join`.

A node that joins an elastic run gets ranks from the launcher. In a run of a fixed size that
restarts itself it stands by, like a spare node of the launch.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Set

from clusterctl.node.event_loop import EventLoop, Timer
from clusterctl.node.peer_link.peers import Peers
from clusterctl.node.peer_link.restart_messages import MOST_WITHOUT
from clusterctl.node.peer_link.run_tokens import node_token
from clusterctl.node.run.files.node_job import NodeJob, may_restart

JOIN_SECONDS = 600.0
"""How long a node that was let in may take until its supervisor is there."""


class Members:
    """The nodes of a run; only the master's supervisor lets others in."""

    def __init__(
        self,
        loop: EventLoop,
        job: NodeJob,
        peers: Peers,
        token: str,
        on_change: Callable[[], None],
    ) -> None:
        """Start with the nodes of the attempt."""
        self._loop, self._peers, self._token, self._on_change = loop, peers, token, on_change
        elastic, is_master = job.get("elastic"), job["node_rank"] == 0
        self._lost_after = job["link"]["lost_after"]
        self._least = job.get("min_nodes", 0)
        self._most = elastic["max_nodes"] if elastic and is_master else 0
        if is_master and job.get("lineup") and may_restart(job):
            self._most = len(job["workers"]) + 1 + MOST_WITHOUT
        self._numbers: Dict[str, int] = {job["master"]["node"]: 0}
        for worker in job["workers"]:
            self._numbers[worker] = len(self._numbers)
        self._next = len(self._numbers)
        """The number that no node has had."""
        self._left: Set[str] = set()
        """Nodes that are not there: lost, or not there yet."""
        self._joining: Dict[str, bool] = {}
        """Nodes that were let in and have not come yet; True: they were never part of the run."""
        self._timers: Dict[str, Timer] = {}
        """By node: when it is expected no longer."""

    @property
    def nodes(self) -> List[str]:
        """All nodes that are or were part of the run, the master first."""
        return list(self._numbers)

    def _present(self) -> int:
        return len(self._numbers) - len(self._left)

    def leave(self, node: str) -> bool:
        """Count a node as lost; tell whether an elastic run has enough nodes left."""
        self._joining.pop(node, None)
        self._left.add(node)
        return 0 < self._least <= self._present()

    def has_left(self, node: str) -> bool:
        """Tell whether a node is lost, or not there yet."""
        return node in self._left

    def answer(self, request: Dict[str, Any], *, over: bool) -> Dict[str, Any]:
        """Let a node join, or with `withdraws` expect it no longer; with `asks` only tell.

        Returns:
            `refused` and `message`; or `allowed`; or the number that the node gets, and what its
            supervisor needs to connect, its token among it.
        """
        node = str(request.get("joins"))
        if request.get("withdraws"):
            self._withdraw(node)
            return {}
        refusal = self._refusal(node, over=over)
        if refusal or request.get("asks"):
            return refusal or {"allowed": True}
        if node not in self._joining:
            self._joining[node] = node not in self._numbers
        if node not in self._numbers:
            self._numbers[node] = self._next
            self._next += 1
        self._left.add(node)
        self._peers.expect(node)
        self._on_change()
        self._cancel_timer(node)
        self._timers[node] = self._loop.call_later(JOIN_SECONDS, lambda: self._withdraw(node))
        connection = {"link_port": self._peers.port, "token": node_token(self._token, node)}
        return {"node_rank": self._numbers[node], "nodes": self.nodes, **connection}

    def _refusal(self, node: str, *, over: bool) -> Dict[str, Any]:
        """Return why a node cannot join now; nothing if it can."""
        if over:
            return {"refused": "over", "message": "the run is ending"}
        if not self._most:
            message = "the run has a fixed number of nodes and no restarts, so no node can join it"
            return {"refused": "not-elastic", "message": message}
        silent = self._peers.silences.get(node, 0.0) > self._lost_after  # while its end is known
        if node in self._numbers and node not in self._left and not silent:
            return {"refused": "joined", "message": "the node is part of the run already"}
        count = self._present() + len(self._joining.keys() - {node})
        if count >= self._most:
            message = "the run is full: it has %d of %d nodes" % (count, self._most)
            return {"refused": "full", "message": message}
        return {}

    def arrive(self, node: str) -> None:
        """Count a node as there: its supervisor has come."""
        self._cancel_timer(node)
        if self._joining.pop(node, None) is not None:
            self._left.discard(node)

    def _cancel_timer(self, node: str) -> None:
        timer = self._timers.pop(node, None)
        if timer is not None:
            timer.cancel()

    def _withdraw(self, node: str) -> None:
        """Expect a node no longer that was let in, unless it has come."""
        self._cancel_timer(node)
        new = self._joining.pop(node, None)
        if new:
            del self._numbers[node]
            self._left.discard(node)
        if new is not None:
            self._peers.withdraw(node)
            self._on_change()
