"""Connections to other nodes' listeners, all at once, each with what came of it."""

from __future__ import annotations

import _socket
import errno
import os
import select
import time

from clusterctl.node.address_family import address_family
from clusterctl.node.probe.listen import challenge_and_response
from clusterctl.node.probe.route_lookup import outgoing_interface

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

MAX_RESPONSE = 256
"""Bytes of a listener's answer: its half of the word, an address, and the length of the padding."""
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
}


class Attempt:
    """One connection on its way."""

    def __init__(self, target: Dict[str, Any], nonce: str, limit_s: float) -> None:
        self.target = target
        self.challenge, self.response = challenge_and_response(nonce)
        self.challenge_sent = False
        self.received = b""
        self.padding_left: Optional[int] = None
        """Bytes of the padding that are missing; None: the answer has not come yet."""
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
                self.socket.sendall(self.challenge)
                self.challenge_sent = True
                return
            part = self.socket.recv(_CHUNK)
        except OSError as error:
            self.fail(error.errno or errno.EIO)
            return
        if self.padding_left is None:
            self._take_answer(part)
        else:
            self._take_padding(part, at_end=not part)

    def _take_answer(self, part: bytes) -> None:
        """Take a part of the answer, which says how long a padding follows it."""
        self.received += part
        answer, newline, rest = self.received.partition(b"\n")
        known = self.received.startswith(self.response[: len(self.received)])
        if not (part and known and len(answer) <= MAX_RESPONSE):
            self.end("foreign", "another program answers there")
        elif newline:
            words = answer[len(self.response) :].decode("ascii", "replace").split(" ")
            self.result["seen_as"] = words[0]
            self.padding_left = int(words[1]) if words[1:] and words[1].isdigit() else 0
            if self.padding_left:
                self.result["full_size"] = False
            self.until = min(self.until, time.monotonic() + PADDING_SECONDS)
            self._take_padding(rest, at_end=False)

    def _take_padding(self, part: bytes, *, at_end: bool) -> None:
        """Count the padding; with the last of it a packet of full size has arrived."""
        assert self.padding_left is not None
        self.padding_left -= len(part)
        if self.padding_left <= 0:
            if "full_size" in self.result:
                self.result["full_size"] = True
            self.end("ok", "")
        elif at_end:
            self.fail(errno.ECONNRESET)

    def _note_way(self) -> None:
        """Note the source address and the interface that the kernel has chosen."""
        try:
            source = self.result["source"] = self.socket.getsockname()[0]
            self.result["interface"] = outgoing_interface(source, self.target["address"])
        except OSError:
            self.result.setdefault("source", "")

    def fail(self, code: int) -> None:
        """End with a system error; after the answer it tells nothing about the path."""
        if self.padding_left is None:
            self.end(_STATES.get(code, "error"), os.strerror(code))
        else:
            del self.result["full_size"]
            self.end("ok", "")

    def time_out(self) -> None:
        """End for lack of time: a silent connection is another program's listener."""
        if self.padding_left is not None:
            self.end("ok", "")
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
