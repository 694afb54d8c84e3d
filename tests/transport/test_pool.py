"""One connection per node, one reply per node, over real sshd servers."""

from __future__ import annotations

import math
import os
import signal
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from clusterctl.errors import CouldNotTell
from clusterctl.inventory.cluster import Node, Ssh
from clusterctl.sync.mirror import Placement
from clusterctl.sync.two_phase import TwoPhaseCommit
from clusterctl.transport.connection import Connection, LocalConnection
from clusterctl.transport.interface import Call, Reply, Request
from clusterctl.transport.local_limits import start_thread
from clusterctl.transport.pool import Pool
from clusterctl.transport.ssh.paramiko_connection import ParamikoConnection
from clusterctl.wire import Message
from tests.failed_reply import error_of
from tests.fake_pool import FakeCall
from tests.sshd_servers import USER, Sshd, cluster_of
from tests.waiting import wait_until

HOSTILE = ["", " ", "a b", "'", '"', "$HOME", "`id`", ";", "*", "\n", '{"a": 1}', "é\udcff", "\\"]


def test_an_operation_gets_its_arguments_byte_for_byte(sshd: Sshd) -> None:
    request = Request(op="hello", args={"argv": HOSTILE}, body=bytes(range(256)))
    with Pool(cluster_of(sshd.node("n"))) as pool:
        (reply,) = pool.call({"n": request})
    assert reply.ok, reply
    assert reply.last.head["args"] == {"argv": HOSTILE}
    assert reply.last.body == bytes(range(256))


def test_answers_without_end_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(host="n", name="n", ssh=Ssh(), local=True)
    size, count = 1 << 20, 300

    class Flooding(FakeCall):
        def messages(self) -> Iterator[Message]:
            for number in range(count):
                yield Message({"number": number}, bytes(size))

    monkeypatch.setattr(LocalConnection, "call", lambda *_, **__: Flooding(node, []))
    tracemalloc.start()
    try:
        with Pool(cluster_of(node)) as pool:
            (reply,) = pool.call({"n": Request(op="status", args={})})
        assert tracemalloc.get_traced_memory()[1] < count * size / 4
    finally:
        tracemalloc.stop()
    assert reply.last.head == {"number": count - 1}


def test_thirty_connections_to_one_server_with_default_limits(
    make_sshd: Callable[..., Sshd],
) -> None:
    server = make_sshd()
    nodes = [server.node(f"n{i}") for i in range(30)]
    with Pool(cluster_of(*nodes)) as pool:
        replies = list(pool.call({n.name: Request(op="hello", args={}) for n in nodes}))
    assert {reply.node for reply in replies} == {node.name for node in nodes}
    assert {reply.state for reply in replies} == {"ok"}


def test_what_was_begun_is_used_by_the_first_call(sshd: Sshd) -> None:
    nodes = [sshd.node("a"), sshd.node("b")]
    with Pool(cluster_of(*nodes)) as pool:
        pool.begin()
        replies = list(pool.call({n.name: Request(op="hello", args={}) for n in nodes}))
    assert {reply.state for reply in replies} == {"ok"}
    assert sshd.log.count("Accepted publickey") == len(nodes)


def test_what_was_begun_may_be_given_up(sshd: Sshd, caplog: pytest.LogCaptureFixture) -> None:
    with Pool(cluster_of(sshd.node("n"))) as pool:
        pool.begin()
    # It ends by itself, wherever it is, and lets go of what it has.
    known = pool._opened, pool._failed
    wait_until(lambda: any("n" in each for each in known) and not sshd.sessions(), seconds=10)
    assert not caplog.records


