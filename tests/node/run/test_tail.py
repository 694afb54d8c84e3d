"""`tail`: each byte once, in its place, soon after it was written."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.node.agent.call_channel import CallChannel
from clusterctl.node.run.files.run_paths import dropped_of, times_of
from clusterctl.node.run.operations import tail
from clusterctl.transport.connection import LocalConnection
from clusterctl.transport.interface import Request, Timeouts
from clusterctl.wire import Message
from tests.installed import LOCATION
from tests.node.conftest import Head, Run
from tests.waiting import wait_until

MakeRun = Callable[..., Run]

CHATTER = r"""
import os, sys
for n in range(20000):
    end = b"\r" if n % 7 == 0 else b"\n"
    os.write(1 + n % 2, b"%05d \xff\xc3 %s%s" % (n, b"x" * (n % 97), end))
"""

SLOW = r"""
import os, time
for n in range(60):
    os.write(1, b"%d %f\n" % (n, time.time())); time.sleep(0.02)  # whole: print writes in parts
"""


def data_of(messages: list[Message], name: str) -> list[tuple[int, bytes]]:
    return [(m.head["offset"], m.body) for m in messages if m.head.get("data") == name]


def test_following_gives_every_byte_once(make_run: MakeRun) -> None:
    run = make_run(CHATTER, procs=2).start()
    messages = run.tail(follow=True)
    assert messages[-1].head["node"]["state"] == "finished"
    for rank in (0, 1):
        at = 0
        for offset, body in data_of(messages, f"ranks/{rank}.log"):
            assert offset == at
            assert 0 < len(body) <= tail.CHUNK
            at += len(body)
        content = b"".join(body for _, body in data_of(messages, f"ranks/{rank}.log"))
        assert content == run.log(rank)
        assert len(content) > 1_000_000
    kinds = [m.head["event"]["kind"] for m in messages if "event" in m.head]
    assert kinds.count("rank-ended") == 2
    assert kinds[-1] == "end"


def test_a_follower_that_comes_back_goes_on_where_it_was(make_run: MakeRun) -> None:
    run = make_run(SLOW).start()
    content, offsets = b"", {"ranks/0.log": 0, "events.jsonl": 0}
    events: list[Head] = []
    while not events or events[-1]["kind"] != "end":
        for message in run.tail(since=offsets):
            head = message.head
            if "data" in head:
                assert head["offset"] == offsets.get(head["data"], 0)
                offsets[head["data"]] = head["next"]
                content += message.body if head["data"] == "ranks/0.log" else b""
            elif "event" in head:
                assert head["offset"] == offsets["events.jsonl"]
                offsets["events.jsonl"] = head["next"]
                events.append(head["event"])
    assert content == run.log(0)
    assert [e["kind"] for e in events] == ["supervisor-up", "rank-started", "rank-ended", "end"]


def test_a_clock_that_is_set_back_puts_no_bytes_before_earlier_ones(make_run: MakeRun) -> None:
    run = make_run("print('one')").start()
    run.ended()
    log = Path(run.paths().folder, "ranks/0.log")
    noted = Path(run.paths().folder, times_of("ranks/0.log"))
    now = time.time()
    log.write_bytes(b"one\ntwo\nthree\n")
    noted.write_text(f"{now} 4\n{now - 60} 8\n")
    os.utime(log, (now - 90, now - 90))
    assert data_of(run.tail(), "ranks/0.log") == [(0, b"one\n"), (4, b"two\n"), (8, b"three\n")]


def test_what_is_followed_has_the_times_at_which_it_was_written(make_run: MakeRun) -> None:
    run = make_run("print('one')").start()
    run.ended()
    log = Path(run.paths().folder, "ranks/0.log")
    noted = Path(run.paths().folder, times_of("ranks/0.log"))
    link = Sent()
    reader = tail.LogTail(run.paths(), link, {"ranks/0.log": 4}, None)
    log.write_bytes(b"one\ntwo\nthree\n")
    many = "".join(f"{900 + n / 1000} {n / 1000}\n" for n in range(400))  # more than is read
    noted.write_text(f"{many}1000.01 4\n1000.21 8\n1000.41 14\n")
    reader.send_new()
    sent = [(m.head["time"], m.body) for m in link.messages if "data" in m.head]
    assert sent == [(1000.21, b"two\n"), (1000.41, b"three\n")]


def test_a_record_of_times_that_a_power_failure_spoilt_hides_no_log(make_run: MakeRun) -> None:
    run = make_run("print('one')").start()
    run.ended()
    noted = Path(run.paths().folder, times_of("ranks/0.log"))
    noted.write_bytes(b"12.5 2\n" + bytes(40) + b"\n12.6\n")
    assert data_of(run.tail(), "ranks/0.log") == [(0, b"on"), (2, b"e\n")]


def test_the_end_of_a_log_is_a_negative_offset(make_run: MakeRun) -> None:
    run = make_run("print('0123456789')").start()
    run.ended()
    from_end = run.tail(since={"ranks/0.log": -4, "launcher.log": -100})
    assert data_of(from_end, "ranks/0.log") == [(7, b"789\n")]
    assert data_of(run.tail(files=["launcher.log"]), "ranks/0.log") == []


def test_a_line_is_there_soon_and_history_knows_when_it_was_written(make_run: MakeRun) -> None:
    run = make_run(SLOW).start()
    connection = LocalConnection(run.cluster.nodes[0], timeouts=Timeouts())
    call = connection.call(Request(op="tail", args={**run.where(), "follow": True}))
    delays = []
    for message in call.messages():
        if message.head.get("data") == "ranks/0.log":
            arrived = time.time()
            delays += [arrived - float(line.split()[1]) for line in message.body.splitlines()]
    call.close()
    assert len(delays) == 60
    # 0.05 s on a machine with nothing else to do; a heartbeat alone would bring it after 2 s.
    assert statistics.median(delays[10:]) < 1.5
    for message in run.tail():
        if message.head.get("data") == "ranks/0.log":
            first = float(message.body.split()[1])
            assert first - 0.1 <= message.head["time"] <= first + 5


def test_history_of_several_ranks_comes_in_the_order_of_writing(make_run: MakeRun) -> None:
    turns = """
