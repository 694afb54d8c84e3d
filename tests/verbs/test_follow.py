"""Following a run: every line once, through broken connections, until all parts have ended."""

from __future__ import annotations

import math
import os
import random
import threading
import time
import tracemalloc
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from clusterctl.errors import NodeError
from clusterctl.logs.deduplicate import PassThrough
from clusterctl.logs.entry import Filter
from clusterctl.report.lines import Prefixed
from clusterctl.transport.fanout import MultiStream
from clusterctl.transport.interface import Reply, Request
from clusterctl.verbs import follow as module
from clusterctl.verbs.events import Event, NodeEvent, Notice
from clusterctl.verbs.follow import LogLines, MergedLines, NodeBack, NodeLost, follow
from clusterctl.verbs.runs import run_log
from clusterctl.verbs.runs.run_log import RunLog
from clusterctl.wire import Message
from tests.fake_pool import FakePool, streamed
from tests.verbs.run_answers import CLUSTER, RUN, data, drained, ended, happened


class Streaming(FakePool):
    """A pool whose nodes send what a generator makes, so that no message is there beforehand."""

    def __init__(self, start: Callable[[str], Iterator[Message]]) -> None:
        super().__init__(CLUSTER, {})
        self._messages = start

    def following(
        self, requests: Mapping[str, Request], *, tick: float, answer_timeout: float = math.inf
    ) -> MultiStream:
        return MultiStream(
            streamed(self._stream), requests, tick=tick, answer_timeout=answer_timeout
        )

    def _stream(self, node: str, _request: Request) -> Generator[Message | Reply, None, None]:
        yield from self._messages(node)
        yield ended(node)
        yield Reply(node=node)


def lines(events: list[Event]) -> list[str]:
    return [
        f"[{line.label}] {line.line.text}"
        for event in events
        if isinstance(event, LogLines)
        for line in event.lines
    ]


def tails(**answers: Any) -> FakePool:
    return FakePool(CLUSTER, {node: {"tail": answer} for node, answer in answers.items()})


def test_lines_are_prefixed_and_equal_ones_folded() -> None:
    pool = tails(
        a=[data(0, 0, b"same\nmine\n"), ended("a")],
        b=[data(1, 0, b"same\n"), data(1, 5, b"no end"), ended("b")],
    )
    log = RunLog(RUN, CLUSTER)
    seen, errors = drained(follow, pool, log)
    assert sorted(lines(seen)) == ["[*:0-1] same", "[a:0] mine", "[b:1] no end"]
    assert errors == {}
    assert log.node_runs["a"].state == "finished"


def test_a_lost_connection_goes_on_where_the_last_whole_line_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BACKOFF", (0.01,))
    asked: list[Any] = []

    def answer(request: Request) -> list[Message] | Reply:
        begin = request.args["from"]
        assert isinstance(begin, dict)
        asked.append(begin)
        if len(asked) == 1:
            broken = (happened(0, "supervisor-up"), data(1, 0, b"one\ntwo\nthr"))
            return replace(Reply.failed("b", NodeError("lost", "answer", "cut")), messages=broken)
        if len(asked) == 2:
            return Reply.failed("b", NodeError("refused", "connect"))
        offset = begin["ranks/1.log"]
        whole = b"one\ntwo\nthree\n"
        return [data(1, offset, whole[offset:]), happened(50, "end"), ended("b")]

    pool = tails(a=[ended("a")], b=answer)
    seen, errors = drained(follow, pool, RunLog(RUN, CLUSTER))
    assert lines(seen) == ["[b:1] one", "[b:1] two", "[b:1] three"]
    assert asked[1:] == [{"events.jsonl": 50, "ranks/1.log": 8}] * 2
    assert [event for event in seen if isinstance(event, NodeLost | NodeBack)] == [
        NodeLost(node="b", message="cut"),
        NodeBack(node="b"),
    ]
    assert [event.event["kind"] for event in seen if isinstance(event, NodeEvent)] == [
        "supervisor-up",
        "end",
    ]
    assert errors == {}


