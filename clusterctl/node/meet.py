"""The meeting of the nodes: what can only be tried between them, as one conversation.

The controller first lets every node listen and write its tokens, then lets every node connect to
the others and look for their tokens; the end of the conversation takes everything away again.
Each message is `{"step": NAME, …}`, each answer `{"step": NAME, …}`.
"""

from __future__ import annotations

from clusterctl.node.connect import connect_to
from clusterctl.node.listen import Listeners
from clusterctl.node.tokens import Tokens
from clusterctl.wire import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

    from clusterctl.node.link import Link


def meet(word: str, link: Link) -> Message:
    """Do the controller's steps until it has no more, or is gone.

    Args:
        word: what the nodes of this meeting know each other by.
        link: brings the steps.

    Returns:
        `foreign`: who connected and did not know the word.
    """
    listeners, tokens = Listeners(word), Tokens(word)
    try:
        while True:
            message = link.receive()
            if message is None or message.head["step"] == "end":
                return Message({"foreign": listeners.foreign()})
            answer = _step(message.head, word, listeners, tokens)
            link.send(Message({"step": message.head["step"], **answer}))
    finally:
        listeners.close()
        tokens.remove()


def _step(head: Dict[str, Any], word: str, listeners: Listeners, tokens: Tokens) -> Dict[str, Any]:
    if head["step"] == "prepare":
        return {
            "bound": [listeners.listen(socket) for socket in head["sockets"]],
            "written": tokens.write(head["tokens"]),
        }
    return {
        "connected": connect_to(head["targets"], word, float(head["limit_s"])),
        "seen": tokens.look_for(head["tokens"], float(head["token_limit_s"])),
    }
