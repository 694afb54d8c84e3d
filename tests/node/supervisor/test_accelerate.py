"""accelerate itself, on two loopback nodes: its ranks are ours to watch, end and account for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.inventory.cluster import Job
from tests.node.conftest import Run
from tests.node.supervisor.test_rank_variables import assert_variables
from tests.waiting import wait_until

pytestmark = pytest.mark.torch

RANK = """
import gc, json, os, sys, time
gc.disable()  # a third of the import
variables = dict(os.environ)
from accelerate import Accelerator
one = Accelerator()
total = one.reduce(one.process_index * __import__("torch").ones(1))
found = [one.process_index, one.num_processes, int(total), sys.argv[1:], variables]
print(json.dumps(found), flush=True)
while not os.path.exists("go"): time.sleep(0.01)
if one.process_index == one.num_processes - 1: sys.exit(7)
time.sleep(300)
"""


def test_two_nodes_train_together_and_one_failure_ends_both(make_run: Callable[..., Run]) -> None:
    run = make_run(RANK, "--a b", nodes=2, launcher="accelerate").start()
    for n in (0, 1):  # a rank each: test_torchrun.py has several of a node
        run.wait_for_log(n, b"}]\n", n=n, seconds=120)
        *found, variables = json.loads(run.log(n, n=n).splitlines()[-1])
        assert found == [n, 2, 1, ["--a b"]]
        assert_variables(variables, n, 0, (1, 1))
    wait_until(lambda: all(rank["joined"] for n in (0, 1) for rank in run.status(n)["ranks"]))
    (run.workdir / "go").touch()
    worker, master = run.ended(1), run.ended(0)
    assert worker["end"]["reason"] == "rank 1 ended with exit code 7"
    assert (worker["end"]["exit_code"], master["end"]["by"]) == (7, "peer")
    assert not run.left()
    kinds = {event["kind"] for n in (0, 1) for event in run.events(n)}
    assert "nested-launcher" not in kinds
    assert all(Path(run.paths(n).folder, "torchrun").is_dir() for n in (0, 1))  # and not in /tmp


@pytest.mark.soak  # a plain process, as the ranks of `direct` are
def test_a_single_rank_is_accounted_for_without_an_agent(make_run: Callable[..., Run]) -> None:
    run = make_run(RANK, launcher="accelerate").start()
    run.wait_for_log(0, b"[0, 1, 0, [], {", seconds=120)
    (run.workdir / "go").touch()
    ended = run.ended()
    assert ended["end"]["reason"] == "rank 0 ended with exit code 7"
    assert ended["end"]["exit_code"] == 7
    assert not run.left()


@pytest.mark.soak  # test_supervisor.py has a stand-in
def test_a_configuration_that_starts_one_process_a_node_ends_the_run(
    make_run: Callable[..., Run],
) -> None:
    job = Job(launcher="accelerate", launcher_args=("--config_file", "cpu.yaml"))
    run = make_run(RANK, nodes=2, launcher="accelerate", job=job)
    (run.workdir / "cpu.yaml").write_text("distributed_type: MULTI_CPU\nuse_cpu: true\n")
    run.start()
    ends = [run.ended(n)["end"] for n in (0, 1)]
    reason = "a process without RANK: expected 2 ranks, found one alone"
    assert {end["by"] for end in ends} <= {"world", "peer"}
    assert all(end["reason"].endswith(reason) for end in ends)
