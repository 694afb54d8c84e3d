"""The connections of a chain: who shows the token gets blocks in, and nobody else anything."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest

from clusterctl.node.push.chain import Credentials, Receiver, Sender
from clusterctl.node.push.manifest import BLOCK, Manifest, read_tree
from clusterctl.node.push.tree import Tree
from clusterctl.plan.certificate import Identity, make_identity
from tests.waiting import wait_until

SECONDS = 30.0


def credentials(identity: Identity) -> Credentials:
    return Credentials(identity.certificate, identity.key, identity.token)


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


def test_blocks_pass_through_a_chain(tmp_path: Path, source: Tree, identity: Identity) -> None:
    own = credentials(identity)
    trees = [source, *(target(tmp_path, f"t{n}", source.manifest) for n in range(3))]
    receivers = [Receiver(tree, own, "127.0.0.1") for tree in trees[1:]]
    ended: list[str | None] = []
    for tree, receiver in zip(trees, receivers, strict=False):
        Sender(tree, own, ended.append).start("127.0.0.1", receiver.port)
    wait_until(lambda: len(ended) == 3)
    assert ended == [None] * 3
    assert all(tree.complete for tree in trees)
    sent = (tmp_path / "source" / "big").read_bytes()
    assert (tmp_path / "t2" / "big").read_bytes() == sent
    assert (tmp_path / "t2" / "small199").read_bytes() == b"199"
    for receiver in receivers:
        receiver.close()


def test_a_second_sender_brings_only_what_is_missing(
    tmp_path: Path, source: Tree, identity: Identity
) -> None:
    """As after a node of the chain died: the one before it connects to the one after it."""
    own = credentials(identity)
    first, last = (target(tmp_path, name, source.manifest) for name in ("first", "last"))
    with (tmp_path / "source" / "big").open("rb") as file:
        for index in range(2):
            assert first.write(index, memoryview(file.read(BLOCK)))
    receiver = Receiver(last, own, "127.0.0.1")
    lost: list[str | None] = []
    dying = Sender(first, own, lost.append)
    dying.start("127.0.0.1", receiver.port)
    wait_until(lambda: len(last.arrived) == 2)
    dying.stop()
    ended: list[str | None] = []
    Sender(source, own, ended.append).start("127.0.0.1", receiver.port)
    wait_until(lambda: bool(ended))
    assert (ended, lost) == ([None], [])
    assert last.complete
    assert last.received == source.manifest.size  # no block twice
    receiver.close()


def test_nobody_without_the_token_gets_an_answer(
    tmp_path: Path, source: Tree, identity: Identity
) -> None:
    own = credentials(identity)
    tree = target(tmp_path, "t", source.manifest)
    receiver = Receiver(tree, own, "127.0.0.1")
    with socket.create_connection(("127.0.0.1", receiver.port), timeout=SECONDS) as plain:
        plain.sendall(identity.token.encode() + bytes(1000))
        with contextlib.suppress(ConnectionResetError):
            assert len(plain.recv(1 << 16)) < 64  # at most that this is no TLS
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", receiver.port), timeout=SECONDS) as plain,
        context.wrap_socket(plain) as tls,
    ):
        tls.sendall(b"0" * len(identity.token))
        assert tls.recv(1) == b""
    assert not tree.arrived
    receiver.close()


def test_a_sender_trusts_no_other_certificate(
    tmp_path: Path, source: Tree, identity: Identity
) -> None:
    tree = target(tmp_path, "t", source.manifest)
    receiver = Receiver(tree, credentials(make_identity("test")), "127.0.0.1")
    ended: list[str | None] = []
    Sender(source, credentials(identity), ended.append).start("127.0.0.1", receiver.port)
    wait_until(lambda: bool(ended))
    assert "certificate" in str(ended[0]).lower()
    assert not tree.arrived
    receiver.close()


def test_a_node_that_sends_other_blocks_is_noticed(
    tmp_path: Path, source: Tree, identity: Identity
) -> None:
    own = credentials(identity)
    tree = target(tmp_path, "t", source.manifest)
    receiver = Receiver(tree, own, "127.0.0.1")
    with (tmp_path / "source" / "big").open("r+b") as file:
        file.write(b"changed while it is sent")
    ended: list[str | None] = []
    Sender(source, own, ended.append).start("127.0.0.1", receiver.port)
    wait_until(lambda: bool(ended))
    assert ended[0] is not None
    assert receiver.bad
    assert not tree.have[0]
    receiver.close()


def test_connections_that_say_nothing_are_few(
    tmp_path: Path, source: Tree, identity: Identity
) -> None:
    tree = target(tmp_path, "t", source.manifest)
    own = credentials(identity)
    before = threading.active_count()
    receiver = Receiver(tree, own, "127.0.0.1")
    silent = [
        socket.create_connection(("127.0.0.1", receiver.port), timeout=SECONDS) for _ in range(60)
    ]
    time.sleep(0.2)
    assert threading.active_count() - before <= 1 + 16
    for each in silent:
        each.close()
    ended: list[str | None] = []

    def connect() -> bool:
        if not ended or ended[-1] is not None:
            done: list[str | None] = []
            Sender(source, own, done.append).start("127.0.0.1", receiver.port)
            wait_until(lambda: bool(done))
            ended.append(done[0])
        return ended[-1] is None

    wait_until(connect)
    assert tree.complete
    receiver.close()
