"""The master's side of the link: relays what one worker reports to the others."""

from __future__ import annotations

import hmac
import socket
import time
from typing import Dict, List, Optional, Set

from clusterctl.node.address_family import address_family
from clusterctl.node.event_loop import EventLoop
from clusterctl.node.listener import Listener, UnauthenticatedPeers
from clusterctl.node.peer_link.messages import (
    ORDERED,
    SILENT_SECONDS,
    PeerEvents,
    PeerMessage,
    SilentPeer,
    heartbeat_seconds,
    parse_ending,
    parse_life,
    parse_time,
    silent_peer,
    told_ending,
)
from clusterctl.node.peer_link.peers import Peers
from clusterctl.node.peer_link.restart_messages import parse_after, parse_seat
from clusterctl.node.peer_link.run_tokens import node_token
from clusterctl.node.peer_link.tls_channel import TlsChannel, server_context
from clusterctl.node.run.files.node_job import NodeJob, run_attempt

HELLO_SECONDS = 10.0
"""A connection that has not shown who it is by then is closed."""
MAX_UNAUTHENTICATED = 32
"""How many of these there may be at a time, beyond the workers of the run."""
RETURN_SECONDS = 30.0
"""How long the workers of a further attempt may take until they are there."""


SAID = ("begin", "ending", "hung", "over", "again")
"""The messages that a worker which comes later gets, too, in this order."""


