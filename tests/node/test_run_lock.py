"""The lock: held once, gone with its holder, and it says who that is."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.node import run_lock
from clusterctl.node.agent.call_channel import OperationError
from clusterctl.node.event_loop import EventLoop
from clusterctl.node.run_lock import PeerProcess
from clusterctl.node.supervisor.control_socket import ControlSocket
from clusterctl.own_files import user_name
from clusterctl.wire import Message
from tests.damage import ANY_JSON, as_json, damaged, damaged_json
from tests.waiting import wait_until


@pytest.fixture
def name() -> str:
    return f"clusterctl-run-{uuid.uuid4().hex}"


@pytest.fixture
def held(name: str) -> Iterator[list[PeerProcess]]:
    """A lock that is answered from a thread; gives who asked what is not for everyone."""
    control_socket, loop, asked = ControlSocket(name), EventLoop(), list[PeerProcess]()
    stop = threading.Event()

    def on_request(request: dict[str, object], peer: PeerProcess) -> dict[str, object]:
        asked.append(peer)
        assert isinstance(request["ask"], str)
        return {"did": request["ask"] * int(str(request.get("times", 1)))}

    def live() -> None:
        control_socket.serve(loop, {"run": "lab-1", "user": "ada"}, on_request)
        # The control socket alone is left: every connection has been closed.
        while not stop.is_set() or len(loop._selector.get_map()) > 1:
            loop.call_later(0.02, lambda: None)
            loop.run_once()
        control_socket.release()

    thread = threading.Thread(target=live)
    thread.start()
    yield asked
    stop.set()
    thread.join()


def test_a_long_answer_arrives_whole_and_one_that_is_not_read_keeps_nobody_waiting(
    name: str, held: list[PeerProcess]
) -> None:
    """4,096 ranks make 800 KB, and a socket takes 200 at once."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect("\0" + name)
        silent.sendall(b'{"ask": "x", "times": 900000}\n')
        wait_until(lambda: bool(held))
        answer = run_lock.query(name, {"ask": "x", "times": 900_000}, seconds=60.0) or {}
        assert answer["did"] == "x" * 900_000


def test_nobody_holds_it(name: str) -> None:
    assert run_lock.query(name, {"ask": "who"}) is None


@pytest.mark.usefixtures("held")
def test_it_is_held_once_and_says_by_whom(name: str) -> None:
    with pytest.raises(OSError, match="in use"):
        ControlSocket(name)
    answer = run_lock.query(name, {"ask": "who"})
    assert answer == {"run": "lab-1", "user": "ada", "pid": os.getpid(), "uid": os.getuid()}
    with pytest.raises(OperationError, match="run lab-1 of user ada") as caught:
        ControlSocket.acquire(name)
    assert caught.value.kind == "busy"
    assert str(caught.value.details["hint"]).startswith(
        "clusterctl status lab-1 shows it, clusterctl stop lab-1 ends it"
    )


def test_other_questions_come_with_the_kernels_word_for_who_asks(
    name: str, held: list[PeerProcess]
) -> None:
    answer = run_lock.query(name, {"ask": "stop"}) or {}
    assert answer["did"] == "stop"
    assert [(peer.pid, peer.uid) for peer in held] == [(os.getpid(), os.getuid())]


@pytest.mark.usefixtures("held")
def test_nonsense_and_silence_do_not_disturb_it(name: str) -> None:
    silent = socket.socket(socket.AF_UNIX)
    silent.connect("\0" + name)
    for nonsense in (b"\xff\n", b"[]\n", b"{", b"", b'{"ask": []}'):
        with socket.socket(socket.AF_UNIX) as other:
            other.connect("\0" + name)
            other.sendall(nonsense)
    assert (run_lock.query(name, {"ask": "who"}) or {})["run"] == "lab-1"
    silent.close()


