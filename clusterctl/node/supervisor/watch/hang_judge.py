"""Judges by the clock whether the run is hung, or waits for some ranks, from all nodes' words.

What is known of this node's own ranks is `HangWatch`'s.
"""

from __future__ import annotations

from functools import partial
from typing import Callable

from clusterctl.node.event_loop import EventLoop
from clusterctl.node.peer_link.messages import PeerMessage
from clusterctl.node.peer_link.peers import Peers
from clusterctl.node.supervisor.shutdown import Cause
from clusterctl.node.supervisor.watch.hang_watch import HangWatch

JUDGE_SECONDS = 1.0
HUNG_GRACE = 5.0
"""Between the verdict that a run is hung and its end: the nodes keep the stacks of their ranks."""


class HangJudge:
    """Tells all nodes that the run is hung, slow, or runs again; ends it if its job wants that."""

    def __init__(
        self,
        loop: EventLoop,
        node: str,
        watch: HangWatch,
        peers: Peers,
        life: Callable[[], PeerMessage],
        is_ending: Callable[[], bool],
        end: Callable[[Cause], None],
    ) -> None:
        """Judge nothing yet."""
        self._loop, self._node, self._watch, self._peers = loop, node, watch, peers
        self._life, self._is_ending, self._end = life, is_ending, end

    def start(self) -> None:
        """Judge from now on."""
        self._loop.call_every(JUDGE_SECONDS, self._judge)

    def _judge(self) -> None:
        if self._is_ending():
            return
        told = {self._node: self._life(), **self._peers.lives}
        slow = self._watch.judge_slow(told)
        self._peers.send_slow(slow)
        self._watch.slow.take(slow.get(self._node, []))
        judgement = self._watch.judge(told)
        if judgement is None:
            return
        self._peers.send_hung(judgement)
        self._watch.take(judgement)
        if judgement["hung"] and self._watch.stops:
            self._loop.call_later(HUNG_GRACE, partial(self._end_hung, judgement["quiet_s"]))

    def _end_hung(self, quiet: float) -> None:
        if self._watch.hung and not self._is_ending():
            reason = "no rank has shown a sign of life for %.0f s" % quiet
            self._end(Cause(by="hang", reason=reason, node=self._node))
