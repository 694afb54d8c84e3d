"""Lets nodes join a run: the master counts who takes part, and answers `join`.

A node that joins an elastic run gets ranks from the launcher. In a run of a fixed size that
restarts itself it stands by, like a spare node of the launch.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Callable, Dict, List, Optional

from clusterctl.node.event_loop import EventLoop
from clusterctl.node.peer_link.peer import ADMITTED, Peer
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
        self._master = job["master"]["node"]
        self._next = len(job["workers"]) + 1
        """The number that no node has had."""

    @property
    def nodes(self) -> List[str]:
        """All nodes that are or were part of the run, the master first."""
        return [self._master, *self._peers.others]

    @property
    def ranked(self) -> List[str]:
        """Those that do not stand by."""
        return [self._master, *(n for n, peer in self._peers.others.items() if not peer.spare)]

    def enough_without(self, node: str) -> bool:
        """Tell whether the run continues without a node: elastic, with enough nodes left."""
        others = [peer for name, peer in self._peers.others.items() if name != node]
        return 0 < self._least <= 1 + sum(peer.present for peer in others)

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
        others = self._peers.others
        peer = others.get(node) or Peer(self._next, ADMITTED)
        self._next = max(self._next, peer.number + 1)
        self._peers.disconnect(node)  # of its earlier part
        others[node] = peer.admitted(time.monotonic())
        self._on_change()
        self._loop.call_later(JOIN_SECONDS, partial(self._withdraw, node, others[node]))
        connection = {"link_port": self._peers.port, "token": node_token(self._token, node)}
        return {"node_rank": others[node].number, "nodes": self.nodes, **connection}

    def _refusal(self, node: str, *, over: bool) -> Dict[str, Any]:
        """Return why a node cannot join now; nothing if it can."""
        if over:
            return {"refused": "over", "message": "the run is ending"}
        if not self._most:
            message = "the run has a fixed number of nodes and no restarts, so no node can join it"
            return {"refused": "not-elastic", "message": message}
        others = dict(self._peers.others)
        peer = others.pop(node, None)
        silent = self._peers.silences.get(node, 0.0) > self._lost_after  # while its end is known
        if node == self._master or (peer and peer.present and not silent):
            return {"refused": "joined", "message": "the node is part of the run already"}
        count = 1 + sum(one.present or one.phase == ADMITTED for one in others.values())
        if count >= self._most:
            message = "the run is full: it has %d of %d nodes" % (count, self._most)
            return {"refused": "full", "message": message}
        return {}

    def _withdraw(self, node: str, let_in: Optional[Peer] = None) -> None:
        """Expect a node no longer that has not come; `let_in`: nor was let in again since."""
        peer = self._peers.others.get(node)
        if peer is None or peer.phase != ADMITTED or (let_in and peer is not let_in):
            return
        if peer.lost_at is None:  # it was never part of the run
            del self._peers.others[node]
        else:
            self._peers.others[node] = peer.lost(time.monotonic())
        self._on_change()
