"""One call over a stream that sends whatever a hostile node may send."""

from __future__ import annotations

import itertools
import math
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest

from clusterctl.inventory.cluster import Node, Ssh
from clusterctl.transport.agent_call import AgentCall
from clusterctl.transport.fanout import ByteQueue
from clusterctl.transport.interface import Reply, Request, Timeouts
from clusterctl.transport.local_limits import start_thread
from clusterctl.transport.stream import ExitInfo, Stream
from clusterctl.wire import Message
from tests.failed_reply import error_of
from tests.waiting import wait_until

NODE = Node(host="n", name="n", ssh=Ssh())
BEAT = Message({"beat": True}).encode()
MIB = 1 << 20
PIECES_LIMIT = 10_000
"""More than any of these calls takes before it ends."""
SLACK = 64 * MIB
"""What a call may hold, whatever is announced to it."""


class Scripted(Stream):
    """Gives these pieces after the marker that it was sent; each takes a moment of `clock`."""

    def __init__(self, pieces: Callable[[bytes], Iterable[bytes]], clock: Clock) -> None:
        self._pieces = pieces
        self._clock = clock
        self._answers: Iterator[bytes] = iter(())
        self._left = PIECES_LIMIT
        self._opened = False
        self.closed = False

    def send(self, data: bytes, timeout: float) -> None:
        del timeout
        if self._opened:
            return
        self._opened = True
        _, _, rest = data.split(b"\n", 2)
        self._answers = iter(self._pieces(rest[12 : 12 + int(rest[:12])]))

    def receive(self, timeout: float) -> bytes:
        self._left -= 1
        assert self._left, "the call goes on for ever"
        piece = next(self._answers, b"")
        if piece == SILENCE:
            self._clock.now += timeout
            raise TimeoutError
        self._clock.now += min(0.1, timeout)
        return piece

    def ending(self) -> ExitInfo:
        return ExitInfo(connected=True, exit_code=7, errors=b"x" * 1000 + b"\x1b[2Jlast words")

    def close(self) -> None:
        self.closed = True


