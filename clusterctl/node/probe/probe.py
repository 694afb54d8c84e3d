"""Operation `survey`: a node's raw answers, then its part in the probe between nodes.

One agent for both: starting it, and the session that it runs in, is most of what a check costs a
node. The answers come as a message of their own; the last one is the peer probe's.
"""

from __future__ import annotations

from clusterctl.node.probe.read import read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

    from clusterctl.node.agent.call_channel import CallChannel
    from clusterctl.wire import Message


def probe(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Read, then probe the peers; return what `probe_peers` does.

    Args:
        args: those of `read.read`, and `word`: a nonce by which the nodes know each other.
        body: as of `read.read`.
        channel: brings the steps of the peer probe; none is needed.
    """
    channel.send(read(args, body, channel))
    from clusterctl.node.probe.peer_probe import probe_peers  # noqa: PLC0415  (the answers need not wait for it)

    return probe_peers(str(args["word"]), channel)