def test_the_next_command_tries_a_node_again_and_reads_known_hosts_anew(
    make_sshd: Callable[..., Sshd], own_state: Path
) -> None:
    server = make_sshd(known=False)
    cluster = cluster_of(server.node("n"))
    hello = {"n": Request(op="hello", args={})}
    with Pool(cluster) as pool:
        assert [reply.state for _ in range(2) for reply in pool.call(hello)] == ["hostkey"] * 2
        known = own_state / "clusterctl" / "t" / "known_hosts"
        known.parent.mkdir(parents=True, exist_ok=True)
        known.write_text(server.known_line)
        assert [reply.state for reply in pool.call(hello)] == ["hostkey"]
        further = pool.again(cluster)
        assert [reply.state for reply in further.call(hello)] == ["ok"]
    (closed,) = further.call(hello)
    assert closed.state == "lost"
    assert server.log.count("Accepted publickey") == 1


def test_a_jump_host_that_was_away_is_tried_again(make_sshd: Callable[..., Sshd]) -> None:
    target, gateway = make_sshd(), make_sshd()
    cluster = cluster_of(target.node("n", jump=f"{USER}@127.0.0.1:{gateway.port}"))
    hello = {"n": Request(op="hello", args={})}
    gateway.stop()
    with Pool(cluster) as pool:
        assert [error_of(reply).phase for reply in pool.call(hello)] == ["jump"]
        gateway.start()
        assert [reply.state for reply in pool.again(cluster).call(hello)] == ["ok"]
        gateway.stop()
        gateway.start()
        states = [[reply.state for reply in pool.again(cluster).call(hello)] for _ in range(3)]
        assert states[-1] == ["ok"]