import os, time
rank = int(os.environ["RANK"])
for n in range(3):
    turn = 2 * n + rank
    while turn and not os.path.exists("turn%d" % turn): time.sleep(0.01)
    # Far enough apart for a record of times that is taken twice a second.
    print(n); time.sleep(1); open("turn%d" % (turn + 1), "w").close()
"""
    run = make_run(turns, procs=2).start()
    run.ended()
    order = [m.head["rank"] for m in run.tail() if m.head.get("rank") is not None]
    assert order == [0, 1] * 3


def test_a_run_whose_supervisor_and_guard_are_dead_is_told_to_its_end(make_run: MakeRun) -> None:
    run = make_run("import time; print('here'); time.sleep(300)").start()
    run.wait_for_log(0, b"here")
    run.kill_supervisor_and_guard()
    messages = run.tail(follow=True)
    assert messages[-1].head["node"]["state"] == "lost"
    assert data_of(messages, "ranks/0.log") == [(0, b"here\n")]
    wait_until(lambda: not run.left())


def open_files() -> list[Path]:
    return list(Path("/proc/self/fd").iterdir())


class Sent(CallChannel):
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def send(self, message: Message) -> None:
        self.messages.append(message)


def test_more_logs_than_may_be_open_at_once_are_read_whole(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run("print('here')", procs=2).start()
    run.ended()
    monkeypatch.setattr(tail, "MAX_OPEN", 1)
    link, before = Sent(), len(open_files())
    reader = tail.LogTail(run.paths(), link, {}, None)
    reader.send_history()
    for rank in (0, 1):
        assert data_of(link.messages, f"ranks/{rank}.log") == [(0, run.log(rank))]
    assert len(open_files()) <= before + 1
    reader.close()
    assert len(open_files()) <= before  # what other tests left may be collected meanwhile


def test_files_to_copy_come_one_after_the_other_in_large_pieces(make_run: MakeRun) -> None:
    run = make_run(CHATTER, procs=2).start()
    run.ended()
    for rank in (0, 1):
        sizes = range(0, len(run.log(rank)), 1000)
        noted = Path(run.paths().folder, times_of(f"ranks/{rank}.log"))
        noted.write_text("".join(f"{1000 + size}.{rank} {size}\n" for size in sizes))
    messages = run.call(0, "tail", {**run.where(0), "by_file": True})
    order = [m.head["rank"] for m in messages if m.head.get("rank") is not None]
    assert order == sorted(order)
    assert len(order) < 20
    for rank in (0, 1):
        sent = data_of(messages, f"ranks/{rank}.log")
        assert b"".join(body for _, body in sent) == run.log(rank)


def test_packed_pieces_are_those_that_would_come_one_by_one(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(CHATTER, procs=2).start()
    run.ended()
    for rank in (0, 1):
        sizes = range(0, len(run.log(rank)), 1000)
        noted = Path(run.paths().folder, times_of(f"ranks/{rank}.log"))
        noted.write_text("".join(f"{1000 + size}.{rank} {size}\n" for size in sizes))
    dropped = Path(run.paths().folder, dropped_of("ranks/1.log"))
    dropped.write_text("500\n")
    one_by_one = [m for m in run.call(0, "tail", run.where(0)) if "data" in m.head]
    monkeypatch.setattr(tail, "MAX_PACKED", 7)
    link = Sent()
    tail.LogTail(run.paths(), link, {}, None).send_history(packed=True)
    pieces = [(piece, m.body) for m in link.messages for piece in m.head["pieces"]]
    keys = ("data", "rank", "offset", "next", "time")
    assert [piece for piece, _ in pieces] == [
        [*(m.head[key] for key in keys), m.head.get("dropped", 0)] for m in one_by_one
    ]
    assert b"".join(m.body for m in link.messages) == b"".join(m.body for m in one_by_one)
    assert sum(piece[5] for piece, _ in pieces) == 500
    assert max(len(m.head["pieces"]) for m in link.messages) == 7
    packed = [m for m in run.call(0, "tail", {**run.where(0), "packed": True}) if m.body]
    assert len(packed) < len(one_by_one) / 50


def test_a_log_that_is_dropped_while_it_is_sent_loses_no_byte_that_was_read(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes read ahead were whole when they were read; the next ones are read with the mark."""
    run = make_run("print('x' * 99999)").start()
    run.ended()
    log = Path(run.paths().folder, "ranks/0.log")
    noted = Path(run.paths().folder, times_of("ranks/0.log"))
    noted.write_text("".join(f"{size}.0 {size}\n" for size in range(0, 100_000, 1000)))
    monkeypatch.setattr(tail, "CHUNK", 4000)
    link = Sent()
    reader = tail.LogTail(run.paths(), link, {}, None)
    whole = log.read_bytes()

    def drop(message: Message) -> None:
        link.messages.append(message)
        if message.head["next"] == 2000:
            Path(run.paths().folder, dropped_of("ranks/0.log")).write_text("9000\n")
            log.write_bytes(bytes(9000) + whole[9000:])

    monkeypatch.setattr(link, "send", drop)
    reader.send_history()
    sent = data_of(link.messages, "ranks/0.log")
    assert all(body == whole[offset : offset + len(body)] for offset, body in sent)
    assert sum(m.head.get("dropped", 0) for m in link.messages) == 5000


