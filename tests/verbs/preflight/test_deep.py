"""`check --deep` on hosts with GPUs that do not exist, and what is left after an interrupt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from clusterctl.sandbox.gpus import Gpus
from tests.waiting import wait_until

if TYPE_CHECKING:
    from clusterctl.sandbox.sandbox import Sandbox
    from tests.conftest import MakeSandbox

pytestmark = [pytest.mark.netns, pytest.mark.torch]

CHECK = [sys.executable, "-m", "clusterctl", "check", "--deep", "--only", "deep", "--json"]


def test_the_rung_that_stopped_is_named_and_those_above_are_not_tried(
    make_sandbox: MakeSandbox,
) -> None:
    """The GPUs are known to nvidia-smi alone: torch can use none of them."""
    box = make_sandbox(nodes=2, gpus=Gpus(model="H100", count=2))
    done = box.run(CHECK)
    document = json.loads(done.stdout)

    assert "Traceback" not in done.stderr
    tried = document["ladder"]["gpus"]
    assert [(gpu["host"], gpu["index"], gpu["state"]) for gpu in tried] == [
        ("node1", 0, "error"), ("node1", 1, "error"),
        ("node2", 0, "error"), ("node2", 1, "error"),
    ]  # fmt: skip
    assert {"CUDA" in gpu["error"] or "NVIDIA" in gpu["error"] for gpu in tried} == {True}
    assert [(row["name"], row["tried"], row["broken"]) for row in document["ladder"]["rungs"]] == [
        ("sum", True, []),
        ("gpus", True, ["node1", "node2"]),
        ("dcgm", False, []),
        ("inside", False, []),
        ("across", False, []),
    ]


ON_CPUS = """
import sys
from clusterctl.cli.shared.main import main
from clusterctl.verbs.preflight import ladder
ladder.DEVICE = "cpu"
sys.exit(main())
"""


@pytest.mark.soak  # above, two GPUs of two nodes; test_job_ladder.py has the rails
def test_each_gpu_of_a_node_reaches_those_of_the_others(make_sandbox: MakeSandbox) -> None:
    """The GPUs are CPUs here; the code is that of GPUs."""
    box = make_sandbox(nodes=2, gpus=Gpus(model="H100", count=2))
    done = box.run([sys.executable, "-c", ON_CPUS, *CHECK[3:]])
    document = json.loads(done.stdout)

    assert "Traceback" not in done.stderr
    rails = document["ladder"]["rails"]
    assert [(rail["host"], rail["index"], rail["right"]) for rail in rails] == [
        ("node1", 0, True), ("node1", 1, True), ("node2", 0, True), ("node2", 1, True),
    ]  # fmt: skip
    assert all(rail["fastest_gbps"] > 0 < rail["gbps"] for rail in rails)
    assert {rail["transport"] for rail in rails} == {None}  # Gloo has no lines of NCCL
    assert [(pair["from"], pair["peer"]) for pair in document["pairs"]] == [
        ("node1", "node2"), ("node2", "node1"),
    ]  # fmt: skip
    fastest = [sum(r["fastest_gbps"] for r in rails if r["host"] == f"node{n}") for n in (1, 2)]
    assert [pair["gbps"] for pair in document["pairs"]] == pytest.approx(fastest)


def climbing(box: Sandbox) -> list[int]:
    """Return the processes of the ladder on node2."""
    lines = box.on("node2", ["ps", "ax", "-ww", "-o", "pid=,args="]).stdout.splitlines()
    mine = [line.split()[0] for line in lines if "job_ladder:main" in line and '"rank": 1' in line]
    return [int(pid) for pid in mine]


@pytest.mark.parametrize(
    "cut", [pytest.param(signal.SIGINT, marks=pytest.mark.soak), signal.SIGKILL]
)
def test_nothing_goes_on_after_an_interrupt_while_a_process_hangs(
    make_sandbox: MakeSandbox, cut: signal.Signals
) -> None:
    box = make_sandbox(nodes=2)
    process = subprocess.Popen(
        box.command(["env", "--default-signal", *CHECK]),
        env=box.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: bool(climbing(box)))
    (hung, *_) = climbing(box)
    box.on("node2", ["kill", "-STOP", str(hung)])
    # Whoever entered the controller's namespaces is the parent of the command.
    pids = [process.pid, *children(process.pid)]
    for pid in pids[-1:]:
        os.kill(pid, cut)

    wait_until(lambda: not climbing(box), seconds=60)
    process.wait(timeout=30)


def children(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]
