"""The link between the supervisors of a run: who lives, who failed, whose clock says what.

Workers keep a connection to the master's supervisor over the data network. A message says at once
what silence would say late; a connection that breaks is made again, and costs nothing unless the
silence lasts. The controller is not involved.
"""

from __future__ import annotations

import sys
from typing import Dict, FrozenSet, List, Optional

from clusterctl.node.agent.call_channel import OperationError
from clusterctl.node.event_loop import EventLoop
from clusterctl.node.peer_link.messages import PeerEvents, PeerMessage, SilentPeer
from clusterctl.node.run.files.node_job import NodeJob, Seat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

    from clusterctl.node.peer_link.master import Master
    from clusterctl.node.peer_link.worker import Worker

    Peers = Union[Master, Worker, "NoPeers"]


class NoPeers:
    """The link of a run on one node: there are no peers."""

    port = 0
    acknowledged = True
    all_done = True
    rest_done = True
    all_ready = True
    begun = True
    others_over = True
    missing: FrozenSet[str] = frozenset()
    again: Optional[PeerMessage] = None

    def __init__(self) -> None:
        self.afters: Dict[str, PeerMessage] = {}
        self.silences: Dict[str, float] = {}
        self.seats: Dict[str, Seat] = {}

    def give_up_on_missing(self) -> None:
        """There is no peer that could be silent."""

    def silent(self) -> List[SilentPeer]:
        """There is no peer to hear."""
        return []

    def expect(self, name: str) -> None:
        """No node can join without a link."""

    def withdraw(self, name: str) -> None:
        """No node was admitted."""

    def send_ending(self, message: PeerMessage) -> None:
        """There is no peer to tell."""

    @property
    def lives(self) -> Dict[str, Optional[PeerMessage]]:
        """There is no other node."""
        return {}

    def send_hung(self, judgement: PeerMessage) -> None:
        """There is no peer to tell."""

    def send_slow(self, slow: Dict[str, List[PeerMessage]]) -> None:
        """There is no peer to tell."""

    def tell_ready(self) -> None:
        """There is no peer to tell."""

    def send_begin(self) -> None:
        """There is no peer to tell."""

    def send_bye(self, state: str, after: Optional[PeerMessage] = None) -> None:
        """There is no peer to tell."""

    def send_again(self, again: PeerMessage) -> None:
        """There is no peer to tell."""

    def close(self) -> None:
        """There is nothing to leave."""


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
        return NoPeers()
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
