"""The link between the supervisors of a run: who lives, who failed, whose clock says what.

Workers keep a connection to the master's supervisor over the data network. A message says at once
what silence would say late; a connection that breaks is made again, and costs nothing unless the
silence lasts. The controller is not involved.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, List, Optional, Sequence, Set

from clusterctl.node.agent.call_channel import OperationError
from clusterctl.node.event_loop import EventLoop
from clusterctl.node.peer_link.messages import PeerEvents, PeerMessage, SilentPeer
from clusterctl.node.peer_link.peer import AWAITED, OVER, Peer
from clusterctl.node.run.files.node_job import NodeJob


class Peers:
    """The supervisors of the other nodes; by itself, of a run on one node, which has no peer.

    Each side of a link overrides what it has to do. What is left as it is here is the other
    side's: a worker hears of no node but the master.
    """

    port = 0
    """Where the master listens."""
    again: Optional[PeerMessage] = None
    """What becomes of the run, as the master said last; only workers hear it."""

    def __init__(self, job: NodeJob, names: Sequence[str]) -> None:
        spares = job.get("spares") or ()
        self.others: Dict[str, Peer] = {
            name: Peer(number, spare=name in spares) for number, name in enumerate(names, 1)
        }
        """What is known of each of them, in the order of their numbers."""

    def change(self, name: str, **facts: Any) -> None:  # noqa: ANN401  (the fields of `Peer`)
        """Note what is new of a node."""
        self.others[name] = self.others[name]._replace(**facts)

    @property
    def missing(self) -> Set[str]:
        """The nodes that the start waits for: a spare is none."""
        return {n for n, peer in self.others.items() if peer.phase == AWAITED and not peer.spare}

    @property
    def acknowledged(self) -> bool:
        """The link has nothing more to send or receive: every node that was there has ended."""
        return all(peer.done for peer in self.others.values() if peer.heard is not None)

    @property
    def all_done(self) -> bool:
        """The run has ended on every node that this one waits for."""
        return all(peer.done for peer in self.others.values())

    @property
    def rest_done(self) -> bool:
        """Every worker that was ever there has ended."""
        return all(peer.done for peer in self.others.values() if peer.came)

    @property
    def others_over(self) -> bool:
        """The run is over on every other node."""
        return self.all_done

    @property
    def all_ready(self) -> bool:
        """Every node that has ranks has told that they may start; the master of those of all."""
        return all(peer.ready or peer.done or peer.spare for peer in self.others.values())

    @property
    def lives(self) -> Dict[str, Optional[PeerMessage]]:
        """What each worker whose part is not over has told of its ranks; None: nothing."""
        return {name: peer.life for name, peer in self.others.items() if not peer.done}

    @property
    def silences(self) -> Dict[str, float]:
        """Seconds since each worker was heard, its part over or not."""
        return {}

    def silent(self) -> List[SilentPeer]:
        """Return the nodes that were there, and neither ended nor were heard lately."""
        return []

    def give_up_on_missing(self) -> None:
        """Expect those no longer that have never been there."""
        for name, peer in self.others.items():
            if peer.phase == AWAITED:
                self.change(name, phase=OVER)

    def disconnect(self, name: str) -> None:
        """Close the connection of a worker; it may come again."""

    def tell_ready(self) -> None:
        """Tell the master that this node's ranks may start."""

    def send_begin(self) -> None:
        """Let every worker start its ranks."""

    def send_ending(self, message: PeerMessage) -> None:
        """Tell all nodes that the run ends, and why."""

    def send_hung(self, judgement: PeerMessage) -> None:
        """Tell every worker that the run is hung, or runs again."""

    def send_slow(self, slow: Dict[str, List[PeerMessage]]) -> None:
        """Tell each worker which of its ranks keep the others waiting."""

    def send_bye(self, state: str, after: Optional[PeerMessage] = None) -> None:
        """Tell the others that the run is over here; `after`: what the master needs to know."""

    def send_again(self, again: PeerMessage) -> None:
        """Tell every worker what becomes of the run after its end."""

    def dismiss(self, again: PeerMessage) -> None:
        """Tell those workers that are left out of the next attempt before the others hear of it."""

    def close(self) -> None:
        """Leave."""


def may_grow(job: NodeJob) -> bool:
    """Tell whether nodes may join the run later."""
    elastic = job.get("elastic")
    return bool(job.get("lineup")) or (elastic is not None and elastic["max_nodes"] > 1)


def connect(loop: EventLoop, job: NodeJob, secrets: Dict[str, str], events: PeerEvents) -> Peers:
    """Return this node's side of the link.

    Raises:
        OSError: the master's address cannot be listened on.
        OperationError: `python`: this Python has no `ssl`.
    """
    if job["nnodes"] == 1 and not job.get("spares") and not may_grow(job):
        alone = Peers(job, job["workers"])  # others of a run whose link cannot be listened on
        alone.give_up_on_missing()
        return alone
    try:  # here, because a run on one node needs no encryption
        from clusterctl.node.peer_link.master import Master  # noqa: PLC0415
        from clusterctl.node.peer_link.worker import Worker  # noqa: PLC0415
    except ImportError as error:
        message = "%s cannot encrypt the supervisors' link: %s" % (sys.executable, error)
        hint = "install a python3 with the ssl module on the node, before this one on PATH"
        raise OperationError("python", message, hint=hint) from error
    if job["node_rank"] == 0:
        return Master(loop, job, secrets, events)
    return Worker(loop, job, secrets, events)
