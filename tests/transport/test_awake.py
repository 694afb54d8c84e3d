"""A machine that slept, or a clusterctl that was stopped, does not blame the nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Node
from clusterctl.transport import awake
from clusterctl.transport.interface import Reply
from clusterctl.transport.pool import Pool
from tests.failed_reply import error_of
from tests.sshd_servers import HELLO, Sshd, cluster_of

SLEEPER = """
import threading
from clusterctl.transport import awake
awake._TICK, awake._MISSED = 0.05, 0.5
one = awake.Awake(threading.Event())
print(one.now(), flush=True)
input()
print(one.now(), flush=True)
"""


def test_a_process_that_was_stopped_notices_it() -> None:
    command = [sys.executable, "-c", SLEEPER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin
        assert child.stdout
        assert child.stdout.readline() == "0.0\n"
        os.kill(child.pid, signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(child.pid, signal.SIGCONT)
        child.stdin.write("\n")
        child.stdin.flush()
        assert float(child.stdout.readline()) > 1


@pytest.fixture
def sleep(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let the clock that counts sleep be later by these seconds."""
    real, slept = awake._time, []  # type: ignore[var-annotated]
    monkeypatch.setattr(awake, "_time", lambda: real() + sum(slept))
    return slept


@pytest.mark.parametrize("times", [1, 2])
def test_a_login_that_the_sleep_broke_is_tried_once_more(
    sshd: Sshd, monkeypatch: pytest.MonkeyPatch, sleep: list[float], times: int
) -> None:
    with Pool(cluster_of(sshd.node("n"))) as pool:
        real, tries = pool._connector.connect, []

        def connect(node: Node) -> object:
            tries.append(node)
            if len(tries) > times:
                return real(node)
            sleep.append(25)
            raise NodeError("timeout", "auth", "n: no answer in time", "is the host up?")

        monkeypatch.setattr(pool._connector, "connect", connect)
        (reply,) = pool.call({"n": HELLO})
    assert len(tries) == 2
    if times == 1:
        assert reply.ok, reply
        return
    error = error_of(reply)
    assert (error.state, error.phase, error.hint) == ("timeout", "asleep", "type the command again")
    assert error.message.startswith("this machine slept, or this process was stopped, for 50 s")


@pytest.mark.parametrize("seconds", [0, 25])
def test_a_call_that_the_sleep_broke_says_so(
    sshd: Sshd, monkeypatch: pytest.MonkeyPatch, sleep: list[float], seconds: int
) -> None:
    with Pool(cluster_of(sshd.node("n"))) as pool:
        (reply,) = pool.open()
        assert reply.ok

        def work(_: object) -> Reply:
            sleep.append(seconds)
            return Reply.failed("n", NodeError("lost", "answer", "it was closed"))

        (reply,) = pool._each({"n": work})
    assert error_of(reply).phase == ("asleep" if seconds else "answer")
    assert error_of(reply).node == "n"
