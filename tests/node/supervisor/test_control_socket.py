"""Who may ask what at the held lock, and that a lock is taken whole or not at all."""

from __future__ import annotations

import errno
import os
import socket
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.node import run_lock
from clusterctl.node.agent.call_channel import OperationError
from clusterctl.node.run_lock import PeerProcess
from clusterctl.node.supervisor.control_socket import ControlSocket
from clusterctl.wire import from_json
from tests.damage import ANY_JSON, as_json, damaged

GPUS = tuple(f"GPU-{number:08d}-0000-0000-0000-000000000000" for number in range(3))


PUBLIC = {"run": "lab-1", "user": "ada", "since": 5.0, "holds": [], "workdir_id": "4f2a"}
WHO = {
    **PUBLIC, "cluster": "lab", "node": "a", "workdir": "/work", "about": "(x --token hf_1) from y",
}  # fmt: skip


@pytest.fixture
def machine() -> str:
    return f"clusterctl-test-{uuid.uuid4().hex}"


@pytest.fixture
def control_socket(machine: str) -> Iterator[ControlSocket]:
    """A control socket without an event loop: the test passes requests in itself."""
    taken = ControlSocket(machine)
    loop: Any = SimpleNamespace(
        add_descriptor=lambda *_, **__: None,
        remove_descriptor=lambda *_: None,
        call_later=lambda *_: SimpleNamespace(cancel=lambda: None),
    )

    def serve(request: dict[str, Any], _peer: PeerProcess) -> dict[str, Any]:
        if request.get("ask") == "crash":
            raise RuntimeError("a question too many")
        return {"did": request.get("ask")}

    taken.serve(loop, WHO, serve)
    yield taken
    taken.release()


def asked(control_socket: ControlSocket, request: bytes) -> dict[str, Any] | None:
    """Let one request arrive; None: it is not answered."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(request)
        ours.shutdown(socket.SHUT_WR)
        control_socket._write(theirs, control_socket._answer(theirs))
        answer = ours.recv(65536)
    found: dict[str, Any] | None = from_json(answer.strip()) if answer else None
    return found


def test_another_user_may_ask_who_holds_it_and_nothing_else(
    control_socket: ControlSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for uid, may in ((os.getuid(), True), (0, True), (os.getuid() + 4711, False)):
        monkeypatch.setattr(PeerProcess, "of", lambda _connection, uid=uid: PeerProcess(1, uid))
        told = asked(control_socket, b'{"ask": "who"}\n')
        assert told == (WHO if may else {**PUBLIC, "workdir": "/.clusterctl-4f2a"})
        for question in ("stop", "state", "rank"):
            answer = asked(control_socket, b'{"ask": "%s"}\n' % question.encode()) or {}
            assert answer.get("did") == (question if may else None)
            assert ("error" in answer) is not may


def test_a_question_that_cannot_be_answered_ends_alone(
    control_socket: ControlSocket, capfd: pytest.CaptureFixture[str]
) -> None:
    assert asked(control_socket, b'{"ask": "crash"}\n') is None
    assert "a question too many" in capfd.readouterr().err
    for nonsense in (b"[]\n", b"\xff\n", b"{", b"5\n"):
        assert asked(control_socket, nonsense) is None
    assert capfd.readouterr().err == ""
    assert asked(control_socket, b'{"ask": "state"}\n') == {"did": "state"}


@given(
    st.binary(max_size=200)
    | ANY_JSON.map(as_json)
    | damaged(b'{"ask": "who", "run": "lab-1"}\n')
    | st.integers(9, 13).map(
        lambda short: b'{"ask": "%s"}' % (b"x" * (run_lock.LINE_LIMIT - short))
    )
)
def test_whatever_is_asked_is_answered_or_refused_and_the_next_is_heard(
    control_socket: ControlSocket, asked_for: bytes
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a stranger's bytes were taken for a fault of ours")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("traceback.print_exc", fail)
        answer = asked(control_socket, asked_for[: run_lock.LINE_LIMIT])
    assert answer is None or {"run", "did"} & answer.keys()
    assert asked(control_socket, b'{"ask": "who"}\n') == WHO


def free(name: str) -> bool:
    return run_lock.query(name, {"ask": "who"}, seconds=0.01) is None


def test_a_lock_of_which_one_part_is_held_is_not_taken_at_all(machine: str) -> None:
    second = ControlSocket(f"{machine}/{GPUS[1]}")
    with pytest.raises(OSError, match="in use") as held:
        ControlSocket(f"{machine}/{','.join(GPUS)}")
    assert held.value.errno == errno.EADDRINUSE
    assert [free(f"{machine}/{gpu}") for gpu in GPUS] == [True, False, True]
    second.release()
    ControlSocket(f"{machine}/{','.join(GPUS)}").release()


def test_a_machine_without_a_place_left_takes_no_further_run(machine: str) -> None:
    """By its place a run that wants the whole machine finds each of the others."""
    slots = [socket.socket(socket.AF_UNIX) for _ in range(run_lock.MAX_SHARING_RUNS)]
    for place, name in zip(slots, run_lock.slots(machine), strict=True):
        place.bind("\0" + name)
    try:
        with pytest.raises(OSError, match="in use"):
            ControlSocket(f"{machine}/{GPUS[0]}")
        assert free(f"{machine}/{GPUS[0]}")
        slots[-1].close()
        ControlSocket(f"{machine}/{GPUS[0]}").release()
    finally:
        for place in slots:
            place.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait long for a lock that nobody answers."""
    monkeypatch.setattr(run_lock, "ANSWER_SECONDS", 0.02)
    monkeypatch.setattr(run_lock, "_MIN_SECONDS", 0.02)


@pytest.mark.usefixtures("impatient")
def test_who_is_refused_the_lock_holds_nothing_of_it(machine: str) -> None:
    name = f"{machine}/{GPUS[0]}"
    for held, wanted in ((machine, name), (name, machine), (name, name), (machine, machine)):
        first = ControlSocket.acquire(held)
        with pytest.raises(OperationError, match=f"pid {os.getpid()}"):
            ControlSocket.acquire(wanted)
        assert free(wanted) is (held != wanted)
        first.release()
        assert free(held)
        ControlSocket.acquire(wanted).release()


def test_a_lock_that_is_taken_and_whose_holder_nobody_finds_is_refused_too(
    machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ControlSocket(machine)
    monkeypatch.setattr(run_lock, "lock_holders", lambda _names: iter(()))
    with pytest.raises(OperationError, match="cannot be asked"):
        ControlSocket.acquire(machine)
    first.release()


def test_a_lock_that_cannot_be_made_is_not_said_to_be_held(machine: str) -> None:
    with pytest.raises(OSError, match="too long"):
        ControlSocket.acquire(machine + "x" * 200)
