"""The connections of a chain: who shows the token gets blocks in, and nobody else anything."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import ssl
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from clusterctl.node.push.chain import HEAD_LIMIT, Receiver, Sender, hello, inflated
from clusterctl.node.push.manifest import BLOCK, Manifest, read_tree
from clusterctl.node.push.tree import Tree
from clusterctl.plan.certificate import Identity, make_identity
from clusterctl.wire import Message, encode_head
from tests.waiting import wait_until

SECONDS = 30.0
NUMBERS = itertools.count(1)
Receive = Callable[..., Receiver]


@pytest.fixture
def receive(identity: Identity) -> Iterator[Receive]:
    """Let a tree listen, until the test is over."""
    made: list[Receiver] = []

    def receive(tree: Tree, own: Identity = identity) -> Receiver:
        secret = {"certificate": own.certificate, "key": own.key, "token": own.token}
        made.append(Receiver(tree, "127.0.0.1", **secret))
        return made[-1]

    yield receive
    for receiver in made:
        receiver.close()


def send(
    tree: Tree,
    receiver: Receiver,
    to: Identity,
    done: Callable[[Exception | None], None] = lambda _: None,
    *,
    number: int | None = None,
) -> Sender:
    """Begin to send; `done` gets the result."""
    shown = to.ticket(next(NUMBERS) if number is None else number).encode()
    sender = Sender(tree, done)
    sender.start("127.0.0.1", receiver.port, certificate=to.certificate, shown=shown)
    return sender


def sent(tree: Tree, receiver: Receiver, to: Identity, *, number: int | None = None) -> str | None:
    """Send, and return why that ended early."""
    ended: list[Exception | None] = []
    send(tree, receiver, to, ended.append, number=number)
    wait_until(lambda: bool(ended))
    return None if ended[0] is None else getattr(ended[0], "strerror", None) or str(ended[0])


@pytest.fixture(scope="module")
def identity() -> Identity:
    return make_identity("test")


@pytest.fixture
def source(tmp_path: Path) -> Tree:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "big").write_bytes(os.urandom(3 * BLOCK + 7))
    for number in range(200):
        (folder / f"small{number}").write_bytes(b"%d" % number)
    manifest = read_tree(os.fsencode(folder), lambda _: None)
    return Tree(os.fsencode(folder), manifest, source=True)


def target(tmp_path: Path, name: str, manifest: Manifest) -> Tree:
    tree = Tree(os.fsencode(tmp_path / name), manifest)
    tree.compare()
    tree.begin()
    return tree


def test_blocks_pass_through_a_chain(tmp_path: Path, source: Tree, receive: Receive) -> None:
    identities = [make_identity("test") for _ in range(3)]
    trees = [source, *(target(tmp_path, f"t{n}", source.manifest) for n in range(3))]
    receivers = [receive(tree, own) for tree, own in zip(trees[1:], identities, strict=True)]
    ended: list[Exception | None] = []
    for tree, receiver, own in zip(trees, receivers, identities, strict=False):
        send(tree, receiver, own, ended.append)
    wait_until(lambda: len(ended) == 3)
    assert ended == [None] * 3
    assert all(tree.complete for tree in trees)
    there = (tmp_path / "source" / "big").read_bytes()
    assert (tmp_path / "t2" / "big").read_bytes() == there
    assert (tmp_path / "t2" / "small199").read_bytes() == b"199"


@pytest.mark.parametrize(
    "told", [b"", b"x", zlib.compress(b"\0"), zlib.compress(b"\0" * 3), zlib.compress(b"\0\2")]
)
def test_what_is_no_list_of_blocks_is_refused(told: bytes) -> None:
    assert inflated(zlib.compress(b"\0\1"), 2) == b"\0\1"
    with pytest.raises(EOFError, match="not a node of this push"):
        inflated(told, 2)


def test_a_second_sender_brings_only_what_is_missing(
    tmp_path: Path, source: Tree, identity: Identity, receive: Receive
) -> None:
    """As after a node of the chain died: the one before it connects to the one after it."""
    first, last = (target(tmp_path, name, source.manifest) for name in ("first", "last"))
    with (tmp_path / "source" / "big").open("rb") as file:
        for index in range(2):
            assert first.write(index, memoryview(file.read(BLOCK)))
    receiver = receive(last)
    lost: list[Exception | None] = []
    dying = send(first, receiver, identity, lost.append)
    wait_until(lambda: len(last.arrived) == 2)
    dying.stop()
    assert sent(source, receiver, identity) is None
    assert lost == []
    assert last.complete
    assert last.received == source.manifest.size  # no block twice


def test_nobody_without_the_token_gets_an_answer(
    tmp_path: Path, source: Tree, receive: Receive
) -> None:
    tree = target(tmp_path, "t", source.manifest)
    receiver = receive(tree)
    other = hello(make_identity("test").ticket(1).encode())
    with socket.create_connection(("127.0.0.1", receiver.port), timeout=SECONDS) as plain:
        plain.sendall(other + bytes(1000))
        with contextlib.suppress(ConnectionResetError):
            assert len(plain.recv(1 << 16)) < 64  # at most that this is no TLS
    nonsense = (b"-" * len(other), bytes(len(other)), Message({}).encode(), hello(b"x" * 72))
    for shown in (other, *nonsense, Message({"ticket": "x" * HEAD_LIMIT}).encode()):
        with tls_to(receiver) as tls:
            tls.sendall(shown)
            assert tls.recv(1) == b""
    assert not tree.arrived


@contextlib.contextmanager
def tls_to(receiver: Receiver) -> Iterator[ssl.SSLSocket]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", receiver.port), timeout=SECONDS) as plain,
        context.wrap_socket(plain) as tls,
    ):
        yield tls


def test_a_ticket_is_for_one_receiver_and_a_newer_one_ends_it(
    tmp_path: Path, source: Tree, identity: Identity, receive: Receive
) -> None:
    """A node that served another one, or still serves a third, has no way to this one."""
    receiver = receive(target(tmp_path, "t", source.manifest))
    with tls_to(receiver) as one:
        one.sendall(hello(identity.ticket(1 << 20).encode()))
        assert one.recv(1)  # the receiver says what it has
        assert sent(source, receiver, identity, number=(1 << 20) - 1) is not None
        assert sent(source, receiver, identity, number=1 << 20) is not None
        assert sent(source, receiver, identity, number=(1 << 20) + 1) is None


def test_a_sender_trusts_no_other_certificate(
    tmp_path: Path, source: Tree, identity: Identity, receive: Receive
) -> None:
    tree = target(tmp_path, "t", source.manifest)
    words = sent(source, receive(tree, make_identity("test")), identity)
    assert "certificate" in str(words).lower()
    assert not tree.arrived


def test_a_node_that_sends_other_blocks_is_noticed(
    tmp_path: Path, source: Tree, identity: Identity, receive: Receive
) -> None:
    tree = target(tmp_path, "t", source.manifest)
    receiver = receive(tree)
    assert source.holds(0)
    with (tmp_path / "source" / "big").open("r+b") as file:
        file.write(b"changed while it is sent")
    assert sent(source, receiver, identity) is not None
    assert receiver.bad == [0]
    assert not tree.have[0]
    assert [source.holds(block) for block in (0, 1)] == [False, True]
    (tmp_path / "source" / "big").unlink()
    assert not source.holds(1)


@pytest.mark.parametrize(
    "nonsense",
    [
        Message({"block": 1 << 31}, b"x").encode(),
        Message({"block": -1}, b"x").encode(),
        Message({"block": 204}, b"x").encode(),  # there are as many
        Message({"block": "0"}, b"x").encode(),
        encode_head({"block": 0}, BLOCK + 1),
        b"GET / HTTP/1.0\r\n\r\n",
    ],
)
def test_a_node_that_sends_no_blocks_is_told_of(
    tmp_path: Path, source: Tree, identity: Identity, receive: Receive, nonsense: bytes
) -> None:
    receiver = receive(target(tmp_path, "t", source.manifest))
    with tls_to(receiver) as tls:
        tls.sendall(hello(identity.ticket(next(NUMBERS)).encode()))
        assert tls.recv(1)
        tls.sendall(nonsense)
        wait_until(lambda: bool(receiver.bad))
    assert receiver.bad == [source.manifest.blocks]
    assert sent(source, receiver, identity) is None


def test_connections_that_are_reset_take_no_place(
    tmp_path: Path,
    source: Tree,
    identity: Identity,
    receive: Receive,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a port scanner does: it is gone before the handshake begins."""
    monkeypatch.setattr("clusterctl.node.push.chain.HELLO_SECONDS", 600.0)
    receiver = receive(target(tmp_path, "t", source.manifest))
    for _ in range(300):  # more than there are places
        with socket.create_connection(("127.0.0.1", receiver.port)) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(OSError):
                one.send(b"x")
    assert sent(source, receiver, identity) is None
    wait_until(lambda: not receiver._thread._peers._waiting)