class Master(Peers):
    """The master's side: relays what one worker reports to the others."""

    begun = False

    def __init__(
        self, loop: EventLoop, job: NodeJob, secrets: Dict[str, str], events: PeerEvents
    ) -> None:
        """Listen on the data network.

        Raises:
            OSError: the address cannot be listened on.
        """
        super().__init__(job)
        link = job["link"]
        self._loop, self._events = loop, events
        self._token, self._lost_after = secrets["token"], link["lost_after"]
        self._tls = server_context(link["certificate"], secrets["key"])
        self._channels: Dict[str, TlsChannel] = {}
        self._last: Dict[str, float] = {}
        self._last_error: Dict[str, str] = {}
        self._said: Dict[str, PeerMessage] = {}
        """By kind, the last message of each of `SAID`."""
        self._ending: Optional[PeerMessage] = None
        self._stopped = False
        self._ready: Set[str] = set()
        self._slow: Dict[str, List[PeerMessage]] = {}
        self._lives: Dict[str, PeerMessage] = {}
        self._attempt, self._go = run_attempt(job), job.get("again")
        self.missing = set(job["workers"])
        self._expected = set(job["workers"])
        self._joining: Set[str] = set()
        """Workers that may join, but have not come yet; the end of the run waits for none."""
        self._standby = bool(job.get("lineup"))
        """Those that join stand by: between two attempts, too."""
        self._finished: Set[str] = set()
        self._lost: Set[str] = set()
        """Workers that were silent too long: while the run continues, they are no part of it."""
        listening = _listen(link["address"], link["port"])
        self.port = listening.getsockname()[1]
        # A worker is unauthenticated too until its hello: all may come at once.
        most = MAX_UNAUTHENTICATED + len(self._expected)
        self._unauthenticated = UnauthenticatedPeers(loop, most=most, seconds=HELLO_SECONDS)
        self._listener = Listener(loop, listening, self._accept)
        if self._attempt > 1:  # they were there a moment ago, so their silence tells
            soon = time.monotonic() + RETURN_SECONDS
            self._last.update(dict.fromkeys(self._expected, soon))
        loop.call_every(heartbeat_seconds(self._lost_after), self._check_silence)

    @property
    def acknowledged(self) -> bool:
        """The link has nothing more to send or receive: every worker that was there has ended."""
        return not (set(self._last) - self._finished)

    @property
    def rest_done(self) -> bool:
        """Every worker that was ever there has ended."""
        return self._expected - self.missing <= self._finished

    @property
    def all_done(self) -> bool:
        """Every worker of the run has ended."""
        return self._expected <= self._finished

    @property
    def all_ready(self) -> bool:
        """Every worker that has ranks has told that they may start."""
        return self._expected - self._finished - self.spares <= self._ready

    def send_begin(self) -> None:
        """Let every worker, also one that comes later, start its ranks."""
        self.begun = True
        self._say("begin", {"begin": True})

    def expect(self, name: str) -> None:
        """Let a worker come that was lost, or was not part of the run."""
        self._joining.add(name)
        self._forget_channel(name)  # of its earlier part
        self._last.pop(name, None)
        self._last_error.pop(name, None)
        self._lives.pop(name, None)
        self.afters.pop(name, None)

    def withdraw(self, name: str) -> None:
        """Expect a worker no longer that has not come."""
        self._joining.discard(name)

    def give_up_on_missing(self) -> None:
        """Expect those no longer that have never been there."""
        self._finished |= self.missing

    def send_ending(self, message: PeerMessage) -> None:
        """Tell every worker, also one that comes later, that the run ends.

        Only of the first ending: one that brings down all nodes is reported by each of them.
        """
        first = self._ending
        # The end of a rank that failed by itself does not wait behind that of an echo.
        echo = first is not None and first.get("lines_grace") is not None
        ordered = message["by"] in ORDERED
        stops = first is not None and ordered and not self._stopped
        self._stopped = self._stopped or ordered
        if first is None or (echo and message.get("lines_grace") is None):
            self._ending = message
            self._say("ending", told_ending(message))
        elif stops:  # that a run which failed must not start again
            self._tell(told_ending(message))

    def _say(self, kind: str, message: PeerMessage) -> None:
        """Tell every worker, also one that comes later."""
        self._said[kind] = message
        self._tell(message)

    def _tell(self, message: PeerMessage) -> None:
        for channel in self._channels.values():
            channel.send(message)

    def silent(self) -> List[SilentPeer]:
        """Return the workers that were there, and neither ended nor were heard lately."""
        return [
            silent_peer(name, silence, self._last_error.get(name, "it stopped answering"))
            for name, silence in self.silences.items()
            if name not in self._finished and silence > SILENT_SECONDS
        ]

    @property
    def lives(self) -> Dict[str, Optional[PeerMessage]]:
        """What each worker whose part is not over has told of its ranks; None: nothing."""
        return {name: self._lives.get(name) for name in self._expected - self._finished}

    def send_hung(self, judgement: PeerMessage) -> None:
        """Tell every worker, also one that comes later, that the run is hung, or runs again."""
        self._say("hung", {"hung": judgement})

    def send_slow(self, slow: Dict[str, List[PeerMessage]]) -> None:
        """Tell each worker with the next answer which of its ranks keep the others waiting."""
        self._slow = slow

    def send_bye(self, state: str, after: Optional[PeerMessage] = None) -> None:
        """Tell every worker, also one that comes later, that the run is over here."""
        del after  # the master decides itself
        self._say("over", {"over": state})

    def send_again(self, again: PeerMessage) -> None:
        """Tell every worker, also one that comes later, what becomes of the run after its end."""
        self._say("again", {"again": again})

    @property
    def silences(self) -> Dict[str, float]:
        """Seconds since each worker was heard, its part over or not."""
        now = time.monotonic()
        for name, channel in self._channels.items():
            self._last[name] = max(self._last[name], channel.last_received)
        return {name: now - last for name, last in self._last.items()}

    def close(self) -> None:
        """Leave."""
        self._listener.close()
        for channel in list(self._channels.values()):
            channel.close()

    def _accept(self, connection: socket.socket, address: str) -> None:
        channel = TlsChannel(self._loop, connection, self._tls, self._on_message, self._on_closed)
        self._unauthenticated.add(channel.close, address)

    def _on_message(self, channel: TlsChannel, message: PeerMessage) -> None:
        if not channel.name:
            self._authenticate(channel, message.get("hello"))
            return
        self._last[channel.name] = channel.last_received
        if "ping" in message:
            slow = self._slow.get(channel.name, [])
            channel.send({"pong": parse_time(message, "ping"), "at": time.time(), "slow": slow})
            if message.get("ready") is True:
                self._ready.add(channel.name)
            if "printed" in message:
                self._lives[channel.name] = parse_life(message)
        elif "ending" in message:
            ending = {**parse_ending(message), "node": channel.name}  # it speaks for itself alone
            if not self._events.peer_leaves(ending):
                self.send_ending(ending)
                self._events.peer_ending(ending)
        elif "bye" in message:
            if "after" in message:
                self.afters[channel.name] = parse_after(message["after"])
            self._finished.add(channel.name)
            channel.send({"bye": True})

    def _authenticate(self, channel: TlsChannel, hello: object) -> None:
        """Accept a worker that is expected and knows its own token."""
        hello = hello if isinstance(hello, dict) else {}
        name, token = str(hello.get("node")), str(hello.get("token"))
        self._unauthenticated.remove(channel.close)
        joins = name in self._joining and ("over" not in self._said or self._standby)
        expected = name in self._expected and (self._ending is not None or name not in self._lost)
        # Names that are expected can be encoded; a token may hold half a character.
        if not (joins or expected) or not hmac.compare_digest(
            token.encode("utf-8", "surrogatepass"), node_token(self._token, name).encode()
        ):
            channel.close()
            return
        if self._attempt != hello.get("attempt", self._attempt):
            self._of_other_attempt(channel, name, hello)
            return
        self._seat(name, hello)
        channel.name = name
        self._forget_channel(name)
        self._channels[name] = channel
        self._last[name] = channel.last_received
        channel.send({"welcome": True})
        for kind in SAID:
            if kind in self._said:
                channel.send(self._said[kind])
        if joins:
            self._joining.remove(name)
            self._expected.add(name)
            self._finished.discard(name)
            self._lost.discard(name)
            self.missing.discard(name)
            self._events.peer_joined(name)
        elif name in self.missing:
            self.missing.remove(name)
            self._events.peer_joined(name)

    def _seat(self, name: str, hello: Dict[str, object]) -> None:
        """Take where a node is that will stand by.

        Raises:
            MessageError: its place is missing, as of its earlier supervisor, or damaged.
        """
        if self._standby and name in self._joining:
            self.seats[name] = {**parse_seat(hello.get("seat")), "node": name}
            self.spares.add(name)

    def _of_other_attempt(self, channel: TlsChannel, name: str, hello: Dict[str, object]) -> None:
        """Answer a worker whose attempt is not ours; it comes again.

        One of the attempt before may have missed that we began, or bring a stop that came while
        we did.
        """
        if hello.get("attempt") == self._attempt - 1:
            if hello.get("stopped") is True:
                reason = "%s ended between two attempts" % name
                ending = {"by": "stop", "reason": reason, "node": name}
                self.send_ending(ending)
                self._events.peer_ending(ending)
            channel.send({"again": self._go})
            self._last[name] = time.monotonic() + RETURN_SECONDS  # it begins only now
        else:
            channel.close()

    def _forget_channel(self, name: str) -> None:
        channel = self._channels.pop(name, None)
        if channel is not None:
            channel.close()

    def _on_closed(self, channel: TlsChannel, why: str) -> None:
        self._unauthenticated.remove(channel.close)
        if self._channels.get(channel.name) is channel:
            del self._channels[channel.name]
            self._last_error[channel.name] = why

    def _check_silence(self) -> None:
        for name, silence in self.silences.items():
            if name not in self._finished and silence > self._lost_after:
                self._finished.add(name)
                self._lost.add(name)
                self._forget_channel(name)
                self._events.peer_lost(name, self._last_error.get(name, "it stopped answering"))


def _listen(address: str, port: int) -> socket.socket:
    listening = socket.socket(address_family(address), socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen(1024)
    except OSError:
        listening.close()
        raise
    return listening