def test_reading_a_run_that_has_ended_imports_only_what_starts_quickly() -> None:
    code = "import sys, clusterctl.node.run.operations.tail; print(sorted({%s} & set(sys.modules)))"
    slow = "'typing', 'json', 're', 'enum', 'socket', 'ctypes', 'signal', 'contextlib'"
    folder = LOCATION
    program = f"import sys; sys.path.insert(0, {str(folder)!r}); " + code % slow
    # The package's own file is the controller's; a node has none.
    program = program.replace(
        "import sys, clusterctl.node.run.operations.tail",
        "import types; package = types.ModuleType('clusterctl'); "
        f"package.__path__ = [{str(folder / 'clusterctl')!r}]; "
        "sys.modules['clusterctl'] = package; import clusterctl.node.run.operations.tail",
    )
    argv = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_cut_event_line_waits_for_its_rest(make_run: MakeRun) -> None:
    run = make_run("pass").start()
    run.ended()
    events = Path(run.paths().events)
    whole = events.read_bytes()
    events.write_bytes(whole + b'{"time": 1, "ki')
    heads = [m.head for m in run.tail() if "event" in m.head]
    assert heads[-1]["event"]["kind"] == "end"
    assert heads[-1]["next"] == len(whole)


def test_the_last_lines_of_every_log_are_sent_however_long_they_are(make_run: MakeRun) -> None:
    run = make_run(CHATTER, procs=2).start()
    run.ended()
    log = Path(run.paths().folder) / "ranks/0.log"
    log.write_bytes(b"".join(b"%d" % number * 50_000 + b"\n" for number in range(1, 10)))
    messages = run.call(0, "tail", {**run.where(0), "from": {"ranks/1.log": 7}, "lines": 3})
    sent = b"".join(body for _, body in data_of(messages, "ranks/0.log"))
    assert log.read_bytes().endswith(sent)
    assert [line[:1] for line in sent.splitlines()[1:]][-3:] == [b"7", b"8", b"9"]
    assert len(sent) < log.stat().st_size
    assert data_of(messages, "ranks/1.log")[0][0] == 7


def test_following_ends_where_a_log_cannot_be_read(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as on a stale NFS handle: there are bytes, and none come."""
    run = make_run("print('x')").start()
    run.ended()
    reader = tail.LogTail(run.paths(), Sent(), {}, None)
    monkeypatch.setattr(reader, "_pread", lambda *_: b"")
    reader.send_events()
    assert not reader.send_new()
