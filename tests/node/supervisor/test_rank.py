"""The shim in front of a rank: it starts nothing that its supervisor does not watch."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.node.agent import loader


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A lock that is held, by a holder whose queue takes one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as holder:
        holder.bind("\0test-" + uuid.uuid4().hex)
        holder.listen(0)
        yield holder


def shim(folder: Path, holder: socket.socket) -> subprocess.Popen[bytes]:
    agent = folder / "agent.py"
    agent.write_bytes(loader.program())
    name = holder.getsockname()[1:].decode()
    words = (name, str(folder), "%s.log", "/", "/bin/echo", "started")
    argv = (
        sys.executable,
        "-X",
        "utf8",
        "-I",
        "-S",
        str(agent),
        "clusterctl.node.supervisor.ranks.rank:main",
    )
    environment = {"RANK": "3", "LOCAL_RANK": "1", "CLUSTERCTL_RUN_ID": "run-1"}
    return subprocess.Popen([*argv, *words], env=environment)


def answer(holder: socket.socket, text: str) -> dict[str, object]:
    connection, _ = holder.accept()
    with connection:
        asked: dict[str, object] = json.loads(connection.recv(65536))
        connection.sendall(text.encode())
    return asked


def test_a_supervisor_whose_queue_is_full_is_asked_again(
    tmp_path: Path, listener: socket.socket
) -> None:
    full = []
    for _ in range(2):  # a queue of none still takes one
        full.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        full[-1].setblocking(False)
        full[-1].connect_ex(listener.getsockname())
    rank = shim(tmp_path, listener)
    time.sleep(1)
    assert rank.poll() is None
    assert (tmp_path / "3.log").read_bytes() == b""
    for each in full:
        each.close()
    for _ in full:
        listener.setblocking(False)
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            break
    listener.setblocking(True)
    asked = answer(listener, '{"watched": true}\n')
    assert (asked["ask"], asked["run"], asked["rank"], asked["local_rank"]) == (
        "rank",
        "run-1",
        3,
        1,
    )
    assert rank.wait(20) == 0
    assert (tmp_path / "3.log").read_bytes() == b"started\n"


@pytest.mark.parametrize(
    ("said", "why"),
    [('{"ending": true}', b"the run is ending"), ('{"error": "no"}', b"refused it: no")],
)
def test_a_refused_rank_does_not_start(
    tmp_path: Path, listener: socket.socket, said: str, why: bytes
) -> None:
    rank = shim(tmp_path, listener)
    answer(listener, said + "\n")
    assert rank.wait(20) == 128 + 15
    assert why in (tmp_path / "3.log").read_bytes()


def test_without_an_answer_it_asks_again(tmp_path: Path, listener: socket.socket) -> None:
    rank = shim(tmp_path, listener)
    answer(listener, "")
    answer(listener, "{}\n")
    answer(listener, '{"watched": true}\n')
    assert rank.wait(20) == 0
    assert (tmp_path / "3.log").read_bytes() == b"started\n"
