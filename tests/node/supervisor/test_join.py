"""Nodes that join an elastic run: new ones, and ones that were lost; loopback, without torch."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterctl.node.peer_link.run_tokens import node_token
from tests.node.conftest import Head, Run
from tests.waiting import wait_until

RANK = "import time; print('up', flush=True); time.sleep(600)"


def elastic(make_run: Callable[..., Run], *, most: int = 3, **options: Any) -> Run:
    """Start an elastic run on two of three nodes, with ranks that need no rendezvous."""
    run = make_run(RANK, nodes=3, lost_after=60.0, **options)
    kept = {"max_nodes": most, "job": {}, "workdir": None, "gpus": None, "subnet": "", "tree": ""}
    run.change = {
        "min_nodes": 1,
        "elastic": kept,
        "workers": [run.names[1]],
        "nnodes": 2,
        "start_timeout": 0,
    }
    for n in (0, 1):
        head = run.start_node(n)
        run.link_port = run.link_port or head["link_port"]
    for n in (0, 1):
        run.wait_for_log(n, b"up", n)
    wait_until(lambda: joins(run, 1) == 1)
    return run


def ask(run: Run, n: int, **how: Any) -> tuple[Head, bytes]:
    message = run.call(0, "join", {**run.where(0), "joins": run.names[n], **how})[-1]
    return message.head, message.body


def refused(run: Run, n: int) -> str:
    kind: str = ask(run, n)[0]["error"]["kind"]
    return kind


def start_joined(run: Run, n: int) -> Head:
    head, token = ask(run, n)
    assert token.decode() == node_token(run.identity.token, run.names[n])
    run.change = {**run.change, "joined": True, "workers": head["nodes"][1:]}
    assert head["link_port"] == run.link_port
    return run.start_node(n)


def lose(run: Run, n: int, pid: int) -> None:
    """Kill a process of a node's part; the others hear of it at once, without a silence."""
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: any(e["kind"] == "peer-left" for e in run.events(0)))
    assert run.ended(n)["end"]


def joins(run: Run, n: int) -> int:
    """Return how often the master has seen a node join."""
    names = [e["peer"] for e in run.events(0) if e["kind"] == "peer-joined"]
    return names.count(run.names[n])


def test_a_node_that_was_not_part_of_the_launch_joins(make_run: Callable[..., Run]) -> None:
    run = elastic(make_run)
    assert "token" not in json.dumps(ask(run, 2, asks=True)[0])
    assert "error" not in start_joined(run, 2)
    wait_until(lambda: joins(run, 2) == 1)
    assert run.status(0)["nodes"] == run.names
    assert run.status(1)["nodes"] is None
    assert refused(run, 2) == "joined"
    assert refused(run, 1) == "joined"
    assert run.stop(0, grace=0)["nodes"] == run.names
    assert run.ended(2)["end"]["by"] == "stop"
    assert not run.left()
    assert ask(run, 2)[0]["error"]["kind"] == "over"
    token = run.identity.token.encode()
    files = [path for n in range(3) for path in Path(run.paths(n).folder).rglob("*")]
    assert not [path for path in files if path.is_file() and token in path.read_bytes()]


def test_a_node_that_was_lost_joins_again_and_its_earlier_logs_stay(
    make_run: Callable[..., Run],
) -> None:
    run = elastic(make_run, most=2)
    assert refused(run, 2) == "full"
    lose(run, 1, run.pid_of_supervisor(1))  # its guard writes the end
    Path(run.paths(1).launcher_log).write_text("of the first part\n")
    assert "error" not in start_joined(run, 1)
    wait_until(lambda: joins(run, 1) == 2)
    wait_until(lambda: run.status(1)["state"] == "running")
    assert run.status(1)["attempt"] == 2
    ups = [e["attempt"] for e in run.events(1) if e["kind"] == "supervisor-up"]
    assert ups == [1, 2]
    wait_until(lambda: run.log(1, 1).count(b"up") == 2)
    assert "of the first part" in Path(run.paths(1).launcher_log).read_text()
    assert run.status(0)["nodes"] == run.names[:2]
    assert refused(run, 2) == "full"
    run.stop(0, grace=0)
    assert [run.ended(n)["state"] for n in (0, 1)] == ["stopped", "stopped"]
    assert not run.left()


def test_a_node_whose_part_still_runs_is_refused_and_stays_as_it_is(
    make_run: Callable[..., Run],
) -> None:
    run = elastic(make_run)
    run.change = {**run.change, "joined": True}
    error = run.start_node(1)["error"]
    assert (error["kind"], run.status(1)["state"]) == ("busy", "running")
    assert run.status(1)["attempt"] == 1


def test_a_part_that_cannot_start_again_leaves_the_earlier_one_as_it_was(
    make_run: Callable[..., Run],
) -> None:
    run = elastic(make_run)
    lose(run, 1, run.status(1)["ranks"][0]["pid"])
    state = run.status(1)["state"]
    before = {path: path.read_bytes() for path in Path(run.paths(1).folder).glob("*.json")}
    head, _ = ask(run, 1)
    run.change = {**run.change, "joined": True, "lock": "clusterctl-run-\0"}
    assert head["node_rank"] == 1
    with pytest.raises(AssertionError, match="embedded null byte"):
        run.start_node(1)
    after = {path: path.read_bytes() for path in Path(run.paths(1).folder).glob("*.json")}
    assert after == before
    assert run.status(1)["state"] == state


@pytest.mark.parametrize("state", ["asked again", "withdrawn"])
def test_a_place_that_was_given_is_free_again(make_run: Callable[..., Run], state: str) -> None:
    run = elastic(make_run)
    ask(run, 2)
    assert run.status(0)["nodes"] == run.names
    if state == "withdrawn":
        ask(run, 2, withdraws=True)
        assert run.status(0)["nodes"] == run.names[:2]
    assert ask(run, 2)[0]["node_rank"] in {2, 3}
    run.stop(0, grace=0)  # the end waits for no node that never came
    assert run.ended(0)["state"] == "stopped"


def test_no_node_joins_a_run_with_a_fixed_number_of_nodes(make_run: Callable[..., Run]) -> None:
    run = make_run(RANK, nodes=2).start()
    assert refused(run, 1) == "not-elastic"