def test_a_surprise_on_one_node_is_its_reply_only(
    sshd: Sshd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = ParamikoConnection.call

    def surprise(self: ParamikoConnection, request: Request, *, timeout: float = math.inf) -> Call:
        if self.node.name == "a":
            raise KeyError("surprise")
        return real(self, request, timeout=timeout)

    monkeypatch.setattr(ParamikoConnection, "call", surprise)
    nodes = [sshd.node("a"), sshd.node("b")]
    with Pool(cluster_of(*nodes)) as pool:
        replies = pool.call({node.name: Request(op="hello", args={}) for node in nodes})
        assert {r.node: r.state for r in replies} == {"a": "bad-output", "b": "ok"}
    assert "Traceback" in caplog.text


def test_a_body_of_many_megabytes_and_its_answer(sshd: Sshd) -> None:
    body = bytes(range(256)) * 40_000
    with Pool(cluster_of(sshd.node("n"))) as pool:
        (reply,) = pool.call({"n": Request(op="hello", args={}, body=body)})
    assert reply.ok, reply
    assert reply.last.body == body


def test_what_is_followed_comes_from_all_nodes(sshd: Sshd) -> None:
    names = ["a", "b", "c"]
    with Pool(cluster_of(*(sshd.node(name) for name in names))) as pool:
        calls = {name: pool.start(name, Request(op="echo", args={"n": name})) for name in names}
        for name, call in calls.items():
            call.send(Message({"to": name}))
            call.send(Message({"last": True}))
        found = list(pool.follow(calls))
    for name in names:
        messages = [item for node, item in found if node == name]
        assert isinstance(messages[-1], Reply)
        assert messages[-1].ok
        heads = [item.head for item in messages if isinstance(item, Message)]
        assert heads == [
            {"args": {"n": name}}, {"to": name}, {"last": True}, {"count": 2, "end": True}
        ]  # fmt: skip


def test_a_pool_survives_a_cut(sshd: Sshd) -> None:
    request = {"n": Request(op="hello", args={})}
    with Pool(cluster_of(sshd.node("n"))) as pool:
        assert [reply.state for reply in pool.call(request)] == ["ok"]
        cut(sshd)
        states = [reply.state for _ in range(2) for reply in pool.call(request)]
        assert states[-1] == "ok", states
        # And once more, in the middle of a call.
        call = pool.start("n", Request(op="echo", args={}))
        messages = call.messages()
        next(messages)
        cut(sshd)
        assert list(messages) == []
        assert call.reply().state == "lost"
        call.close()
        assert [reply.state for reply in pool.call(request)] == ["ok"]
    assert sshd.log.count("Accepted publickey") == 3


def cut(server: Sshd) -> None:
    for pid in server.sessions():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_call_that_took_too_long_costs_the_others_nothing(sshd: Sshd) -> None:
    with Pool(cluster_of(sshd.node("n"))) as pool:
        other = pool.start("n", Request(op="echo", args={}))
        messages = other.messages()
        next(messages)
        (reply,) = pool.call({"n": Request(op="echo", args={})}, timeout=0.5)
        assert reply.state == "timeout"
        (reply,) = pool.call({"n": Request(op="hello", args={})})
        assert reply.ok, reply
        other.send(Message({"last": True}))
        assert [message.head["end"] for message in messages if "end" in message.head] == [True]
        other.close()


def test_many_threads_send_to_one_node_while_one_reads(sshd: Sshd) -> None:
    """More than the channel's window: senders wait for room, the reader for answers."""
    body = bytes(200_000)
    with Pool(cluster_of(sshd.node("n"))) as pool:
        call = pool.start("n", Request(op="echo", args={}))

        def send(sender: int) -> None:
            for number in range(10):
                call.send(Message({"sender": sender, "number": number}, body))

        threads = [threading.Thread(target=send, args=(sender,)) for sender in range(4)]
        for thread in threads:
            thread.start()
        found = [[] for _ in threads]  # type: list[list[int]]
        messages = call.messages()
        next(messages)
        for _ in range(40):
            message = next(messages)
            assert message.body == body
            found[message.head["sender"]].append(message.head["number"])
        call.close()
        for thread in threads:
            thread.join()
    assert found == [list(range(10))] * 4


def test_connections_are_opened_once_and_closed_at_the_end(make_sshd: Callable[..., Sshd]) -> None:
    server = make_sshd("LogLevel VERBOSE")
    with Pool(cluster_of(server.node("n"))) as pool:
        for _ in range(3):
            assert [reply.state for reply in pool.open()] == ["ok"]
            [_] = list(pool.call({"n": Request(op="hello", args={})}))
    assert server.log.count("Accepted publickey") == 1
    wait_until(lambda: not server.sessions(), seconds=5)


def test_nodes_of_one_sync_never_wait_for_one_that_gets_no_thread(
    make_sshd: Callable[..., Sshd], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_sshd()
    nodes = [server.node(name) for name in "ab"]
    together = TwoPhaseCommit(["a", "b"], lambda _: True)
    started: list[str] = []

    def one_thread(*args: Any, **options: Any) -> None:
        started.append(options["name"])
        if len(started) > 1:
            raise CouldNotTell("this machine is at a limit")
        start_thread(*args, **options)

    def waits(_self: Placement, connection: Connection, folder: Path) -> Reply:
        while together.verdict(0.05) is None:
            pass
        return Reply(node=connection.node.name)

    monkeypatch.setattr("clusterctl.transport.fanout.start_thread", one_thread)
    monkeypatch.setattr("clusterctl.sync.mirror.Placement.hold", waits)
    common = Placement(
        source=Path(), workdir="/w", tree="", listing=b"", paths=(), lock="",
        holder={}, tokens=(), together=together, moved={}, kept={},
    )  # fmt: skip
    with Pool(cluster_of(*nodes)) as pool:
        try:
            with pytest.raises(CouldNotTell, match="at a limit"):
                list(pool.mirror({"a": common, "b": common}))
        finally:
            together.abort()


def test_a_call_after_the_end_fails_and_waits_for_nothing() -> None:
    """As one of a follower whose session ends; a connection to this machine never breaks."""
    nodes = [Node(host="n", name=f"n{number}", ssh=Ssh(), local=True) for number in range(40)]
    pool = Pool(cluster_of(*nodes))
    list(pool.open())
    pool.close()
    request = Request(op="hello", args={})
    replies = list(pool.call({node.name: request for node in nodes}))
    assert {reply.state for reply in replies} == {"lost"}
    assert "closed" in error_of(replies[0]).message
    with pytest.raises(CouldNotTell, match="are closed"):
        pool._connection("n0")
