"""The ladder as nodes run it: their own processes, on a CPU, over loopback."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import psutil
import pytest

from clusterctl.node.agent.loader import program
from clusterctl.node.probe.trial import gpu_trial, job_collective, job_ladder
from clusterctl.verbs.preflight.ladder import LIMITS, MAIN, PROGRAM
from tests.train.world import context
from tests.waiting import wait_until

pytestmark = pytest.mark.torch

ALL = ("sum", "gpus", "inside", "across")


@dataclass(frozen=True, slots=True)
class Climber:
    """The program of one node, and what it prints."""

    process: BaseProcess
    output: Connection


Start = Callable[..., Climber]


@pytest.fixture
def port() -> int:
    """Return a free port that the kernel gives to no listener of Gloo by itself."""
    while True:
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", 20000 + secrets.randbelow(10000)))
            return int(listener.getsockname()[1])


@pytest.fixture
def start(port: int) -> Iterator[Start]:
    """Start the program of one node; it is killed at the end, whatever happened."""
    started: list[Climber] = []

    def run(rank: int, world: int, **changes: Any) -> Climber:
        plan = {
            "rank": rank, "world": world, "address": "127.0.0.1", "port": port, "join_s": 45.0,
            "limit_s": 400.0, "limits": dict.fromkeys(LIMITS, 90.0), "device": "cpu",
            "gpus": [0, 1], "rails": 0, "dcgm": False, "rungs": list(ALL), **changes,
        }  # fmt: skip
        reader, writer = context().Pipe(duplex=False)
        # From a process that has torch; the last test starts it as an agent does.
        process = context().Process(target=climb, args=(json.dumps(plan), writer))
        process.start()
        writer.close()
        started.append(Climber(process, reader))
        return started[-1]

    yield run
    for one in started:
        one.process.kill()
        one.process.join()
        one.output.close()


def climb(plan: str, output: Connection) -> None:
    """Be the program."""
    import torch  # noqa: PLC0415  (it is there)

    torch.set_num_threads(1)
    # How fast a CPU is, nobody asks here.
    job_collective.BLOCKS["cpu"], job_collective.SENDS["cpu"] = (1 << 16, 1 << 18), (1 << 16,)
    gpu_trial.SIZE["cpu"], gpu_trial.COPIED["cpu"] = gpu_trial.PERIOD, 1 << 16
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.dup2(output.fileno(), 1)
    output.close()
    sys.stdout = os.fdopen(1, "w")
    job_ladder.main(plan)


def outcome(climber: Climber) -> dict[str, Any]:
    with os.fdopen(os.dup(climber.output.fileno())) as file:
        output = file.read()
    return dict(json.loads(output.splitlines()[-1]))


def climbed(found: dict[str, Any]) -> list[tuple[str, bool]]:
    return [(rung["name"], rung["works"]) for rung in found["rungs"]]


def test_sound_nodes_climb_every_rung_with_a_rail_for_each_gpu(start: Start) -> None:
    """The GPUs are CPUs here."""
    nodes = [start(rank, 3, rails=2, gpus=[4, 6]) for rank in range(3)]
    for found in map(outcome, nodes):
        assert climbed(found) == [(name, True) for name in ALL], found
        assert (found["stopped"], found["blamed"]) == ("", [])
        assert [gpu["wrong_numbers"] for gpu in found["gpus"]] == [0, 0]
        assert [gpu["right"] for gpu in found["inside"]] == [True, True]
        assert found["sum"]["gbps"] > 0
        assert [rail["index"] for rail in found["rails"]] == [4, 6]
        assert all(rail["gbps"] > 0 and len(list(filter(None, rail["pairs"]))) == 2
                   for rail in found["rails"])  # fmt: skip


def test_a_rail_that_breaks_is_told_by_the_number_of_its_gpu(start: Start) -> None:
    """This torch is built for CPUs, or its NCCL waits for those that use Gloo."""
    short = {**dict.fromkeys(LIMITS, 30.0), "across": 8.0}
    changes = {"rails": 2, "gpus": [4, 6], "rungs": ["across"], "limits": short}
    sound, broken = start(0, 2, **changes), start(1, 2, **changes, device="cuda")
    answers = [outcome(sound), outcome(broken)]

    assert all(found["blamed"] == [0, 1] for found in answers)
    assert [(rail["index"], rail["state"]) for rail in answers[1]["rails"]] == [
        (4, "error"), (6, "error"),
    ]  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_one_node_alone_tries_its_gpus_each_and_together(start: Start, device: str) -> None:
    """With NCCL on GPUs."""
    gpus = [0, 1]
    if device == "cuda":
        import torch  # noqa: PLC0415  (collecting tests must not wait for torch)

        gpus = list(range(torch.cuda.device_count()))
    before = holders() if device == "cuda" else ""
    found = outcome(start(0, 1, device=device, gpus=gpus, rungs=["gpus", "inside"]))

    assert climbed(found) == [("gpus", True), ("inside", True)], found
    assert [gpu["right"] for gpu in found["inside"]] == [True] * len(gpus)
    assert {gpu["backend"] for gpu in found["inside"]} == {"nccl" if device == "cuda" else "gloo"}
    if device == "cuda":
        assert all("NCCL version" in " ".join(gpu["nccl"]) for gpu in found["inside"])
        assert holders() == before  # nothing is left on the cards


def holders() -> str:
    """Return the processes that hold memory of a GPU."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()


