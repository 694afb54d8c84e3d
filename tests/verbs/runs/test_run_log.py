"""How much of what a node sends is kept."""

from __future__ import annotations

import time

import pytest

from clusterctl.logs.entry import Piece
from clusterctl.logs.lines import Chunk
from clusterctl.verbs.events import Event, Notice
from clusterctl.verbs.rpc import NOT_OURS
from clusterctl.verbs.runs.log_file import LINE_BYTES
from clusterctl.verbs.runs.run_log import (
    EVENTS_LIMIT,
    INVALID_LIMIT,
    LOGS_LIMIT,
    PIECES_LIMIT,
    UNFINISHED_BYTES,
    RunLog,
)
from clusterctl.wire import Message
from tests.verbs.run_answers import CLUSTER, RUN, data, ended, happened

KIB = 1024


def taken(log: RunLog, *messages: Message) -> list[Event | Piece]:
    return [said for message in messages for said in log.take("a", message, now=1.0)]


def test_of_events_without_end_only_so_many_are_kept_and_each_is_cut() -> None:
    log = RunLog(RUN, CLUSTER)
    words = "x" * (LINE_BYTES + 1)
    for number in range(EVENTS_LIMIT + 1):
        taken(log, happened(number * 50, "rank-ended", rank=0, message=words, more=words))
    kept = log.events["a"]
    assert len(kept) == EVENTS_LIMIT
    assert len(kept[0]["message"]) == LINE_BYTES
    assert "more" not in kept[0]


def test_a_node_that_names_logs_without_end_is_named_and_given_up() -> None:
    log = RunLog(RUN, CLUSTER)
    assert not any(
        isinstance(s, Notice) for n in range(LOGS_LIMIT) for s in taken(log, data(n, 0, b"x\n"))
    )
    assert not log.is_hopeless("a")
    beyond = [
        said
        for n in range(INVALID_LIMIT + 1)
        for said in taken(log, data(LOGS_LIMIT + n, 0, b"x\n"))
    ]
    (warning,) = beyond
    assert isinstance(warning, Notice)
    assert warning.text.endswith(f"it has more than {LOGS_LIMIT} logs")
    assert log.is_hopeless("a")
    assert not log.is_hopeless("b")


def test_a_node_of_a_few_strange_messages_is_read_on() -> None:
    log = RunLog(RUN, CLUSTER)
    strange = Message({"event": None})
    (warning,) = taken(log, *[strange] * INVALID_LIMIT)
    assert isinstance(warning, Notice)
    assert not log.is_hopeless("a")
    taken(log, strange)
    assert log.is_hopeless("a")


def test_packed_pieces_become_lines_with_their_own_times() -> None:
    log = RunLog(RUN, CLUSTER)
    heads = [
        ["ranks/0.log", 0, 0, 6, 100.0, 0],
        ["ranks/1.log", 1, 7, 11, 150.5, 7],
        ["ranks/0.log", 0, 6, 10, 200.0, 0],
    ]
    said = taken(log, Message({"pieces": heads}, b"one\ntwtwo\no\n3\n"))
    pieces = [(p.source.rank, p.chunk, p.time) for p in said if isinstance(p, Piece)]
    assert pieces == [
        (0, Chunk(0, b"one\n"), 100.0),
        (1, Chunk(7, b"two\n"), 150.5),
        (0, Chunk(4, b"two\n3\n"), 200.0),
    ]
    (dropped,) = [one.text for one in said if isinstance(one, Notice)]
    assert dropped == "7 bytes of ranks/1.log were dropped: the disk was full, or it was cut"
    again = log.read_request("a").args["from"]
    assert isinstance(again, dict)
    assert (again["ranks/0.log"], again["ranks/1.log"]) == (10, 11)


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        5,
        [5],
        [["ranks/0.log", 0, 0, 4, 1.0]],
        [["ranks/0.log", 0, 4, 0, 1.0, 0]],
        [["ranks/0.log", "0", 0, 4, 1.0, 0]],
        [["ranks/0.log", True, 0, 4, 1.0, 0]],
        [["ranks/0.log", 0, 0, 4, float("nan"), 0]],
        [["ranks/0.log", 0, 0, 4, 1e300, 0]],
        [["ranks/0.log", 0, -4, 0, 1.0, 0]],
        [["ranks/0.log", 0, 0, 4, 1.0, -1]],
        [[["ranks/0.log"], 0, 0, 4, 1.0, 0]],
        [["ranks/0.log", 0, 0, 5, 1.0, 0]],
        [["ranks/0.log", 0, 0, 3, 1.0, 0]],
    ],
)
def test_pieces_that_are_none_are_named(pieces: object) -> None:
    log = RunLog(RUN, CLUSTER)
    (warning,) = taken(log, Message({"pieces": pieces}, b"one\n"))
    assert isinstance(warning, Notice)
    assert warning.text.startswith(NOT_OURS)


def test_lines_without_an_end_are_kept_up_to_a_limit_for_all_logs_of_a_node() -> None:
    log = RunLog(RUN, CLUSTER)
    line = b"x" * (512 * KIB)
    count = 3 * UNFINISHED_BYTES // len(line)
    passed = taken(log, *(data(n, 0, line) for n in range(count)))
    waiting = UNFINISHED_BYTES // len(line)
    assert [piece.chunk.data for piece in passed if isinstance(piece, Piece)] == [line] * (
        count - waiting
    )
    # What follows is read from there, and the others' lines are whole.
    rest = taken(log, *(data(n, len(line), b"y\n") for n in range(count)), ended("a"))
    lines = [piece.chunk.data for piece in rest if isinstance(piece, Piece)]
    assert lines == [line + b"y\n"] * waiting + [b"y\n"] * (count - waiting)


def tiny(begin: int, count: int) -> Message:
    pieces = [["ranks/0.log", 0, at, at + 1, 1.0, 0] for at in range(begin, begin + count)]
    return Message({"pieces": pieces}, b"x" * count)


def test_logs_in_tiny_pieces_take_little_time_and_then_the_node_is_given_up() -> None:
    log = RunLog(RUN, CLUSTER)
    message = Message({"pieces": [["ranks/0.log", 0, 0, 900_000, 1.0, 0]]}, b"x" * 900_000)
    assert not taken(log, message)
    began = time.process_time()
    for number in range(5):
        assert not taken(log, tiny(900_000 + number * 20_000, 20_000)), number
    assert time.process_time() - began < 2.5  # 100,000 pieces took 10 s
    assert not log.is_hopeless("a")
    (warning,) = taken(log, tiny(1_000_000, 20_000))
    assert isinstance(warning, Notice)
    assert warning.text.endswith(f"its logs came in more than {PIECES_LIMIT} pieces")
    assert log.is_hopeless("a")
    assert not taken(log, tiny(1_020_000, 20_000))


def test_many_logs_without_line_ends_take_little_time() -> None:
    log = RunLog(RUN, CLUSTER)
    for number in range(LOGS_LIMIT - 1):
        taken(log, data(number, 0, b"x"))
    taken(log, data(LOGS_LIMIT, 0, b"x" * 100_000))
    began = time.process_time()
    for at in range(20_000):
        taken(log, data(LOGS_LIMIT, 100_000 + at, b"x"))
    assert time.process_time() - began < 2.0  # all logs were summed up for each: 4 s