def test_silent_connections_that_come_again_keep_nobody_out(
    tmp_path: Path, source: Tree, identity: Identity, receive: Receive
) -> None:
    receiver = receive(target(tmp_path, "t", source.manifest))
    over = threading.Event()

    def hold() -> None:
        while not over.is_set():
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", receiver.port), timeout=0.5) as one,
            ):
                one.recv(1)

    threads = [threading.Thread(target=hold) for _ in range(24)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(receiver._thread._peers._waiting) >= 24)
        assert [sent(source, receiver, identity) for _ in range(5)] == [None] * 5
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_silent_connections_are_few_and_take_no_thread(
    tmp_path: Path, source: Tree, receive: Receive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterctl.node.push.chain.MAX_UNAUTHENTICATED", 5)
    before = threading.active_count()
    receiver = receive(target(tmp_path, "t", source.manifest))
    with contextlib.ExitStack() as closing:
        place = ("127.0.0.1", receiver.port)
        silent = [
            closing.enter_context(socket.create_connection(place, timeout=SECONDS))
            for _ in range(60)
        ]
        assert silent[54].recv(1) == b""
        assert len(receiver._thread._peers._waiting) == 5
        assert threading.active_count() <= before


def test_one_that_drips_has_no_more_time_than_others(
    tmp_path: Path, source: Tree, receive: Receive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterctl.node.push.chain.HELLO_SECONDS", 1.0)
    receiver = receive(target(tmp_path, "t", source.manifest))
    began = time.monotonic()
    with tls_to(receiver) as tls, contextlib.suppress(OSError):
        tls.settimeout(0.2)
        while time.monotonic() < began + SECONDS:
            tls.sendall(b"0")  # with a limit for each byte all of the ticket is heard
            try:
                assert tls.recv(1) == b""
                break
            except TimeoutError:
                continue
    assert time.monotonic() < began + SECONDS / 2


def test_one_connection_without_a_thread_ends_alone(
    tmp_path: Path,
    source: Tree,
    identity: Identity,
    receive: Receive,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    tree = target(tmp_path, "t", source.manifest)
    receiver = receive(tree)
    start, failures = threading.Thread.start, ["no thread to spare"]

    def fail_once(self: threading.Thread) -> None:
        if failures and getattr(self, "_target").__name__ == "_serve":  # noqa: B009
            raise RuntimeError(failures.pop())
        start(self)

    monkeypatch.setattr(threading.Thread, "start", fail_once)
    assert sent(source, receiver, identity) is not None
    assert sent(source, receiver, identity) is None
    assert tree.complete
    assert "no thread to spare" in capfd.readouterr().err


def test_a_receiver_without_a_thread_says_so_and_leaves_no_socket(
    tmp_path: Path, source: Tree, receive: Receive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    def listening() -> set[int]:
        found = psutil.Process().net_connections("tcp")
        return {one.laddr.port for one in found if one.status == psutil.CONN_LISTEN}

    tree, before = target(tmp_path, "t", source.manifest), listening()
    monkeypatch.setattr("clusterctl.node.listener._thread.start_new_thread", fail)
    with pytest.raises(OSError, match="can't start new thread") as error:
        receive(tree)
    assert listening() <= before
    del error
