"""The link between the supervisors of a run: who lives, who failed, whose clock says what.

Workers keep a connection to the master's supervisor over the data network. A message says at once
what silence would say late; a connection that breaks is made again, and costs nothing unless the
silence lasts. The controller is not involved.
"""

from __future__ import annotations

import sys
from typing import Dict

from clusterctl.node.agent.call_channel import OperationError
from clusterctl.node.event_loop import EventLoop
from clusterctl.node.peer_link.messages import PeerEvents
from clusterctl.node.peer_link.peers import Peers
from clusterctl.node.run.files.node_job import NodeJob


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
