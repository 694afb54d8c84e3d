"""Merged streams: nodes join again, silence ticks, a fast node waits for a slow reader."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator

import pytest

from clusterctl.errors import CouldNotTell, NodeError
from clusterctl.transport import fanout
from clusterctl.transport.fanout import MultiStream, interleave
from clusterctl.transport.interface import Reply, Request
from clusterctl.transport.pool import Pool
from clusterctl.wire import Message
from tests.fake_pool import streamed
from tests.sshd_servers import Sshd, cluster_of
from tests.waiting import wait_until

REQUEST = Request(op="tail", args={})
Stream = Generator[Message | Reply, None, None]


def ok(node: str, *messages: Message) -> Reply:
    return Reply(node=node, messages=messages)


def test_every_message_comes_in_its_nodes_order_and_then_the_reply_with_the_last() -> None:
    def start(node: str, _request: Request) -> Stream:
        for number in range(50):
            yield Message({"n": number})
        yield ok(node)

    with MultiStream(streamed(start), {"a": REQUEST, "b": REQUEST}, tick=1) as stream:
        seen = [item for item in stream if item is not None]
    for name in ("a", "b"):
        mine = [item for node, item in seen if node == name]
        messages = [Message({"n": number}) for number in range(50)]
        assert mine == [*messages, ok(name, messages[-1])]


def test_silence_ticks() -> None:
    release = threading.Event()

    def start(node: str, _request: Request) -> Stream:
        release.wait(10)
        yield ok(node)

    with MultiStream(streamed(start), {"a": REQUEST}, tick=0.01) as stream:
        assert next(stream) is None
        release.set()
        assert [item for item in stream if item is not None] == [("a", ok("a"))]


def test_a_node_that_was_lost_joins_again() -> None:
    lost = Reply.failed("a", NodeError("lost", ""))
    replies = [ok("a"), lost]

    def start(_node: str, _request: Request) -> Stream:
        yield replies.pop()

    seen = []
    with MultiStream(streamed(start), {"a": REQUEST}, tick=1) as stream:
        for item in stream:
            seen.append(item)
            if item == ("a", lost):
                stream.add("a", REQUEST, after=0.01)
    assert seen == [("a", lost), ("a", ok("a"))]


def test_a_fast_node_waits_for_a_slow_reader_and_is_left_alone_after_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fanout, "CLOSED_POLL_SECONDS", 0.01)
    sent = []
    closed = threading.Event()

    def start(_node: str, _request: Request) -> Stream:
        try:
            for number in range(10**6):
                sent.append(number)
                yield Message({"n": number})
        finally:
            closed.set()

    with MultiStream(streamed(start), {"a": REQUEST}, tick=1) as stream:
        next(stream)
        time.sleep(0.1)
        assert len(sent) < fanout.WAITING_LIMIT // fanout.LEAST_SIZE + 10
    assert closed.wait(5)


def test_what_goes_wrong_in_a_thread_is_raised_where_it_is_waited_for() -> None:
    def start(_node: str, _request: Request) -> Stream:
        raise RuntimeError("broken")
        yield

    with (
        MultiStream(streamed(start), {"a": REQUEST}, tick=1) as stream,
        pytest.raises(RuntimeError),
    ):
        next(stream)


def test_a_stream_that_rests_takes_no_thread_until_it_is_resumed() -> None:
    resumes: dict[str, Callable[[], object]] = {}

    def numbers(name: str) -> Iterator[int]:
        for number in range(3):
            yield number
            assert number == 2 or name == "b" or name in resumes, "nobody resumed it"

    def rest(name: str, resume: Callable[[], object]) -> bool:
        if name == "a" and name not in resumes:
            resumes[name] = resume
            return True
        return False

    seen = []
    for name, item in interleave({name: numbers(name) for name in "ab"}, rest=rest):
        seen.append((name, item))
        if len(seen) == 4:  # all that does not rest
            wait_until(lambda: not [t for t in threading.enumerate() if t.name == "node a"])
            resumes["a"]()
    assert [item for name, item in seen if name == "a"] == [0, 1, 2]
    assert ("a", 1) in seen[4:]


def test_a_stream_that_gets_no_thread_again_fails_where_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object, name: str) -> None:
        raise CouldNotTell(f"no thread for {name}")

    stream, resume = resting()
    monkeypatch.setattr(fanout, "start_thread", refused)
    resume()
    with pytest.raises(CouldNotTell, match="no thread for node a"):
        next(stream)


def test_a_stream_that_rests_is_not_resumed_when_its_reader_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What rests is often collected while Python exits, when no thread starts any more."""
    stream, resume = resting()
    stream.close()
    monkeypatch.setattr(fanout, "start_thread", lambda *_, **__: pytest.fail("a thread"))
    resume()


def resting() -> tuple[Generator[tuple[str, int]], Callable[[], object]]:
    """Return a stream of which one rests, and what resumes it."""
    resumes: list[Callable[[], object]] = []

    def rest(_name: str, resume: Callable[[], object]) -> bool:
        resumes.append(resume)
        return True

    stream = interleave({"a": iter([1, 2])}, rest=rest)
    assert isinstance(stream, Generator)
    assert next(stream) == ("a", 1)
    wait_until(lambda: resumes)
    return stream, resumes[0]


def test_following_again_and_again_keeps_no_session(sshd: Sshd) -> None:
    """The server allows ten; a quiet node sends nothing that would end the thread that reads."""
    request = Request(op="echo", args={})
    with Pool(cluster_of(sshd.node("n"))) as pool:
        for _ in range(12):
            with pool.following({"n": request}, tick=30) as stream:
                found = next(stream)
                assert found is not None
                assert isinstance(found[1], Message), found
        (reply,) = pool.call({"n": Request(op="hello", args={})})
    assert reply.ok, reply
