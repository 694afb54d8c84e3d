"""A rank that only echoes another's end: the others may print why, and a silent node is noted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.node.printed_error import CLOSED_GRACE, TIMEOUT_GRACE, lines_grace
from clusterctl.verbs.dump.own_py_spy import find_py_spy
from tests.node.conftest import Head, Run
from tests.waiting import wait_until

MakeRun = Callable[..., Run]

ECHO = """
import os, sys, time
rank = os.environ["RANK"]
print("here", flush=True)
while not os.path.exists("go" + rank):
    time.sleep(0.01)
if rank == "0":
    raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.2]:9")
os._exit(3)
"""


def of_kind(run: Run, n: int, kind: str) -> list[Head]:
    return [event for event in run.events(n) if event["kind"] == kind]


@pytest.mark.parametrize(
    ("last", "seconds"),
    [
        ("RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer", CLOSED_GRACE),
        ("RuntimeError: Application timeout caused pair closure", TIMEOUT_GRACE),
        ("ValueError: bad sample", None),
        ("step 7", None),
    ],
)
def test_only_an_echo_lets_others_print(last: str, seconds: float | None) -> None:
    warning = (
        "[W1122 06:50:00.1 TCPStore.cpp:125] [c10d] recvValue failed: Connection reset by peer"
    )
    assert lines_grace(["step 6", last, "", warning]) == seconds


def test_a_rank_that_fails_soon_after_its_echo_fails_by_itself(make_run: MakeRun) -> None:
    run = make_run(ECHO, nodes=2).start()
    for rank in (0, 1):
        run.wait_for_log(rank, b"here", n=rank)
    wait_until(lambda: of_kind(run, 0, "peer-joined") != [])
    pid = run.status(0)["ranks"][0]["pid"]
    (run.workdir / "go0").touch()
    wait_until(lambda: not Path(f"/proc/{pid}").exists())  # reaped: its grace begins
    (run.workdir / "go1").touch()
    assert run.ended(1)["end"]["reason"] == "rank 1 ended with exit code 3"
    (ended,) = of_kind(run, 1, "rank-ended")
    assert (ended["exit_code"], ended["ordered"]) == (3, False)
    assert run.ended(0)["state"] == "failed"
    assert not run.left()


def test_a_stop_after_an_echo_stays_a_failure(make_run: MakeRun) -> None:
    run = make_run(ECHO, procs=2).start()
    for rank in (0, 1):
        run.wait_for_log(rank, b"here")
    (run.workdir / "go0").touch()
    wait_until(lambda: of_kind(run, 0, "rank-ended") != [])
    run.stop()
    end = run.ended()["end"]
    assert (end["state"], end["by"], end["reason"]) == (
        "failed", "rank", "rank 0 ended with exit code 1",
    )  # fmt: skip
    assert not run.left()


WAITS_IN_VAIN = """
import os, time
def next_batch():
    time.sleep(600)
print("here", flush=True)
if os.environ["RANK"] == "1":
    next_batch()
while not os.path.exists("go"):
    time.sleep(0.01)
raise RuntimeError("[gloo] Timed out waiting 1000ms for recv operation to complete")
"""


def test_a_rank_that_waits_in_vain_leaves_the_stacks_of_those_that_live(make_run: MakeRun) -> None:
    run = make_run(WAITS_IN_VAIN, nodes=2).start()
    for rank in (0, 1):
        run.wait_for_log(rank, b"here", n=rank)
    wait_until(lambda: of_kind(run, 0, "peer-joined") != [])
    spy = find_py_spy()
    assert spy is not None
    run.call(1, "dump", {**run.where(1), "tool": spy.words, "store": True}, spy.packed)
    (run.workdir / "go").touch()
    waited, other = (run.ended(n)["end"] for n in (0, 1))
    assert (waited["by"], waited["stacks"]) == ("rank", False)
    assert (other["by"], other["stacks"]) == ("peer", True)
    dump: Head = json.loads(Path(run.paths(1).hang, "1.json").read_text())
    assert dump["timed_out"]
    (rank,) = dump["ranks"]
    process, *_ = rank["processes"]
    assert process["source"] == "py-spy", process["missing"]
    assert (rank["rank"], process["threads"][0]["frames"][0]["function"]) == (1, "next_batch")
    assert not Path(run.paths(0).hang).exists()
    assert not run.left()


@pytest.mark.parametrize("failing", [0, 1])
def test_a_node_that_is_silent_as_the_run_ends_is_noted(make_run: MakeRun, failing: int) -> None:
    run = make_run(ECHO.replace('rank == "0"', f'rank == "{failing}"'), nodes=2, lost_after=60.0)
    run.start()
    for rank in (0, 1):
        run.wait_for_log(rank, b"here", n=rank)
    wait_until(lambda: of_kind(run, failing, "peer-joined") != [])
    run.kill_supervisor_and_guard(1 - failing)
    (run.workdir / f"go{failing}").touch()
    assert run.ended(failing)["end"]["by"] == "rank"
    (silent,) = of_kind(run, failing, "peer-silent")
    assert silent["peer"] == run.names[1 - failing]
    assert silent["time"] - silent["since"] > 4
