"""Connections to other nodes' listeners, all at once, each with what came of it."""

from __future__ import annotations

import _socket
import errno
import os
import select
import time

from clusterctl.node.address_family import address_family
from clusterctl.node.probe.listen import challenge_and_response, hello
from clusterctl.node.probe.route_lookup import outgoing_interface
from clusterctl.wire import BadFrame, FrameReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

MAX_RESPONSE = 256
"""Bytes of a listener's answer."""
MAX_PADDING = 1 << 17
"""Bytes of a padding: no packet is larger."""
_CHUNK = 1 << 14
PADDING_SECONDS = 2.0
"""How long the padding may take; the kernel repeats what was lost after 0.2, 0.6 and 1.4 s."""
GRACE_SECONDS = 1.0
"""How much longer a peer that keeps sending is read."""

_STATES = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timeout",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    # Of routes of the types blackhole and prohibit: ip-route(8).
    errno.EINVAL: "unreachable",
    errno.EACCES: "unreachable",
}
_WORDS = {
    errno.EINVAL: "a route of this node drops packets to it (blackhole)",
    errno.EACCES: "a route or a firewall of this node prohibits it",
}


class Attempt:
    """One connection on its way."""

    def __init__(self, target: Dict[str, Any], nonce: str, limit_s: float) -> None:
        self.target = target
        self.challenge, self.response = challenge_and_response(nonce)
        self.challenge_sent = False
        self.answered = self.heard = False
        """The listener's answer has come; something has."""
        self._frames = FrameReader(head_limit=MAX_RESPONSE, body_limit=MAX_PADDING)
        self.began = time.monotonic()
        self.until = self.began + limit_s
        self.result: Dict[str, Any] = {}
        self.socket = _socket.socket(address_family(target["address"]), _socket.SOCK_STREAM)
        self.socket.setblocking(False)
        try:
            if target.get("source"):
                self.socket.bind((target["source"], 0))
            code = self.socket.connect_ex((target["address"], target["port"]))
        except OSError as error:
            code = error.errno or errno.EINVAL
        if code in (0, errno.EINPROGRESS):
            self._note_way()
        else:
            self.fail(code)

    def advance(self) -> None:
        """Do what has become possible: say our half once connected, then hear the other."""
        try:
            if not self.challenge_sent:
                code = self.socket.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)
                if code:
                    self.fail(code)
                    return
                self.socket.sendall(hello(self.challenge))
                self.challenge_sent = True
                return
            part = self.socket.recv(_CHUNK)
        except OSError as error:
            self.fail(error.errno or errno.EIO)
            return
        self.heard = self.heard or bool(part)
        self._frames.feed(part)
        try:
            while "state" not in self.result:
                frame = self._frames.next()
                if frame is None:
                    break
                self._take(frame.head)
        except BadFrame:
            self._end_early()
        if not part and "state" not in self.result:
            self._end_early()

    def _take(self, head: Dict[str, Any]) -> None:
        """Take the answer, or the padding after it: then a packet of full size has arrived."""
        if self.answered:
            self.result["full_size"] = True
            self.end("ok", "")
        elif head.get("hello") != self.response:
            self._end_early()
        else:
            self.answered = True
            self.result["seen_as"] = str(head.get("seen_as"))
            self.until = min(self.until, time.monotonic() + PADDING_SECONDS)
            if head.get("padding"):
                self.result["full_size"] = False
            else:
                self.end("ok", "")

    def _end_early(self) -> None:
        """End for what came, or did not; after the answer it tells nothing about the path."""
        if self.answered:
            self.result.pop("full_size", None)
            self.end("ok", "")
        else:
            self.end("foreign", "another program answers there")

    def _note_way(self) -> None:
        """Note the source address and the interface that the kernel has chosen."""
        try:
            source = self.result["source"] = self.socket.getsockname()[0]
            self.result["interface"] = outgoing_interface(source, self.target["address"])
        except OSError:
            self.result.setdefault("source", "")

    def fail(self, code: int) -> None:
        """End with a system error."""
        if self.answered:
            self._end_early()
        else:
            self.end(_STATES.get(code, "error"), _WORDS.get(code) or os.strerror(code))

    def time_out(self) -> None:
        """End for lack of time: a silent connection is another program's listener."""
        if self.answered:
            self.end("ok", "")
        elif self.heard:
            self._end_early()
        elif self.challenge_sent:
            self.end("foreign", "it accepts the connection but sends nothing")
        else:
            self.end("timeout", "no answer: packets are dropped on the way")

    def end(self, state: str, words: str) -> None:
        """Keep the result and close."""
        seconds = time.monotonic() - self.began
        # What was learned of the connection counts before what was asked for.
        known = {**self.target, **self.result}
        self.result = {**known, "state": state, "words": words, "seconds": seconds}
        self.socket.close()


def connect_to(targets: List[Dict[str, Any]], nonce: str, limit_s: float) -> List[Dict[str, Any]]:
    """Connect to every target.

    Args:
        targets: each with `address`, `port`, optionally `source`; other keys come back as given.
        nonce: of this probe.
        limit_s: for all of it.

    Returns:
        The targets with `state`, `words`, `seconds`, `source`, `interface`, and where connected
        `seen_as` and `full_size`: whether the padding came, which fills a packet.
    """
    attempts = [Attempt(target, nonce, limit_s) for target in targets]
    while True:
        open_ones = {a.socket.fileno(): a for a in attempts if "state" not in a.result}
        if not open_ones:
            return [attempt.result for attempt in attempts]
        poll = select.poll()
        for descriptor, attempt in open_ones.items():
            poll.register(descriptor, select.POLLIN if attempt.challenge_sent else select.POLLOUT)
        left = min(attempt.until for attempt in open_ones.values()) - time.monotonic()
        ready = {descriptor for descriptor, _ in poll.poll(1000 * max(left, 0.0))}
        now = time.monotonic()
        for descriptor, attempt in open_ones.items():
            # What has come counts, though this process may have been too busy to hear it in time.
            if descriptor in ready and now < attempt.until + GRACE_SECONDS:
                attempt.advance()
            elif now >= attempt.until:
                attempt.time_out()
