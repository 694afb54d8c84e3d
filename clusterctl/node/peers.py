"""The link between the supervisors of a run: who lives, who ended badly, whose clock says what.

Workers keep a connection to the master's supervisor over the data network. A message says at once
what silence would say late; a connection that breaks is made again, and costs nothing unless the
silence lasts. The controller takes no part.
"""

from __future__ import annotations

from typing import Any, Dict, Set, Union

from clusterctl.node.master import Master
from clusterctl.node.peertalk import Message, Said
from clusterctl.node.reactor import Reactor
from clusterctl.node.worker import Worker


class Alone:
    """The link of a run on one node: nobody to hear, nobody to tell."""

    port = 0
    settled = True
    all_over = True

    def __init__(self) -> None:
        self.missing: Set[str] = set()

    def give_up_on_missing(self) -> None:
        """There is nobody to miss."""

    def tell_ending(self, message: Message) -> None:
        """There is nobody to tell."""

    def tell_bye(self, state: str) -> None:
        """There is nobody to tell."""

    def close(self) -> None:
        """There is nothing to leave."""


Peers = Union[Master, Worker, Alone]


def connect(reactor: Reactor, job: Dict[str, Any], secrets: Dict[str, str], said: Said) -> Peers:
    """Return this node's side of the link.

    Raises:
        OSError: the master's address cannot be listened on.
    """
    if job["nnodes"] == 1:
        return Alone()
    if job["node_rank"] == 0:
        return Master(reactor, job, secrets, said)
    return Worker(reactor, job, secrets, said)
