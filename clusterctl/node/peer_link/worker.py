"""A worker's side of the link: keeps the one connection, or notices that it is over."""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import Any, Dict, List, Optional, Tuple

from clusterctl.node.address_family import address_family
from clusterctl.node.event_loop import EventLoop
from clusterctl.node.peer_link.messages import (
    SILENT_SECONDS,
    PeerEvents,
    PeerMessage,
    SilentPeer,
    heartbeat_seconds,
    parse_ending,
    parse_hung,
    parse_over,
    parse_slow,
    parse_time,
    silent_peer,
    told_ending,
)
from clusterctl.node.peer_link.peers import Peers
from clusterctl.node.peer_link.restart_messages import parse_again
from clusterctl.node.peer_link.tls_channel import TlsChannel, client_context
from clusterctl.node.run.files.node_job import NodeJob, run_attempt

RETRY_SECONDS = 0.2
"""Short: after its supervisor was killed, the master's guard waits at the same port for us."""
CLOCK_PINGS = 5
"""Round trips before the clock's offset is reported."""
RETURN_SECONDS = 30.0
"""How long the master of a further attempt may take until it is there."""
CLOCK_SECONDS = 600.0
"""How often it is reported again: clocks drift."""
CLOCK_SET = 2.0
"""Seconds by which a clock must jump, here or on the master, to be measured again at once; and the
shortest time between two such reports."""