@pytest.mark.usefixtures("held")
def test_no_nonsense_of_a_stranger_fills_the_log(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for nonsense in (b"[" * 60000, b'{"ask":' * 9000, b"\xff" * 60000, b"9" * 60000):
        with socket.socket(socket.AF_UNIX) as other:
            other.connect("\0" + name)
            other.sendall(nonsense + b"\n")
            assert other.recv(100) == b""
    assert capfd.readouterr().err == ""


def test_a_holder_that_tells_nothing_or_nonsense_is_named_all_the_same(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind("\0" + name)  # and does not listen
        with pytest.raises(OperationError, match="cannot be asked") as caught:
            ControlSocket.acquire(name)
    assert "ss -xlp" in str(caught.value.details["hint"])
    assert "since an unknown time" in str(
        run_lock.in_use_error({"run": "r", "since": "yesterday", "uid": os.getuid()})
    )


def test_a_holder_that_does_not_answer_is_known_by_its_pid(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "ANSWER_SECONDS", 0.2)
    control_socket = ControlSocket(name)
    assert run_lock.query(name, {"ask": "who"}) == {"pid": os.getpid(), "uid": os.getuid()}
    with pytest.raises(OperationError, match=f"pid {os.getpid()} of user"):
        ControlSocket.acquire(name)
    control_socket._sockets[0].close()
    assert run_lock.query(name, {"ask": "who"}) is None


SQUATTER = """
import os, socket, sys, threading, time
if int(sys.argv[3]):
    os.setuid(int(sys.argv[3]))
listening = socket.socket(socket.AF_UNIX)
listening.bind("\\0" + sys.argv[1])
listening.listen(16)
print("holds it", flush=True)

def drip(one):
    while True:
        one.sendall(b"x")
        time.sleep(0.05)

def flood(one):
    while True:
        one.sendall(b"x" * 65536)

def say(one):
    one.recv(65536)
    one.sendall(sys.argv[2].encode() + b"\\n")
    time.sleep(300)

def serve(one):
    try:
        {"drip": drip, "flood": flood}.get(sys.argv[2], say)(one)
    except OSError:
        pass

while True:
    threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()
"""


@pytest.fixture
def squat(name: str) -> Iterator[Callable[..., int]]:
    """Let another process hold the lock and answer what it likes; gives its pid."""
    with ExitStack() as ending:

        def begin(behavior: str, uid: int = 0) -> int:
            if uid and os.getuid() != 0:
                pytest.skip("only root can become another user")
            argv = ["/usr/bin/env", "python3", "-c", SQUATTER, name, behavior, str(uid)]
            process = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd="/")
            ending.enter_context(process)
            ending.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == b"holds it\n"
            return process.pid

        yield begin


@pytest.mark.parametrize("behavior", ["drip", "flood"])
def test_a_holder_that_never_ends_its_answer_costs_a_few_seconds(
    name: str, squat: Callable[..., int], behavior: str
) -> None:
    pid = squat(behavior)
    began = time.monotonic()
    assert run_lock.query(name, {"ask": "who"}) == {"pid": pid, "uid": os.getuid()}
    assert time.monotonic() - began < 10


EVIL = '{"run": "$(reboot)", "user": "\\u001b[2J", "since": 0}'
DEEP = "[" * 200000


@pytest.mark.parametrize("answer", [EVIL, DEEP, '{"run": "--help"}', '{"run": 5}', "{}"])
def test_the_text_of_a_stranger_is_neither_shown_nor_typed(
    name: str, squat: Callable[..., int], answer: str
) -> None:
    pid = squat(answer[:100000], 65534)
    with pytest.raises(OperationError) as caught:
        ControlSocket.acquire(name)
    assert str(caught.value) == (
        f"the machine is busy: pid {pid} of user {user_name(65534)}, which does not answer"
    )
    assert caught.value.details["hint"] == f"ps -fp {pid} (on the node) shows that process"
    assert caught.value.details["holder"] == {"pid": pid, "uid": 65534}


def test_another_users_run_is_not_ours_to_stop(name: str, squat: Callable[..., int]) -> None:
    squat('{"run": "lab-1", "user": "root", "since": 0, "odd": "x"}', 65534)
    with pytest.raises(OperationError) as caught:
        ControlSocket.acquire(name)
    other = user_name(65534)
    assert f"run lab-1 of user {other}, since 1970-01-01 00:00 UTC" in str(caught.value)
    assert "clusterctl stop" not in str(caught.value.details["hint"])
    assert f"ask user {other}" in str(caught.value.details["hint"])


def test_a_full_queue_is_waited_for(name: str) -> None:
    control_socket = ControlSocket(name)
    control_socket._sockets[0].listen(0)
    with socket.socket(socket.AF_UNIX) as first:
        first.connect("\0" + name)
        answers: list[object] = []
        asking = threading.Thread(
            target=lambda: answers.append(run_lock.query(name, {"ask": "who"}))
        )
        asking.start()
        time.sleep(0.3)
        accepted = [control_socket._sockets[0].accept()[0]]
    control_socket._sockets[0].setblocking(True)
    accepted.append(control_socket._sockets[0].accept()[0])
    accepted[1].recv(65536)
    accepted[1].sendall(b'{"run": "lab-1"}\n')
    asking.join()
    assert answers == [{"run": "lab-1", "pid": os.getpid(), "uid": os.getuid()}]
    for connection in (*accepted, control_socket._sockets[0]):
        connection.close()


GPU = "GPU-00000000-1111-2222-3333-444444444444"


@pytest.mark.parametrize(
    ("text", "can_be"),
    [
        (GPU, True),
        (GPU.replace("1", "G"), False),
        (GPU + "0", False),
        ("port-29500", True),
        ("port-$(id)", False),
        ("port-29500;id", False),
        ("\x1b[2J", False),
        (5, False),
        (None, False),
    ],
)
def test_what_a_holder_calls_its_parts_is_shown_only_where_it_can_be_that(
    text: object,
    can_be: bool,  # noqa: FBT001
) -> None:
    assert run_lock.is_device_id(text) is can_be
    assert run_lock.valid_resources({"holds": [GPU, text]}) == ([GPU, text] if can_be else [])


def test_a_busy_gpu_is_named() -> None:
    holder = {"run": "lab-1", "user": "ada", "since": 0, "uid": os.getuid(), "holds": [GPU]}
    assert f", on {GPU[: run_lock.UUID_CHARACTERS]}" in str(run_lock.in_use_error(holder))


def test_the_run_that_works_in_a_folder_is_found_by_whatever_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not say where it works may work there."""
    (tmp_path / "work").mkdir()
    (tmp_path / "link").symlink_to("work")
    there, elsewhere = {"workdir": str(tmp_path / "link")}, {"workdir": str(tmp_path)}
    identified = {"workdir_id": run_lock.workdir_id(os.fsencode(tmp_path / "link"))}
    for held, found in (
        ([elsewhere, there], there),
        ([elsewhere], None),
        ([elsewhere, {"run": "r"}], {"run": "r"}),
        ([{"workdir_id": run_lock.workdir_id(os.fsencode(tmp_path))}], None),
        ([identified], identified),
        ([], None),
    ):
        monkeypatch.setattr(run_lock, "lock_holders", lambda _names, held=held: iter(held))
        assert run_lock.live_run(os.fsencode(tmp_path / "work"), "m") == found


HOLDER = {
    "run": "lab-1", "user": "ada", "since": 5.0, "about": "train", "workdir": "/work",
    "holds": ["GPU-00000000-0000-0000-0000-000000000000", "port-29500"],
}  # fmt: skip
WHOLE = as_json(HOLDER) + b"\n"


@pytest.fixture
def answering(name: str) -> Iterator[list[bytes]]:
    """A holder that answers with what the test puts into this list."""
    says: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("\0" + name)
        listening.listen(16)

        def serve() -> None:
            while True:
                try:
                    one = listening.accept()[0]
                except OSError:
                    return
                with one, suppress(OSError):
                    one.recv(65536)
                    one.sendall(says[-1])

        thread = threading.Thread(target=serve)
        thread.start()
        yield says
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@settings(max_examples=settings().max_examples // 2)
@given(
    said=damaged(WHOLE)
    | damaged_json(HOLDER).map(lambda value: as_json(value) + b"\n")
    | st.builds(lambda path: as_json({**HOLDER, "workdir": path}) + b"\n", ANY_JSON)
    | st.binary()
)
def test_whatever_the_holder_answers_it_is_named_and_its_folder_is_asked_for(
    name: str, answering: list[bytes], said: bytes
) -> None:
    answering.append(said)
    holder = run_lock.query(name, {"ask": "who"})
    assert holder is not None
    assert (holder["pid"], holder["uid"]) == (os.getpid(), os.getuid())
    Message(run_lock.in_use_error(holder).head()).encode()
    found = run_lock.live_run(b"/elsewhere", name)
    known = run_lock.workdir_of(holder)
    assert (found is None) == (known != "" and os.path.realpath(known) != "/elsewhere")


@given(damaged_json(HOLDER))
def test_of_another_users_answer_only_what_can_be_is_passed_on(answer: object) -> None:
    known = run_lock._untrusted(answer if isinstance(answer, dict) else {}, PeerProcess(7, 4242))
    assert set(known) <= {"run", "user", "workdir", "workdir_id", "since", "holds"}
    error = run_lock.in_use_error({**known, "pid": 7, "uid": 4242})
    Message(error.head()).encode()
    assert str(error).isprintable()
    assert run_lock.workdir_of(known) == known.get("workdir", "")


@pytest.mark.parametrize("workdir", ["/w\0x", "/w\ud800", "/" * run_lock.LINE_LIMIT, 5, None])
def test_a_holders_folder_that_none_can_be_named_is_not_known(workdir: object) -> None:
    """So the run may work in any: no path of it reaches the system."""
    assert run_lock.workdir_of({"workdir": workdir}) == ""
    assert run_lock.workdir_of({"workdir": "/w"}) == "/w"


@pytest.mark.parametrize(
    ("one", "other", "excluded"),
    [
        ("clusterctl-run", "clusterctl-run", True),
        ("clusterctl-run", "clusterctl-run/GPU-a", True),
        ("clusterctl-run/GPU-a,port-1", "clusterctl-run/GPU-b,port-1", True),
        ("clusterctl-run/GPU-a,port-1", "clusterctl-run/GPU-b,port-2", False),
        ("clusterctl-run", "clusterctl-run-2201", False),
    ],
)
def test_a_run_excludes_others_from_what_it_takes(one: str, other: str, *, excluded: bool) -> None:
    assert run_lock.conflict(one, other) == excluded
    assert run_lock.conflict(other, one) == excluded
