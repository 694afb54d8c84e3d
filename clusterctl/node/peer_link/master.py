"""The master's side of the link: relays what one worker reports to the others."""

from __future__ import annotations

import hmac
import socket
import time
from typing import Dict, List, Optional

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
from clusterctl.node.peer_link.peer import ADMITTED, LOST, Peer
from clusterctl.node.peer_link.peers import Peers
from clusterctl.node.peer_link.restart_messages import parse_after, parse_seat
from clusterctl.node.peer_link.run_tokens import node_token
from clusterctl.node.peer_link.tls_channel import TlsChannel, server_context
from clusterctl.node.run.files.node_job import NodeJob, Seat, run_attempt

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

    def __init__(
        self, loop: EventLoop, job: NodeJob, secrets: Dict[str, str], events: PeerEvents
    ) -> None:
        """Listen on the data network.

        Raises:
            OSError: the address cannot be listened on.
        """
        super().__init__(job, job["workers"])
        link = job["link"]
        self._loop, self._events = loop, events
        self._token, self._lost_after = secrets["token"], link["lost_after"]
        self._tls = server_context(link["certificate"], secrets["key"])
        self._channels: Dict[str, TlsChannel] = {}
        self._said: Dict[str, PeerMessage] = {}
        """By kind, the last message of each of `SAID`."""
        self._ending: Optional[PeerMessage] = None
        self._stopped = False
        self._slow: Dict[str, List[PeerMessage]] = {}
        self._attempt, self._go = run_attempt(job), job.get("again")
        self._standby = bool(job.get("lineup"))
        """Those that join stand by: between two attempts, too."""
        listening = _listen(link["address"], link["port"])
        self.port = listening.getsockname()[1]
        # A worker is unauthenticated too until its hello: all may come at once.
        most = MAX_UNAUTHENTICATED + len(self.others)
        self._unauthenticated = UnauthenticatedPeers(loop, most=most, seconds=HELLO_SECONDS)
        self._listener = Listener(loop, listening, self._accept)
        if self._attempt > 1:  # they were there a moment ago, so their silence tells
            for name in self.others:
                self.change(name, heard=time.monotonic() + RETURN_SECONDS)
        loop.call_every(heartbeat_seconds(self._lost_after), self._check_silence)

    def send_begin(self) -> None:
        """Let every worker, also one that comes later, start its ranks."""
        self._say("begin", {"begin": True})

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
            silent_peer(name, silence, self.others[name].error)
            for name, silence in self.silences.items()
            if not self.others[name].done and silence > SILENT_SECONDS
        ]

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

    def dismiss(self, again: PeerMessage) -> None:
        """Tell those workers that are left out of the next attempt before the others hear of it."""
        for name in set(again["without"]) & set(self._channels):
            self._channels[name].send({"again": again})

    @property
    def silences(self) -> Dict[str, float]:
        """Seconds since each worker was heard, its part over or not."""
        now = time.monotonic()
        for name, channel in self._channels.items():
            self.change(name, heard=max(self.others[name].heard or 0.0, channel.last_received))
        heard = {name: peer.heard for name, peer in self.others.items()}
        return {name: now - last for name, last in heard.items() if last is not None}

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
        self.change(channel.name, heard=channel.last_received)
        if "ping" in message:
            slow = self._slow.get(channel.name, [])
            channel.send({"pong": parse_time(message, "ping"), "at": time.time(), "slow": slow})
            if message.get("ready") is True:
                self.change(channel.name, ready=True)
            if "printed" in message:
                self.change(channel.name, life=parse_life(message))
        elif "ending" in message:
            ending = {**parse_ending(message), "node": channel.name}  # it speaks for itself alone
            if not self._events.peer_leaves(ending):
                self.send_ending(ending)
                self._events.peer_ending(ending)
        elif "bye" in message:
            after = parse_after(message["after"]) if "after" in message else None
            self.others[channel.name] = self.others[channel.name].ended(after)
            channel.send({"bye": True})

    def _authenticate(self, channel: TlsChannel, hello: object) -> None:
        """Accept a worker that is expected and knows its own token."""
        hello = hello if isinstance(hello, dict) else {}
        name, token = str(hello.get("node")), str(hello.get("token"))
        peer = self.others.get(name)
        # Names that are expected can be encoded; a token may hold half a character.
        if (
            peer is None
            or not self._may_come(peer)
            or not hmac.compare_digest(
                token.encode("utf-8", "surrogatepass"), node_token(self._token, name).encode()
            )
        ):
            self._refuse(channel)
            return
        if self._attempt != hello.get("attempt", self._attempt):
            self._of_other_attempt(channel, name, hello)
            return
        joins = peer.phase == ADMITTED
        seat: Optional[Seat] = None
        if joins and self._standby:  # an earlier supervisor of the node has no seat
            seat = {**parse_seat(hello.get("seat")), "node": name}
        self._unauthenticated.remove(channel.close)
        channel.name = name
        self.disconnect(name)
        self._channels[name] = channel
        channel.send({"welcome": True})
        for kind in SAID:
            if kind in self._said:
                channel.send(self._said[kind])
        if joins or not peer.came:
            self.others[name] = peer.arrived(channel.last_received, seat)
            self._events.peer_joined(name)
        else:
            self.change(name, heard=channel.last_received)

    def _may_come(self, peer: Peer) -> bool:
        """Tell whether a node may connect: one that is lost only hears why the run ends."""
        if peer.phase == ADMITTED:
            return self._standby or "over" not in self._said
        return peer.phase != LOST or self._ending is not None

    def _of_other_attempt(self, channel: TlsChannel, name: str, hello: Dict[str, object]) -> None:
        """Answer a worker whose attempt is not ours, without admitting it; it comes again.

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
            if not self.others[name].done:
                self.change(name, heard=time.monotonic() + RETURN_SECONDS)  # it begins only now
        else:
            self._refuse(channel)

    def _refuse(self, channel: TlsChannel) -> None:
        self._unauthenticated.remove(channel.close)
        channel.close()

    def disconnect(self, name: str) -> None:
        """Close the connection of a worker; it may come again."""
        channel = self._channels.pop(name, None)
        if channel is not None:
            channel.close()

    def _on_closed(self, channel: TlsChannel, why: str) -> None:
        self._unauthenticated.remove(channel.close)
        if self._channels.get(channel.name) is channel:
            del self._channels[channel.name]
            self.change(channel.name, error=why)

    def _check_silence(self) -> None:
        for name, silence in self.silences.items():
            peer = self.others[name]
            if not peer.done and silence > self._lost_after:
                self.disconnect(name)
                self.others[name] = peer.lost(time.monotonic())
                self._events.peer_lost(name, peer.error)


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