def test_a_broken_rung_of_one_node_stops_all_there(start: Start) -> None:
    # This torch is built for CPUs, or there is no such GPU.
    sound, broken = start(0, 2), start(1, 2, device="cuda", gpus=[76, 77])
    answers = [outcome(sound), outcome(broken)]

    assert [climbed(found) for found in answers] == [
        [("sum", True), ("gpus", True)],
        [("sum", True), ("gpus", False)],
    ]
    assert all((found["stopped"], found["blamed"]) == ("gpus", [1]) for found in answers)
    assert {gpu["state"] for gpu in answers[1]["gpus"]} == {"error"}


def test_a_node_that_dies_on_a_rung_is_blamed_by_the_others(start: Start) -> None:
    short = dict.fromkeys(LIMITS, 8.0)
    first, second = start(0, 2, limits=short), start(1, 2, limits=short)
    second.process.kill()
    found = outcome(first)

    assert climbed(found) == [("sum", False)]
    assert (found["stopped"], 1 in found["blamed"]) == ("sum", True)


def test_a_master_that_cannot_be_reached_is_told(start: Start) -> None:
    found = outcome(start(1, 2, join_s=2.0))

    assert found["error"]
    assert "rungs" not in found


def test_a_port_that_another_program_has_is_told_by_the_master(start: Start, port: int) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        found = outcome(start(0, 2, join_s=2.0))

    assert "use" in found["error"]


def test_nothing_is_left_when_the_agent_is_killed(port: int, tmp_path: Any) -> None:
    """As by a lost connection or the agent's own end: the kernel ends the children with it."""
    plan = {
        "rank": 0, "world": 2, "address": "127.0.0.1", "port": port, "join_s": 45.0,
        "limit_s": 120.0, "limits": dict.fromkeys(LIMITS, 30.0), "device": "cpu",
        "gpus": [], "rails": 0, "dcgm": False, "rungs": ["sum"],
    }  # fmt: skip
    text = tmp_path / "ladder.py"
    text.write_bytes(program(PROGRAM))
    argv = [sys.executable, str(text), MAIN, json.dumps(plan)]
    # The second rank never comes, so that the child waits for it.
    agent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import subprocess; subprocess.run({argv!r}, start_new_session=True)",
        ],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
    )
    wait_until(lambda: len(psutil.Process(agent.pid).children(recursive=True)) == 3)
    family = psutil.Process(agent.pid).children(recursive=True)
    os.kill(agent.pid, signal.SIGKILL)
    agent.wait()

    wait_until(lambda: not any(process.is_running() for process in family), seconds=30)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
