"""The operation `meet`, among nodes that are processes: listeners, connections, tokens."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.node.agent.call_channel import CallChannel
from clusterctl.node.probe import connect as connect_module
from clusterctl.node.probe import listen as listen_module
from clusterctl.node.probe import peer_probe, route_lookup
from clusterctl.node.probe.connect import connect_to
from clusterctl.node.probe.listen import Listeners, hello
from clusterctl.node.probe.port_owner import port_owner
from clusterctl.node.probe.tokens import Tokens
from clusterctl.sandbox.loopback import free_port
from clusterctl.wire import Message, encode_head, read_message
from tests.damage import damaged

WORD = "0123456789abcdeffedcba9876543210"
HERE = "127.0.0.1"
HELLO = hello(WORD[:16])
"""What a caller of this check says."""


def answer(padding: int) -> bytes:
    """Return what a listener of this check answers."""
    return Message({"hello": WORD[16:], "seen_as": HERE, "padding": padding}).encode()


AGENT = """
import os, sys
from clusterctl.node.agent.call_channel import CallChannel
from clusterctl.node.probe.peer_probe import probe_peers
link = CallChannel(os.fdopen(0, "rb", buffering=0), os.dup(1))
link.send_last(probe_peers(sys.argv[1], link))
"""


class Conversation:
    """A `meet` in a process of its own, as on a node, and the controller's end of its link."""

    def __init__(self) -> None:
        self._node = subprocess.Popen(
            [sys.executable, "-c", AGENT, WORD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def _read(self) -> Message:
        message = read_message(cast("BinaryIO", self._node.stdout))
        assert message is not None, "the node ended silently"
        return message

    def _write(self, message: Message) -> None:
        assert self._node.stdin is not None
        self._node.stdin.write(message.encode())
        self._node.stdin.flush()

    def step(self, **head: Any) -> dict[str, Any]:
        self._write(Message(head))
        return self._read().head

    def end(self, message: Message | None) -> Message:
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        if message is not None:
            self._write(message)
        self._node.stdin.close()
        last = self._read()
        self._node.stdout.close()
        assert self._node.wait(20) == 0
        return last


@pytest.fixture
def listeners() -> Iterator[Listeners]:
    opened = Listeners(WORD)
    yield opened
    opened.close()


def listen(listeners: Listeners, port: int = 0, address: str = HERE) -> dict[str, Any]:
    return listeners.listen({"key": "pair", "address": address, "port": port})


def connect(port: int, **more: Any) -> dict[str, Any]:
    target = {"target": "b", "key": "pair", "address": HERE, "port": port, **more}
    (made,) = connect_to([target], WORD, 1.0)
    return made


def connect_served(serve: Callable[[socket.socket], None]) -> dict[str, Any]:
    """Connect to a listener that serves one caller in this way, and is over with it in time."""
    with socket.create_server((HERE, 0)) as server:

        def accept() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                serve(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        made = connect(server.getsockname()[1])
        thread.join(5)
        assert not thread.is_alive()
    return made


def share_of(folder: Path) -> dict[str, Any]:
    return {"path": str(folder), "folders": [str(folder)], "name": "0"}


def test_a_whole_meeting_leaves_nothing_behind(tmp_path: Path) -> None:
    node = Conversation()
    socket_ = {"key": "pair", "address": HERE, "port": 0}
    prepared = node.step(step="prepare", sockets=[socket_], tokens=[share_of(tmp_path)])
    port = prepared["bound"][0]["port"]
    target = {"target": "self", "key": "pair", "address": HERE, "port": port, "source": HERE}
    token = {"path": str(tmp_path), "folder": str(tmp_path), "name": "0", "writer": "self"}
    met = node.step(step="meet", targets=[target], limit_s=2, tokens=[token], token_limit_s=2)

    (made,) = met["connected"]
    assert (made["state"], made["source"], made["seen_as"]) == ("ok", HERE, HERE)
    assert met["seen"][0]["seen"] is True
    assert node.end(Message({"step": "end"})).head == {"foreign": [], "end": True}
    assert os.listdir(tmp_path) == []  # noqa: PTH208
    assert connect(port)["state"] == "refused"


def test_a_connection_that_was_not_bound_tells_where_it_came_from(listeners: Listeners) -> None:
    made = connect(listen(listeners)["port"], source=None)
    assert (made["state"], made["source"]) == ("ok", HERE)


def test_nodes_meet_over_ipv6_too(listeners: Listeners, ipv6: str) -> None:
    for port in (0, free_port(ipv6)):
        bound = listen(listeners, port, ipv6)
        assert "error" not in bound
        made = connect(bound["port"], address=ipv6, source=ipv6)
        assert (made["state"], made["source"], made["seen_as"]) == ("ok", ipv6, ipv6)


def test_a_controller_that_goes_away_leaves_nothing_behind_either(tmp_path: Path) -> None:
    node = Conversation()
    node.step(step="prepare", sockets=[], tokens=[share_of(tmp_path)])
    assert len(os.listdir(tmp_path)) == 1  # noqa: PTH208

    node.end(None)

    assert os.listdir(tmp_path) == []  # noqa: PTH208


def test_a_controller_that_falls_silent_leaves_nothing_behind_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_probe, "CONTROLLER_SECONDS", 0.05)
    asked, answers = os.pipe(), os.pipe()
    prepare = Message({"step": "prepare", "sockets": [], "tokens": [share_of(tmp_path)]})
    os.write(asked[1], prepare.encode())
    with os.fdopen(asked[0], "rb", buffering=0) as reader, os.fdopen(answers[0], "rb") as told:
        link = CallChannel(reader, answers[1])
        assert peer_probe.probe_peers(WORD, link).head == {"foreign": []}
        answer = read_message(told)
    assert answer is not None
    assert answer.head["written"]
    assert os.listdir(tmp_path) == []  # noqa: PTH208
    for end in (asked[1], answers[1]):
        os.close(end)


def test_a_port_that_is_taken_names_its_holder(listeners: Listeners) -> None:
    with socket.create_server((HERE, 0)) as taken:
        bound = listen(listeners, taken.getsockname()[1])

    assert bound["port"] is None
    assert bound["error"] == "Address already in use"
    assert f"pid {os.getpid()}" in bound["holder"]


def test_a_holder_is_found_though_it_closes_other_descriptors_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = os.readlink

    def readlink(link: str) -> str:
        if link.endswith("/0"):
            raise FileNotFoundError(link)
        return read(link)

    monkeypatch.setattr(os, "readlink", readlink)
    with socket.create_server((HERE, 0)) as taken:
        assert f"pid {os.getpid()}" in port_owner(taken.getsockname()[1])


LISTEN = """'a program given as one word'
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_a_holder_is_shown_in_few_words() -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", LISTEN, "x" * 99], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    port = int(holder.stdout.readline())
    shown = port_owner(port)
    holder.communicate()

    name = Path(sys.executable).name
    assert shown.startswith(f"{name} -c 'a program given as one word' (pid {holder.pid}, user ")


def test_a_stranger_that_accepts_and_is_silent_is_not_taken_for_us() -> None:
    with socket.create_server((HERE, 0)) as stranger:
        made = connect(stranger.getsockname()[1])

    assert (made["state"], made["words"]) == (
        "foreign",
        "it accepts the connection but sends nothing",
    )


def test_an_echo_is_not_taken_for_us() -> None:
    made = connect_served(lambda connection: connection.sendall(connection.recv(100)))

    assert (made["state"], made["words"]) == ("foreign", "another program answers there")


@pytest.mark.parametrize("size", [1, 1500, 9000, 16384])
def test_a_padding_arrives_whole(listeners: Listeners, size: int) -> None:
    port = listeners.listen({"key": "pair", "address": HERE, "port": 0, "padding": size})["port"]
    made = connect(port)
    assert (made["state"], made["full_size"], made["seen_as"]) == ("ok", True, HERE)
    assert made["interface"] == "lo"


def test_who_never_stops_sending_is_not_heard_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect_module, "PADDING_SECONDS", 0.2)
    monkeypatch.setattr(connect_module, "GRACE_SECONDS", 0.2)

    def serve(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(answer(padding=100_000) + encode_head({}, 100_000))
        while True:
            connection.sendall(bytes(100))
            time.sleep(0.01)

    made = connect_served(serve)

    assert (made["state"], made["full_size"]) == ("ok", False)


def test_without_a_padding_nothing_is_known_of_large_packets(listeners: Listeners) -> None:
    assert "full_size" not in connect(listen(listeners)["port"])


@pytest.mark.parametrize(
    ("sent", "closes", "full_size"), [(2999, False, False), (0, False, False), (2999, True, None)]
)
def test_a_padding_that_does_not_arrive(
    sent: int, *, closes: bool, full_size: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect_module, "PADDING_SECONDS", 0.2)

    def serve(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(answer(3000) + encode_head({}, 3000) + bytes(sent))
        if not closes:
            connection.recv(100)  # until the other end gives up

    made = connect_served(serve)

    assert (made["state"], made.get("full_size")) == ("ok", full_size)


def test_counters_are_read_again_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "rx_errors").write_text("7\n")
    node = Conversation()
    question = {"path": str(tmp_path), "files": ["rx_errors", "none"]}
    last = node.end(Message({"step": "end", "counters": [question]})).head
    assert last["counters"] == {str(tmp_path): "rx_errors 7\n"}


@given(st.binary(max_size=64) | st.binary(max_size=6).map(lambda rest: b"\x08\0\x04\0" + rest))
def test_whatever_the_kernel_answers_an_interface_is_a_name(answer: bytes) -> None:
    head = route_lookup.HEADER.pack(len(answer) + 28, route_lookup.RTM_NEWROUTE, 0, 1, 0)
    with contextlib.suppress(OSError):  # no interface has such a number
        assert isinstance(route_lookup._interface_of(head + bytes(12) + answer), str)


def test_who_does_not_know_the_word_is_remembered(listeners: Listeners) -> None:
    port = listen(listeners)["port"]
    with socket.create_connection((HERE, port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.0\r\n")
        assert stranger.recv(100) == b""

    assert listeners.foreign() == [HERE]
    assert connect(port)["state"] == "ok"


@pytest.mark.parametrize(
    "said",
    [
        WORD[16:].encode() + b"1" * 1000,
        Message({"hello": WORD[16:], "seen_as": "1" * 1000}).encode(),
        Message({"hello": WORD[:16]}).encode(),
        Message({"seen_as": HERE}).encode(),
        b"\0\0\0\7\0\0\0\0[1,2,3]",
        b"hi",
    ],
)
def test_a_listener_that_does_not_answer_as_we_do_is_not_taken_for_us(said: bytes) -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(said)
        connection.recv(100)

    made = connect_served(serve)

    assert (made["state"], made["words"]) == ("foreign", "another program answers there")


@settings(max_examples=settings().max_examples // 5)
@given(st.binary(min_size=1, max_size=64) | damaged(HELLO))
def test_whatever_a_stranger_says_the_nodes_are_heard(listeners: Listeners, said: bytes) -> None:
    ports = [each._socket.getsockname()[1] for each in listeners._served]
    port = ports[0] if ports else listen(listeners)["port"]
    answer = b""
    with socket.create_connection((HERE, port)) as stranger:
        with contextlib.suppress(OSError):  # it may be closed while bytes are on their way
            stranger.sendall(said[:4096])
            stranger.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            answer = stranger.recv(100)
    assert bool(answer) == said.startswith(HELLO)
    assert connect(port)["state"] == "ok"


def test_a_caller_that_drips_has_no_more_time_than_others(
    listeners: Listeners, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen_module, "HELLO_SECONDS", 0.5)
    port = listen(listeners)["port"]
    with socket.create_connection((HERE, port), timeout=0.2) as slow:
        for byte in HELLO[:8]:  # with a limit for each byte all of them are heard
            try:
                slow.sendall(bytes([byte]))
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("it was heard for longer than it may take")
    assert connect(port)["state"] == "ok"


def test_however_many_call_and_are_silent_the_others_are_heard(
    listeners: Listeners, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen_module, "HELLO_SECONDS", 60.0)
    monkeypatch.setattr(listen_module, "MAX_UNAUTHENTICATED", 5)
    port = listen(listeners)["port"]
    before = psutil.Process().num_threads()  # earlier listeners may still be ending
    with contextlib.ExitStack() as closing:
        silent = [closing.enter_context(socket.create_connection((HERE, port))) for _ in range(30)]
        assert connect(port)["state"] == "ok"
        assert psutil.Process().num_threads() < before + len(silent)
        assert silent[0].recv(1) == b""  # the oldest made room


def test_a_listener_hears_again_after_a_time_without_descriptors(listeners: Listeners) -> None:
    port = listen(listeners)["port"]
    caller = socket.socket()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        caller.connect((HERE, port))
        time.sleep(0.2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert connect(port)["state"] == "ok"
    caller.close()


ROUTED = """
import sys
from clusterctl.node.probe.connect import connect_to
(found,) = connect_to([{"address": "10.9.9.9", "port": 80}], "", 2.0)
print(found["state"], found["words"])
"""


@pytest.mark.netns
@pytest.mark.parametrize("kind", ["blackhole", "prohibit", "unreachable"])
def test_a_route_that_drops_is_no_way_to_a_node(kind: str) -> None:
    shell = 'ip link set lo up; ip route add "$1" 10.9.9.9; shift; exec "$@"'
    argv = ["unshare", "-n", "sh", "-e", "-c", shell, "sh", kind, sys.executable, "-c", ROUTED]
    ran = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("unreachable "), ran.stdout
    assert ("blackhole" in ran.stdout) == (kind == "blackhole")


def test_an_address_that_is_not_ours_cannot_be_the_source(listeners: Listeners) -> None:
    made = connect(listen(listeners)["port"], source="192.0.2.77")

    assert (made["state"], made["words"]) == ("error", "Cannot assign requested address")


def test_a_token_is_written_where_it_can_be(tmp_path: Path) -> None:
    tokens = Tokens(WORD)
    (tmp_path / "work").mkdir()
    folders = [str(tmp_path / "absent"), str(tmp_path / "work")]
    (written,) = tokens.write([{"path": str(tmp_path), "folders": folders, "name": "0"}])
    (nowhere,) = tokens.write([{"path": "/x", "folders": ["/proc/nothing"], "name": "0"}])

    assert written["folder"] == str(tmp_path / "work")
    assert (nowhere["folder"], nowhere["words"]) == (None, "No such file or directory")
    tokens.remove()
    assert list((tmp_path / "work").iterdir()) == []


def test_a_token_that_never_shows_and_one_that_is_another(tmp_path: Path) -> None:
    (tmp_path / ".clusterctl-token-1").write_text("another word")
    wanted = [
        {"path": str(tmp_path), "folder": str(tmp_path), "name": name, "writer": name}
        for name in ("0", "1")
    ]

    absent, other = Tokens(WORD).wait_for(wanted, 0.1)

    assert (absent["seen"], absent["words"]) == (False, "it is not in the folder's listing")
    assert (other["seen"], other["words"]) == (False, "its content is another")
