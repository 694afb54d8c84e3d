"""The probe between nodes: what can only be tried between them, as one conversation.

The controller first lets every node listen and write its tokens, then lets every node connect to
the others and look for their tokens; the end of the conversation takes everything away again.
Each message is `{"step": NAME, …}`, each answer `{"step": NAME, …}`.
"""

from __future__ import annotations

import _socket

from clusterctl.node.address_family import address_family
from clusterctl.node.probe.connect import connect_to
from clusterctl.node.probe.listen import Listeners
from clusterctl.node.probe.tokens import Tokens
from clusterctl.wire import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List

    from clusterctl.node.agent.call_channel import CallChannel

MAX_STEP_SECONDS = 60.0
"""No step may take longer, whatever the controller asks for."""

_TEXTS = {"sockets": ("key",), "targets": ("target", "key"), "tokens": ("path", "name")}


def probe_peers(nonce: str, channel: CallChannel) -> Message:
    """Do the controller's steps until it has no more, or disconnects.

    Args:
        nonce: by which the nodes of this probe know each other.
        channel: brings the steps.

    Returns:
        `foreign`: who connected and did not know the nonce.
    """
    listeners, tokens = Listeners(nonce), Tokens(nonce)
    try:
        while True:
            message = channel.receive()
            if message is None or message.head["step"] == "end":
                return Message({"foreign": listeners.foreign()})
            answer = _step(message.head, nonce, listeners, tokens)
            channel.send(Message({"step": message.head["step"], **answer}))
    finally:
        listeners.close()
        tokens.remove()


def _step(head: Dict[str, Any], nonce: str, listeners: Listeners, tokens: Tokens) -> Dict[str, Any]:
    if head["step"] == "prepare":
        # All is checked before anything is begun: an error in between would leave things behind.
        sockets, shares = _all(head, "sockets"), _all(head, "tokens")
        for share in shares:
            _texts(share["folders"])
        return {
            "bound": [listeners.listen(socket) for socket in sockets],
            "written": tokens.write(shares),
        }
    targets, wanted = _all(head, "targets"), _all(head, "tokens")
    _texts(token[key] for token in wanted for key in ("folder", "writer"))
    limits = [_seconds(head[key]) for key in ("limit_s", "token_limit_s")]
    return {
        "connected": connect_to(targets, nonce, limits[0]),
        "seen": tokens.wait_for(wanted, limits[1]),
    }


def _all(head: Dict[str, Any], key: str) -> List[Dict[str, Any]]:
    """Return a list of a step's parts, each with what it is used for.

    Raises:
        Exception: one lacks something, or has something else in its place.
    """
    parts: List[Dict[str, Any]] = head[key]
    for part in parts:
        _texts(part[text] for text in _TEXTS[key])
        if key != "tokens":
            _check_end(part["address"], part["port"])
        if part.get("source") is not None:
            _check_end(part["source"], 0)
    return parts


def _check_end(address: str, port: object) -> None:
    """Refuse what is no end of a connection: a host's name would be looked up, however long."""
    _socket.inet_pton(address_family(address), address)
    if not isinstance(port, int):
        raise TypeError("expected a port, found %r" % port)


def _texts(values: Iterable[Any]) -> None:
    for value in values:
        if not isinstance(value, str):
            raise TypeError("expected a text, found %r" % value)


def _seconds(value: Any) -> float:  # noqa: ANN401  (as JSON brought it)
    seconds = float(value)
    if not 0 <= seconds <= MAX_STEP_SECONDS:  # nan is neither
        raise ValueError("a limit of %r seconds" % value)
    return seconds