class Worker(Peers):
    """A worker's side: keeps the one connection, or notices that it is over."""

    others_over = False
    acknowledged = False
    """The master knows that the run is over here (or has exited itself)."""

    def __init__(
        self, loop: EventLoop, job: NodeJob, secrets: Dict[str, str], events: PeerEvents
    ) -> None:
        """Start to connect to the master's supervisor."""
        self._master = job["master"]["node"]
        super().__init__(job, [self._master])
        link = job["link"]
        self._loop, self._events = loop, events
        self._address = (link["address"], link["port"])
        self._source = job["address"]
        self._lost_after = link["lost_after"]
        self._hello: Dict[str, Any] = {"token": secrets["token"], "node": job["node"]}
        attempt = run_attempt(job)
        if attempt:
            self._hello["attempt"] = attempt
        lineup = job.get("lineup")
        if lineup and job.get("joined"):
            (self._hello["seat"],) = (s for s in lineup["seats"] if s["node"] == job["node"])
        self._tls = client_context(link["certificate"])
        self._channel: Optional[TlsChannel] = None
        self._heard_at = time.monotonic() + (RETURN_SECONDS if attempt > 1 else 0.0)
        """When the newest ping was sent that the master has answered: when its answer comes tells
        nothing, it may have waited in the network while the master heard us no longer."""
        self._pings: Dict[float, float] = {}
        """Pings that are not answered: by the time of day, when they were sent."""
        self._connected_at = 0.0
        self._last_error = "no answer"
        self._round_trips: List[Tuple[float, float]] = []
        """By pings: half the time that each took, and this clock minus the master's."""
        self._offset = self._measured_at = 0.0
        self._welcome = False
        self._bye = False
        self._unacknowledged: List[PeerMessage] = []
        self._given_up = False
        self._ready: PeerMessage = {}
        self._connect()
        loop.call_every(heartbeat_seconds(self._lost_after), self._heartbeat)

    @property
    def all_done(self) -> bool:
        """The master knows that the run is over here: a worker waits for nothing else."""
        return self.acknowledged

    def send_ending(self, message: PeerMessage) -> None:
        """Tell the master, which tells the others, now or when it can be reached."""
        self._hello["stopped"] = self._hello.get("stopped") or message["by"] == "stop"
        self._send(told_ending(message))

    def silent(self) -> List[SilentPeer]:
        """Return the master if it neither ended nor was heard lately."""
        silence = time.monotonic() - self._heard_at
        open_end = self.others[self._master].came and not (self.acknowledged or self.others_over)
        if not open_end or silence <= SILENT_SECONDS:
            return []
        return [silent_peer(self._master, silence, self._last_error)]

    def tell_ready(self) -> None:
        """Tell the master that this node's ranks may start, now and with each ping."""
        self._ready = {"ready": True}
        if self._welcome:
            self._ping()

    def send_bye(self, state: str, after: Optional[PeerMessage] = None) -> None:
        """Tell the master that the run is over here, and wait until it knows.

        `after`: what it needs to know to start the run again.
        """
        self._bye = True
        self.acknowledged = self.acknowledged or self._given_up
        self._send({"bye": state} if after is None else {"bye": state, "after": after})

    def close(self) -> None:
        """Leave."""
        self._given_up = True
        if self._channel is not None:
            self._channel.close()

    def _send(self, message: PeerMessage) -> None:
        # Kept until the master has said bye: a connection may break with it on its way.
        self._unacknowledged.append(message)
        if self._channel is not None and self._welcome:
            self._channel.send(message)

    def _connect(self) -> None:
        if self._given_up:
            return
        connection = socket.socket(address_family(self._address[0]), socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            connection.bind((self._source, 0))
            code = connection.connect_ex(self._address)
        except OSError as error:
            code = error.errno or errno.EIO
        if code not in (0, errno.EINPROGRESS):
            connection.close()
            self._on_closed(None, os.strerror(code))
            return
        self._channel = TlsChannel(
            self._loop, connection, self._tls, self._on_message, self._on_closed
        )
        self._channel.name = self._master  # its certificate will prove it
        self._connected_at = time.monotonic()
        self._pings.clear()
        self._channel.send({"hello": self._hello})

    def _on_closed(self, channel: Optional[TlsChannel], why: str) -> None:
        if channel is self._channel:
            self._channel = None
            self._welcome = False
            self._last_error = why
            self._loop.call_later(RETRY_SECONDS, self._connect)

    def _on_message(self, channel: TlsChannel, message: PeerMessage) -> None:
        if "welcome" in message:
            self._heard_at = self._connected_at
            self._begin(channel)
        elif "pong" in message:
            sent = parse_time(message, "pong")
            self._heard_at = max(self._heard_at, self._pings.pop(sent, 0.0))
            self._measure_clock(sent, parse_time(message, "at"))
            if "slow" in message:
                self._events.run_slow(parse_slow(message))
        elif "ending" in message:
            self._events.peer_ending(parse_ending(message))
        elif "hung" in message:
            self._events.run_hung(parse_hung(message))
        elif "over" in message:
            self._events.master_over(parse_over(message))
            self.others_over = True
        elif "begin" in message:
            self.change(self._master, ready=True)
        elif "again" in message:
            self.again = parse_again(message["again"])
        elif "bye" in message:
            self.acknowledged = True

    def _begin(self, channel: TlsChannel) -> None:
        """Tell what the master may not have heard, now that it has let us in."""
        self._welcome = True
        for unsent in self._unacknowledged:
            channel.send(unsent)
        master = self.others[self._master]
        if not master.came:
            self.others[self._master] = master.arrived(self._connected_at, None)
            self._events.peer_joined(self._master)
        self._ping()

    def _measure_clock(self, sent: float, there: float) -> None:
        received = time.time()
        error, offset = (received - sent) / 2, (sent + received) / 2 - there
        if len(self._round_trips) == CLOCK_PINGS:  # reported
            age = time.monotonic() - self._measured_at
            was_set = abs(offset - self._offset) > max(error, 0.0) + CLOCK_SET
            if age < CLOCK_SECONDS and not (was_set and age > CLOCK_SET):
                return
            self._round_trips.clear()
        if error >= 0:  # else this clock was set back meanwhile
            self._round_trips.append((error, offset))
        if len(self._round_trips) < CLOCK_PINGS:
            self._ping()  # the first ones at once: the offset is wanted from the start
            return
        error, self._offset = min(self._round_trips)
        self._measured_at = time.monotonic()
        self._events.clock_measured(self._offset, error)

    def _ping(self) -> None:
        if self._channel is not None:
            sent = time.time()
            self._pings[sent] = time.monotonic()
            self._channel.send({"ping": sent, **self._ready, **self._events.life()})

    def _heartbeat(self) -> None:
        if self._given_up:
            return
        if self._welcome:
            self._ping()
        silent = time.monotonic() - self._heard_at
        if silent > self._lost_after:
            self._given_up = True
            self.acknowledged = self.acknowledged or self._bye
            self._events.peer_lost(self._master, self._last_error)
        elif silent > self._lost_after / 3 and self._channel is not None:
            # TCP would wait ever longer before it tries again; a new connection does not.
            self._channel.close()
            self._on_closed(self._channel, "it stopped answering" if self._welcome else "no answer")
