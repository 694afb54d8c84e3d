"""One connection between supervisors: whatever comes, whole messages in order, and then its end."""

from __future__ import annotations

import json
import socket
import ssl
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from clusterctl.node.event_loop import EventLoop
from clusterctl.node.peer_link.tls_channel import UNAUTHENTICATED_LINE, TlsChannel
from tests.damage import ANY_JSON, as_json, damaged


class Plain:
    """Stands for the encryption: passes bytes as they are."""

    protocol = ssl.PROTOCOL_TLS_SERVER

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *, server_side: bool
    ) -> Plain:
        assert server_side
        self.incoming, self.outgoing = incoming, outgoing
        return self

    def do_handshake(self) -> None:
        """There is none."""

    def read(self, count: int) -> bytes:
        if not self.incoming.pending:
            raise ssl.SSLWantReadError
        return self.incoming.read(count)

    def write(self, data: bytes) -> int:
        return self.outgoing.write(data)


def heard(pieces: list[bytes]) -> tuple[list[dict[str, Any]], list[str]]:
    """Send these pieces and hang up; return the messages and the ends that were told."""
    loop, messages, ends = EventLoop(), list[dict[str, Any]](), list[str]()
    ours, theirs = socket.socketpair()
    # The option is one of TCP; a pair of local sockets is enough for the rest.
    context = cast("ssl.SSLContext", Plain())
    with theirs, _PairAsTcp(ours.detach()) as connection:
        channel = TlsChannel(
            loop,
            connection,
            context,
            on_message=lambda _channel, message: messages.append(message),
            on_closed=lambda _channel, why: ends.append(why),
        )
        for piece in pieces:
            theirs.setblocking(False)
            theirs.send(piece[:8192])
            channel._ready()
            assert len(channel._lines.unread) <= UNAUTHENTICATED_LINE or ends
            if ends:
                break
        theirs.shutdown(socket.SHUT_WR)
        if not ends:
            channel._ready()
        channel.close()
    loop._selector.close()
    return messages, ends


class _PairAsTcp(socket.socket):
    def __init__(self, descriptor: int) -> None:
        super().__init__(fileno=descriptor)

    def setsockopt(self, *_: Any) -> None:
        """Take any option."""


LINES = st.dictionaries(st.text(max_size=4), ANY_JSON, max_size=3).filter(
    lambda one: len(as_json(one)) < UNAUTHENTICATED_LINE
)


@given(st.lists(LINES, max_size=5), st.lists(st.integers(1, 40), max_size=40))
def test_messages_arrive_whole_and_in_order_however_they_are_cut(
    wanted: list[dict[str, Any]], cuts: list[int]
) -> None:
    data = b"".join(as_json(one) + b"\n" for one in wanted)
    pieces = []
    for cut in [*cuts, 4096, 4096, 4096]:
        pieces.append(data[:cut])
        data = data[cut:]
    messages, ends = heard([piece for piece in pieces if piece])
    assert list(map(json.dumps, messages)) == list(map(json.dumps, wanted))
    assert ends == ["it closed the connection"]


@given(st.lists(st.binary(max_size=30) | damaged(b'{"hello": {"node": "w0"}}\n'), max_size=8))
def test_noise_ends_its_own_connection_once(pieces: list[bytes]) -> None:
    messages, ends = heard([piece for piece in pieces if piece])
    assert all(isinstance(message, dict) for message in messages)
    assert len(ends) == 1
