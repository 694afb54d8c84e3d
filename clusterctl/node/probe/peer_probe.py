"""The probe between nodes: what can only be tried between them, as one conversation.

The controller first lets every node listen and write its tokens, then lets every node connect to
the others and look for their tokens; the end of the conversation takes everything away again.
Each message is `{"step": NAME, …}`, each answer `{"step": NAME, …}`.
"""

from __future__ import annotations

from clusterctl.node.probe.connect import connect_to
from clusterctl.node.probe.listen import Listeners
from clusterctl.node.probe.tokens import Tokens
from clusterctl.wire import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

    from clusterctl.node.agent.call_channel import CallChannel

CONTROLLER_SECONDS = 300.0
"""Silence after which the controller counts as lost: a resting agent notices nothing else."""


def probe_peers(nonce: str, channel: CallChannel) -> Message:
    """Do the controller's steps until it has no more, disconnects, or falls silent.

    By `nonce` the nodes of this probe know each other; the answer's `foreign` are those who
    connected and did not know it, and its `counters` the folders of counters that `end` names.
    """
    channel.receive_timeout_s = CONTROLLER_SECONDS
    listeners, tokens = Listeners(nonce), Tokens(nonce)
    try:
        while True:
            message = channel.receive()
            if message is None or message.head["step"] == "end":
                return Message({"foreign": listeners.foreign(), **_counters(message)})
            answer = _step(message.head, nonce, listeners, tokens)
            channel.send_and_rest(Message({"step": message.head["step"], **answer}))
    finally:
        listeners.close()
        tokens.remove()


def _counters(message: Optional[Message]) -> Dict[str, Any]:
    """Read counters again, if the controller asks for them with its last message."""
    wanted = message.head.get("counters") if message is not None else None
    if not wanted:
        return {}
    from clusterctl.node.probe.folders import matching, read_folder  # noqa: PLC0415  (only here)

    return {
        "counters": {
            folder: read_folder(folder, question["files"]).decode("utf-8", "replace")
            for question in wanted
            for folder in matching(question["path"])
        }
    }


def _step(head: Dict[str, Any], nonce: str, listeners: Listeners, tokens: Tokens) -> Dict[str, Any]:
    if head["step"] == "prepare":
        return {
            "bound": [listeners.listen(socket) for socket in head["sockets"]],
            "written": tokens.write(head["tokens"]),
        }
    return {
        "connected": connect_to(head["targets"], nonce, head["limit_s"]),
        "seen": tokens.wait_for(head["tokens"], head["token_limit_s"]),
    }
