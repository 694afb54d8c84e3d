"""The port and the GPU memory: given time to come free, and what keeps them is named."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator

import pytest

from clusterctl.node import tcp_sockets
from clusterctl.node.run.processes import processes, release_check

RUN = "lab-1"


@pytest.fixture
def port() -> Iterator[int]:
    """Listen on a port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def job(port: int, *, rank: int = 0) -> dict[str, object]:
    return {"node_rank": rank, "master": {"port": port}}


def test_who_keeps_the_port_is_named(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_check, "PORT_SECONDS", 0.0)
    free, holder = release_check.check_port(job(port), RUN)
    assert free is False
    assert holder is not None
    assert holder["pid"] == os.getpid()


def test_a_port_that_another_run_has_taken_since_is_not_kept(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release_check, "PORT_SECONDS", 0.0)
    environ = b"HOME=/\0CLUSTERCTL_RUN_ID=lab-2\0"
    monkeypatch.setattr(processes, "read_proc", lambda _pid, _file: environ)
    assert release_check.check_port(job(port), "lab-1") == (True, None)
    assert release_check.check_port(job(port), "lab-2")[0] is False


def test_a_worker_never_had_the_masters_port(port: int) -> None:
    assert release_check.check_port(job(port, rank=1), RUN) == (True, None)


def test_where_the_job_is_not_known_nobody_could_look() -> None:
    assert release_check.check_port({}, RUN) == (None, None)
    assert release_check.check_gpu_memory({}, set()) == (None, [], {})


def test_a_port_gets_a_moment_to_come_free(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter([{"4711"}, {"4711"}, set[str]()])
    monkeypatch.setattr(tcp_sockets, "listening", lambda _port: next(seen))
    monkeypatch.setattr(release_check, "POLL_SECONDS", 0.0)
    assert release_check.check_port(job(29500), RUN) == (True, None)


def gone() -> int:
    """Return the number of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


def test_the_driver_gets_a_moment_to_take_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    pid = gone()
    held = iter([{pid: "9 MiB of GPU 0"}, {pid: "9 MiB of GPU 0"}, dict[int, str]()])
    monkeypatch.setattr(release_check, "memory_holders", lambda: next(held))
    monkeypatch.setattr(release_check, "POLL_SECONDS", 0.0)
    assert release_check.check_gpu_memory({"device": "cuda"}, {pid}) == (True, [], {})


def test_memory_that_stays_is_named_and_other_peoples_is_none_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pid = gone()
    held = {pid: "9 MiB of GPU 0", os.getpid(): "7 MiB of GPU 1"}
    monkeypatch.setattr(release_check, "memory_holders", lambda: held)
    monkeypatch.setattr(release_check, "GPU_SECONDS", 0.0)
    found = release_check.check_gpu_memory({"device": "cuda"}, {pid, os.getpid()})
    assert found.free is False
    assert [ghost["pid"] for ghost in found.unreleased] == [pid]
    assert "still keeps 9 MiB of GPU 0" in found.unreleased[0]["why"]
    assert found.held == held
    assert release_check.check_gpu_memory({"device": "cuda"}, set()) == (True, [], held)


def test_a_driver_that_does_not_answer_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_check, "memory_holders", lambda: None)
    assert release_check.check_gpu_memory({"device": "cuda"}, {1}) == (None, [], {})
    assert release_check.check_gpu_memory({"device": "cpu"}, {1}) == (True, [], {})