class Clock:
    """A clock that only the stream moves."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


SILENCE = b"(silence)"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("clusterctl.transport.agent_call.time", made)
    return made


def called(
    pieces: Callable[[bytes], Iterable[bytes]],
    clock: Clock,
    *,
    timeout: float = math.inf,
    due: float | None = None,
) -> tuple[Reply, int]:
    """Return how a call of such answers ends, and how many messages came before."""
    request = Request(op="status", args={})
    stream = Scripted(pieces, clock)
    call = AgentCall(NODE, stream, request, timeouts=Timeouts(), timeout=timeout)
    if due is not None:
        call.set_deadline(due)
    count = sum(1 for _ in call.messages())
    return replace(call.reply(), messages=()), count


def frame(head: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">II", len(head), len(body)) + head + body


VALUES = frame(b'{"a":[' + b"0," * 100_000 + b"0]}")

NONSENSE: dict[str, tuple[list[bytes], str, str]] = {
    "a frame of gigabytes": ([struct.pack(">II", 40, 0xFFFFFFFF)], "bad-output", "announced"),
    "a head of gigabytes": ([struct.pack(">II", 0xFFFFFFFF, 0)], "bad-output", "announced"),
    "no JSON": ([frame(b"\xff\x00{")], "bad-output", "not JSON"),
    "a list": ([frame(b"[1]")], "bad-output", "not an object"),
    "nested": ([frame(b"[" * 100_000)], "bad-output", "not JSON"),
    "a number of a million digits": ([frame(b'{"a":' + b"9" * MIB + b"}")], "bad-output", "JSON"),
    "too many values": ([frame(b'{"a":[' + b"{}," * MIB + b"0]}")], "bad-output", "values"),
    "too much JSON": ([VALUES] * 100, "bad-output", "bytes of JSON in"),
    "half a frame": ([struct.pack(">II", 40, 0), b"{"], "lost", "before its last answer"),
    "nothing": ([], "lost", "before its last answer"),
    "silence": ([SILENCE], "timeout", "no sign of life for 10 s"),
    "half a frame, then silence": ([b"\0\0", SILENCE], "timeout", "no sign of life for 10 s"),
    "a crash without a traceback": ([frame(b'{"crash": ["x"]}')], "bad-output", "x"),
    "no thread for the agent": (
        [frame(b'{"crash": "RuntimeError: can\'t start new thread"}')],
        "lost",
        "can't start new thread",
    ),
    "no such operation": (
        [frame(b'{"crash": "KeyError: \'status\'"}')],
        "older",
        "earlier version",
    ),
}


def test_much_json_may_come_with_many_other_bytes(clock: Clock) -> None:
    pieces = [frame(VALUES[8:], bytes(2 * MIB))] * 100
    reply, count = called(lambda marker: [marker, *pieces, frame(b'{"end":true}')], clock)
    assert (reply.state, count) == ("ok", 101)


def test_a_request_has_its_time_however_much_comes(clock: Clock) -> None:
    request = Request(op="exec", args={}, timeout=20.0)
    lines = itertools.repeat(frame(b'{"stream":"stdout"}', b"x" * 600))
    stream = Scripted(lambda marker: itertools.chain([marker], lines), clock)
    call = AgentCall(NODE, stream, request, timeouts=Timeouts())
    for _ in call.messages():
        call.set_deadline(math.inf)
    assert "not done in 20 s" in error_of(call.reply()).message


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_this_nodes_own_failure(name: str, clock: Clock) -> None:
    pieces, state, words = NONSENSE[name]
    reply, _ = called(lambda marker: [b"Welcome!\n" + marker, *pieces], clock)
    assert (reply.node, reply.state) == ("n", state)
    assert words in error_of(reply).message
    assert error_of(reply).message.isprintable()


@pytest.mark.parametrize(
    ("piece", "words"),
    [
        (b"x" * 65536, "more than 4194304 bytes"),
        (b"x", "no sign of life for 30 s"),
        (SILENCE, "30 s"),
    ],
)
def test_a_shell_that_prints_without_end_is_given_up(
    piece: bytes, words: str, clock: Clock
) -> None:
    reply, _ = called(lambda _marker: itertools.repeat(piece), clock)
    assert words in error_of(reply).message
    assert clock.now - 1000.0 < 70


@pytest.mark.parametrize(
    ("first", "piece"),
    [(b"", BEAT), (b"\0\0\x10\0", b"\0"), (b"", frame(b'{"more": 1}'))],
    ids=["heartbeats", "a drip", "answers"],
)
def test_answers_without_end_end_with_the_time_for_them(
    first: bytes, piece: bytes, clock: Clock
) -> None:
    """A byte now and then is a sign of life, and so is a heartbeat; neither is the answer."""
    reply, _ = called(
        lambda marker: itertools.chain([marker + first], itertools.repeat(piece)), clock, timeout=60
    )
    assert (reply.state, error_of(reply).phase) == ("timeout", "answer")
    assert clock.now - 1000.0 <= 61


@pytest.mark.parametrize(
    ("first", "piece"), [(b"", BEAT), (b"\0\0\x10\0", b"\0")], ids=["heartbeats", "a drip"]
)
def test_an_answer_that_is_due_is_not_awaited_longer(
    first: bytes, piece: bytes, clock: Clock
) -> None:
    reply, _ = called(
        lambda marker: itertools.chain([marker + first], itertools.repeat(piece)), clock, due=20
    )
    assert reply.state == "timeout"
    assert clock.now - 1000.0 <= 21


def test_what_is_due_is_the_next_answer_only(clock: Clock) -> None:
    """A run may say nothing for hours, once it has answered."""
    pieces = [frame(b'{"here": true}'), *[BEAT] * 1000, frame(b'{"end": true}')]
    reply, count = called(lambda marker: [marker, *pieces], clock, due=20)
    assert (reply.state, count) == ("ok", 2)


RESTS = frame(b'{"n": 1, "rests": true}')


@pytest.mark.parametrize(
    ("pieces", "state", "count"),
    [
        ([RESTS, *[SILENCE] * 50, frame(b'{"end": true}')], "ok", 2),
        ([RESTS, SILENCE, b"asked", SILENCE, SILENCE, frame(b'{"end": true}')], "timeout", 1),
        ([RESTS, SILENCE, b"asked", BEAT, SILENCE, frame(b'{"end": true}')], "timeout", 1),
    ],
    ids=["not asked", "asked, and silent", "asked, alive, and silent"],
)
def test_a_node_that_waits_for_us_may_be_silent_until_it_is_asked(
    pieces: list[bytes], state: str, count: int, clock: Clock
) -> None:
    def given(marker: bytes) -> Iterator[bytes]:
        yield marker
        for piece in pieces:
            if piece == b"asked":
                call.send(Message({"step": "meet"}))
            else:
                yield piece

    call = AgentCall(
        NODE, Scripted(given, clock), Request(op="status", args={}), timeouts=Timeouts()
    )
    messages = list(call.messages())
    assert (call.reply().state, len(messages)) == (state, count)
    assert "rests" not in messages[0].head


def resting(*pieces: bytes) -> tuple[AgentCall, Iterator[Message]]:
    """Return a call whose node has said that it waits for us."""
    stream = Scripted(lambda marker: [marker, RESTS, *pieces], Clock())
    call = AgentCall(NODE, stream, Request(op="status", args={}), timeouts=Timeouts())
    messages = call.messages()
    assert next(messages).head == {"n": 1}
    return call, messages


@pytest.mark.parametrize(
    "end",
    [
        lambda call: call.send(Message({})),
        lambda call: call.set_deadline(60),
        lambda call: call.close(),
    ],
    ids=["asked", "due", "closed"],
)
def test_nobody_reads_a_node_that_waits_for_us_until_it_owes_something(
    end: Callable[[AgentCall], None],
) -> None:
    call, _ = resting()
    resumed: list[None] = []
    call.set_deadline(math.inf)
    assert call.rest(lambda: resumed.append(None))
    assert not resumed
    for _ in range(2):
        end(call)
        assert len(resumed) == 1
    assert not call.rest(lambda: None)


def test_a_node_that_says_that_it_waits_with_its_last_answer_is_read_to_its_end() -> None:
    call, messages = resting(frame(b'{"end": true, "rests": true}'))
    assert len(list(messages)) == 1
    assert not call.rest(lambda: None)


def test_a_node_that_says_that_it_waits_and_is_lost_rests_no_more() -> None:
    """Or its reader would leave before the reply, and all would wait for it."""
    call, messages = resting()
    assert list(messages) == []
    assert call.reply().state == "lost"
    assert not call.rest(lambda: None)


def test_who_waits_for_a_node_holds_none_of_its_answers() -> None:
    """A thousand nodes wait for the slowest one."""
    release = threading.Event()

    def pieces(marker: bytes) -> Iterator[bytes]:
        yield marker
        yield frame(b'{"n": 1}', bytes(32 * MIB))
        release.wait(60)
        yield frame(b'{"end": true}')

    stream = Scripted(pieces, Clock())
    call = AgentCall(
        NODE, stream, Request(op="status", args={}, body_limit=64 * MIB), timeouts=Timeouts()
    )
    queue: ByteQueue[Message] = ByteQueue()
    tracemalloc.start()
    try:
        thread = start_thread(queue.drain, "n", call.messages(), name="reader")
        item = queue.get(timeout=60)
        assert tracemalloc.get_traced_memory()[0] > 32 * MIB
        del item
        wait_until(lambda: tracemalloc.get_traced_memory()[0] < 16 * MIB)
    finally:
        tracemalloc.stop()
        release.set()
        thread.join(60)


def test_a_node_that_rests_leaves_none_of_its_answers_here() -> None:
    """No thread reads it, and the iterator stands where it gave the last one."""

    def pieces(marker: bytes) -> Iterator[bytes]:
        yield marker
        yield frame(b'{"n": 1, "rests": true}', bytes(32 * MIB))

    stream = Scripted(pieces, Clock())
    request = Request(op="status", args={}, body_limit=64 * MIB)
    messages = AgentCall(NODE, stream, request, timeouts=Timeouts()).messages()
    tracemalloc.start()
    try:
        message = next(messages)
        assert tracemalloc.get_traced_memory()[0] > 32 * MIB
        del message
        assert tracemalloc.get_traced_memory()[0] < 16 * MIB
    finally:
        tracemalloc.stop()


def test_gigabytes_that_are_announced_take_no_memory(clock: Clock) -> None:
    tracemalloc.start()
    try:
        for length in (0xFFFFFFFF, 300 * MIB):
            announced = struct.pack(">II", 2, length) + b"{}"
            endless = itertools.chain([announced], itertools.repeat(b"x" * MIB))
            reply, _ = called(lambda marker, e=endless: itertools.chain([marker], e), clock)  # type: ignore[misc]
            assert reply.state == "bad-output"
        assert tracemalloc.get_traced_memory()[1] < SLACK
    finally:
        tracemalloc.stop()
