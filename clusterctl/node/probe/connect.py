"""Connections to other nodes' listeners, all at once, each with what came of it."""

from __future__ import annotations

import _socket
import errno
import os
import select
import time

from clusterctl.node.address_family import address_family
from clusterctl.node.probe.listen import challenge_and_response

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

MAX_RESPONSE = 256
"""Bytes of a listener's answer: its half of the word, and an address."""

_STATES = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timeout",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
}


class Attempt:
    """One connection on its way."""

    def __init__(self, target: Dict[str, Any], nonce: str) -> None:
        self.target = target
        self.challenge, self.response = challenge_and_response(nonce)
        self.challenge_sent = False
        self.received = b""
        self.began = time.monotonic()
        self.result: Dict[str, Any] = {}
        self.socket = _socket.socket(address_family(target["address"]), _socket.SOCK_STREAM)
        self.socket.setblocking(False)
        try:
            if target.get("source"):
                self.socket.bind((target["source"], 0))
            code = self.socket.connect_ex((target["address"], target["port"]))
        except OSError as error:
            code = error.errno or errno.EINVAL
        if code not in (0, errno.EINPROGRESS):
            self.fail(code)

    def advance(self) -> None:
        """Do what has become possible: say our half once connected, then hear the other."""
        try:
            if not self.challenge_sent:
                code = self.socket.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)
                if code:
                    self.fail(code)
                    return
                self.result["source"] = self.socket.getsockname()[0]
                self.socket.sendall(self.challenge)
                self.challenge_sent = True
                return
            part = self.socket.recv(256)
        except OSError as error:
            self.fail(error.errno or errno.EIO)
            return
        self.received += part
        if len(self.received) > MAX_RESPONSE:
            self.end("foreign", "another program answers there")
        elif self.received.endswith(b"\n") and self.received.startswith(self.response):
            seen_as = self.received[len(self.response) :].strip().decode("ascii", "replace")
            self.end("ok", "", seen_as=seen_as)
        elif not part or not self.received.startswith(self.response[: len(self.received)]):
            self.end("foreign", "another program answers there")

    def fail(self, code: int) -> None:
        """End with a system error."""
        self.end(_STATES.get(code, "error"), os.strerror(code))

    def time_out(self) -> None:
        """End for lack of time: silence after the connection stood is somebody else's listener."""
        if self.challenge_sent:
            self.end("foreign", "it accepts the connection but sends nothing")
        else:
            self.end("timeout", "no answer: packets are dropped on the way")

    def end(self, state: str, words: str, **more: str) -> None:
        """Keep the result and close."""
        seconds = time.monotonic() - self.began
        # What was learned of the connection counts before what was asked for.
        known = {**self.target, **self.result, **more}
        self.result = {**known, "state": state, "words": words, "seconds": seconds}
        self.socket.close()


def connect_to(targets: List[Dict[str, Any]], nonce: str, limit_s: float) -> List[Dict[str, Any]]:
    """Connect to every target.

    Args:
        targets: each with `address`, `port`, optionally `source`; other keys come back as given.
        nonce: of this probe.
        limit_s: for all of it.

    Returns:
        The targets with `state`, `words`, `seconds`, and where connected `source`, `seen_as`.
    """
    attempts = [Attempt(target, nonce) for target in targets]
    deadline = time.monotonic() + limit_s
    while True:
        open_ones = {a.socket.fileno(): a for a in attempts if "state" not in a.result}
        left = deadline - time.monotonic()
        if not open_ones or left <= 0:
            break
        poll = select.poll()
        for descriptor, attempt in open_ones.items():
            poll.register(descriptor, select.POLLIN if attempt.challenge_sent else select.POLLOUT)
        for descriptor, _ in poll.poll(1000 * left):
            open_ones[descriptor].advance()
    for attempt in open_ones.values():
        attempt.time_out()
    return [attempt.result for attempt in attempts]