def test_a_login_that_fails_after_a_cut_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop that slept wakes up with a locked agent: the first connection breaks, then auth."""
    monkeypatch.setattr(module, "BACKOFF", (0.01,))
    monkeypatch.setattr(module, "LOCKED_RETRY", 0.3)
    monkeypatch.setattr(module, "LAST_WAIT", 0.0)
    monkeypatch.setattr(module, "LONGEST_WAIT", 0.5)
    asked: dict[str, int] = {"a": 0, "b": 0}

    def answer(node: str) -> list[Message] | Reply:
        asked[node] += 1
        if asked[node] == 1:
            return Reply.failed(node, NodeError("lost", "answer", "cut"))
        if asked[node] < 5:
            return Reply.failed(node, NodeError("auth", "auth", "no key to offer"))
        return [ended(node)]

    pool = tails(a=lambda _: answer("a"), b=lambda _: answer("b"))
    seen, errors = drained(follow, pool, RunLog(RUN, CLUSTER))
    assert errors == {}
    assert asked == {"a": 5, "b": 5}
    (notice,) = [event for event in seen if isinstance(event, Notice)]
    assert "no key to offer" in notice.text
    assert notice.text.endswith("ssh-add")
    assert {event.node for event in seen if isinstance(event, NodeBack)} == {"a", "b"}


def test_an_agent_that_stays_locked_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF", (0.01,))
    monkeypatch.setattr(module, "LOCKED_RETRY", 0.01)
    monkeypatch.setattr(module, "LOCKED_WAIT", 0.1)
    asked = 0

    def answer(_: Request) -> Reply:
        nonlocal asked
        asked += 1
        state: Literal["lost", "auth"] = "lost" if asked == 1 else "auth"
        return Reply.failed("b", NodeError(state, "auth"))

    pool = tails(a=[ended("a")], b=answer)
    _, errors = drained(follow, pool, RunLog(RUN, CLUSTER))
    assert list(errors) == ["b"]
    assert asked > 2


def test_a_login_that_never_worked_is_final() -> None:
    pool = tails(a=[ended("a")], b=Reply.failed("b", NodeError("auth", "auth", "no key")))
    _, errors = drained(follow, pool, RunLog(RUN, CLUSTER))
    assert errors["b"].state == "auth"


def test_a_node_whose_answers_are_none_of_ours_is_not_asked_again() -> None:
    failure = Reply.failed("b", NodeError("bad-output", "answer", "not ours"))
    pool = tails(a=[ended("a")], b=failure)
    seen, errors = drained(follow, pool, RunLog(RUN, CLUSTER))
    assert errors["b"].message == "not ours"
    assert not [event for event in seen if isinstance(event, NodeLost)]


def test_bytes_that_come_twice_are_shown_once_and_missing_ones_are_said() -> None:
    pool = tails(
        a=[data(0, 0, b"one\ntw"), data(0, 4, b"two\n"), data(0, 100, b"later\n"), ended("a")],
        b=[ended("b")],
    )
    seen, _ = drained(follow, pool, RunLog(RUN, CLUSTER))
    assert lines(seen) == ["[a:0] one", "[a:0] two", "[a:0] later"]
    (warning,) = [event for event in seen if isinstance(event, Notice)]
    assert "92 bytes of ranks/0.log are missing" in warning.text


def test_bytes_that_were_dropped_to_make_room_are_reported_once() -> None:
    late = data(0, 4096, b"later\n")
    late.head["dropped"] = 4092
    pool = tails(a=[data(0, 0, b"one\n"), late, ended("a")], b=[ended("b")])
    seen, _ = drained(follow, pool, RunLog(RUN, CLUSTER))
    assert lines(seen) == ["[a:0] one", "[a:0] later"]
    (warning,) = [event for event in seen if isinstance(event, Notice)]
    assert (
        warning.text == "4092 bytes of ranks/0.log were dropped: the disk was full, or it was cut"
    )


def test_a_node_that_stays_lost_is_given_up_after_the_others_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BACKOFF", (0.01,))
    monkeypatch.setattr(module, "LAST_WAIT", 0.05)
    pool = tails(a=[ended("a")], b=Reply.failed("b", NodeError("timeout", "connect")))
    _, errors = drained(follow, pool, RunLog(RUN, CLUSTER))
    assert list(errors) == ["b"]
    assert not errors["b"].answered


def test_a_node_that_refuses_is_not_asked_again() -> None:
    error = Message({"error": {"kind": "no-run", "message": "no such run here"}})
    pool = tails(a=[ended("a")], b=[error])
    seen, errors = drained(follow, pool, RunLog(RUN, CLUSTER))
    assert errors["b"].state == "no-run"
    assert [event.text for event in seen if isinstance(event, Notice)] == ["no such run here"]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [(Filter(ranks=frozenset({1})), ["[b:1] b at 20"]), (Filter(since=15.0), ["[b:1] b at 20"])],
)
def test_only_what_is_wanted_is_shown(wanted: Filter, expected: list[str]) -> None:
    pool = tails(
        a=[data(0, 0, b"a at 10\n", time=10.0), ended("a")],
        b=[data(1, 0, b"b at 20\n", time=20.0), ended("b")],
    )
    seen, _ = drained(follow, pool, RunLog(RUN, CLUSTER), MergedLines(wanted))
    assert lines(seen) == expected


def test_lines_are_ordered_on_the_masters_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REORDER_SECONDS", 60.0)  # however busy this machine is
    ahead = happened(0, "clock", offset_s=60.0, error_s=0.01)
    pool = tails(
        a=[data(0, 0, b"second\n", time=20.0), ended("a")],
        b=[ahead, data(1, 0, b"first\n", time=70.0), ended("b")],
    )
    seen, _ = drained(follow, pool, RunLog(RUN, CLUSTER), MergedLines(sink=PassThrough()))
    assert lines(seen) == ["[b:1] first", "[a:0] second"]


def test_what_was_read_says_the_first_cause() -> None:
    bad = happened(0, "rank-ended", rank=1, exit_code=3)
    stop = happened(0, "rank-ended", rank=0, signal=15, ordered=True)
    pool = tails(
        a=[stop, ended("a", "stopped")],
        b=[data(1, 0, b"ValueError: no\n"), bad, ended("b", "failed")],
    )
    log = RunLog(RUN, CLUSTER)
    drained(follow, pool, log)
    cause = log.first_cause()
    assert cause is not None
    assert (cause.node, cause.rank, cause.exit_status) == ("b", 1, 3)
    assert "ValueError: no" in cause.message


def test_an_interrupted_follower_goes_on_without_losing_or_doubling_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "REORDER_SECONDS", 0.0)  # every message is an event of its own
    whole = b"".join(b"line %d\n" % n for n in range(100))

    def answer(request: Request) -> list[Message]:
        begin = request.args["from"]
        assert isinstance(begin, dict)
        offset = begin.get("ranks/0.log", 0)
        cuts = range(offset, len(whole), 37)
        return [data(0, at, whole[at : min(at + 37, len(whole))]) for at in cuts] + [ended("a")]

    pool = tails(a=answer, b=[ended("b")])
    log, shown = RunLog(RUN, CLUSTER), MergedLines(sink=PassThrough())
    first = follow(pool, log, shown, errors={})
    seen = [next(first) for _ in range(3)]
    first.close()
    rest, _ = drained(follow, pool, log, shown)
    assert lines([*seen, *rest]) == [f"[a:0] line {n}" for n in range(100)]


def test_a_node_that_is_back_but_has_nothing_to_say_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BACKOFF", (0.01,))
    monkeypatch.setattr(module, "LONGEST_WAIT", 0.1)
    over = threading.Event()
    calls = []

    def answer(node: str, _request: Request) -> Generator[Message | Reply, None, None]:
        calls.append(node)
        if len(calls) <= 2:
            yield Reply.failed(node, NodeError("lost", "answer"))
            return
        yield Message({"here": True})
        over.wait(1.0)
        yield ended(node)
        yield Reply(node=node)

    class Quiet(FakePool):
        """A pool of nodes that are silent for a while."""

        def following(
            self, requests: Mapping[str, Request], *, tick: float, answer_timeout: float = math.inf
        ) -> MultiStream:
            return MultiStream(streamed(answer), requests, tick=tick, answer_timeout=answer_timeout)

    seen, errors = drained(follow, Quiet(CLUSTER, {}), RunLog(RUN, CLUSTER))
    assert errors == {}
    assert sum(isinstance(event, NodeBack) for event in seen) == 2


def memory(folded_lines: int) -> tuple[int, int]:
    """Return the bytes kept, and at most, once lines of 3 of 64 ranks were followed and printed."""

    def messages(node: str) -> Iterator[Message]:
        if node != "a":
            return
        chance = random.Random(0)
        offsets = [0] * 64
        for step in range(folded_lines):
            body = b"step %6d\n" % step
            for number in chance.sample(range(64), 3):
                yield data(number, offsets[number], body, time=float(step))
                offsets[number] += len(body)

    with Path(os.devnull).open("w") as sink:
        printer, lines, log = Prefixed(sink), MergedLines(), RunLog(RUN, CLUSTER)
        tracemalloc.start()
        try:
            for event in follow(Streaming(messages), log, lines, errors={}):
                if isinstance(event, LogLines):
                    printer.show(event.lines)
                del event
            return tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()


def test_memory_does_not_grow_with_the_number_of_folded_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_log, "KEPT_LINES", 10)  # soon every rank has written so many
    few, _ = memory(300)
    many, most = memory(1300)
    assert many < few + 62_500
    assert most < 5_000_000


def test_a_node_that_stays_lost_is_tried_as_long_as_another_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BACKOFF", (0.01,))
    monkeypatch.setattr(module, "LAST_WAIT", 0.0)
    monkeypatch.setattr(module, "LONGEST_WAIT", 0.0)
    tries = 0

    def answer(_request: Request) -> list[Message] | Reply:
        nonlocal tries
        tries += 1
        return [ended("b")] if tries == 5 else Reply.failed("b", NodeError("lost", "answer"))

    def running(node: str) -> Iterator[Message]:
        while tries < 5:
            yield Message({"here": True})
            time.sleep(0.01)

    class OneLost(Streaming):
        def _stream(self, node: str, request: Request) -> Generator[Message | Reply, None, None]:
            if node == "a":
                yield from super()._stream(node, request)
                return
            found = answer(request)
            if isinstance(found, Reply):
                yield found
            else:
                yield from found
                yield Reply(node=node)

    _, errors = drained(follow, OneLost(running), RunLog(RUN, CLUSTER))
    assert (tries, errors) == (5, {})


@pytest.mark.parametrize(("state", "count"), [("finished", 0), ("failed", 2)])
def test_torchs_exit_barrier_is_left_out_only_once_the_run_has_finished(
    state: str, count: int
) -> None:
    page = b"E1 x] Error waiting on exit barrier. Elapsed: 1 seconds\nE1 x] Traceback (most\n"
    page = page.replace(b"E1 ", b"E1122 07:07:27.8 3 ")
    launcher = Message({"data": "launcher.log", "rank": None, "offset": 0}, page)
    pool = tails(a=[launcher, ended("a")], b=[ended("b", state)])
    seen, _ = drained(follow, pool, RunLog(RUN, CLUSTER))
    assert len(lines(seen)) == count
    seen, _ = drained(follow, pool, RunLog(RUN, CLUSTER), MergedLines(sink=PassThrough()))
    assert len(lines(seen)) == 2
