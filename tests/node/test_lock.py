"""The lock: held once, gone with its holder, and it says who that is."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Iterator

import pytest

from clusterctl.node import lock
from clusterctl.node.door import Door
from clusterctl.node.link import OperationError
from clusterctl.node.lock import Peer
from clusterctl.node.reactor import Reactor


@pytest.fixture
def name() -> str:
    return f"clusterctl-run-{uuid.uuid4().hex}"


@pytest.fixture
def held(name: str) -> Iterator[list[Peer]]:
    """A lock that is answered from a thread; gives who asked what is not for everyone."""
    door, reactor, asked = Door(name), Reactor(), list[Peer]()
    stop = threading.Event()

    def on_request(request: dict[str, object], peer: Peer) -> dict[str, object]:
        asked.append(peer)
        assert isinstance(request["ask"], str)
        return {"did": request["ask"]}

    def live() -> None:
        door.answer(reactor, {"run": "lab-1", "user": "ada"}, on_request)
        while not stop.is_set():
            reactor.after(0.02, lambda: None)
            reactor.turn()
        door.close()

    thread = threading.Thread(target=live)
    thread.start()
    yield asked
    stop.set()
    thread.join()


def test_nobody_holds_it(name: str) -> None:
    assert lock.ask(name, {"ask": "who"}) is None


@pytest.mark.usefixtures("held")
def test_it_is_held_once_and_says_by_whom(name: str) -> None:
    with pytest.raises(OSError, match="in use"):
        Door(name)
    answer = lock.ask(name, {"ask": "who"})
    assert answer == {"run": "lab-1", "user": "ada", "pid": os.getpid(), "uid": os.getuid()}
    with pytest.raises(OperationError, match="run lab-1 of user ada") as caught:
        Door.take(name)
    assert caught.value.kind == "busy"
    assert caught.value.details["hint"] == "clusterctl stop lab-1"


def test_other_questions_come_with_the_kernels_word_for_who_asks(
    name: str, held: list[Peer]
) -> None:
    answer = lock.ask(name, {"ask": "stop"}) or {}
    assert answer["did"] == "stop"
    assert held == [Peer(os.getpid(), os.getuid())]


@pytest.mark.usefixtures("held")
def test_nonsense_and_silence_do_not_disturb_it(name: str) -> None:
    silent = socket.socket(socket.AF_UNIX)
    silent.connect("\0" + name)
    for nonsense in (b"\xff\n", b"[]\n", b"{", b"", b'{"ask": []}'):
        with socket.socket(socket.AF_UNIX) as other:
            other.connect("\0" + name)
            other.sendall(nonsense)
    assert (lock.ask(name, {"ask": "who"}) or {})["run"] == "lab-1"
    silent.close()


def test_a_holder_that_tells_nothing_or_nonsense_is_named_all_the_same(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind("\0" + name)  # and does not listen
        with pytest.raises(OperationError, match="cannot be asked") as caught:
            Door.take(name)
    assert "ss -xlp" in str(caught.value.details["hint"])
    assert "since an unknown time" in str(lock.busy({"run": "r", "since": "yesterday"}))


def test_a_holder_that_does_not_answer_is_known_by_its_pid(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "ANSWER_SECONDS", 0.2)
    door = Door(name)
    assert lock.ask(name, {"ask": "who"}) == {"pid": os.getpid(), "uid": os.getuid()}
    with pytest.raises(OperationError, match=f"pid {os.getpid()} of uid"):
        Door.take(name)
    door._socket.close()
    assert lock.ask(name, {"ask": "who"}) is None
