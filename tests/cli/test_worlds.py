"""A node that trains alone ends the run: nested launchers on real hosts, each in its own way."""

from __future__ import annotations

import re

import pytest

from tests.cli.runs import Project
from tests.waiting import BUSY

pytestmark = [pytest.mark.netns, pytest.mark.torch]

TRAIN = """
import os, time, torch.distributed as dist
dist.init_process_group("gloo")
print("size", dist.get_world_size(), flush=True)
time.sleep(600)
"""
PLANNED = '--node-rank=$NODE_RANK --master-addr=$MASTER_ADDR --master-port="$MASTER_PORT"'
ALONE = {
    "localhost": "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=localhost:$MASTER_PORT",
    "standalone": "--standalone",
    "one node": "--nnodes=1 --node-rank=0 --master-addr=localhost --master-port=6000",
    "c10d with static flags": f"--nnodes=2 --rdzv-backend=c10d {PLANNED}",
    "two first nodes": f"--nnodes=2 {PLANNED}".replace("$NODE_RANK", "0"),
}
FOUND = {
    "localhost": ("a rendezvous of its own at port ",),
    "standalone": ("a rendezvous of its own at localhost:",),
    # The master says the first, its peer the second; who looks first ends the run.
    "one node": (
        "RANK=0 of WORLD_SIZE=1 on 1 node, at localhost:6000",
        "a rendezvous of its own at localhost:6000",
    ),
    "c10d with static flags": ("a rendezvous of its own at localhost:29400",),
    "two first nodes": ("a rendezvous of its own at port ",),
}


LAUNCH = ("launch", "--launcher", "direct", "--procs-per-node", "1", "--nodes", "2", "--no-check")


@pytest.mark.soak  # test_worlds.py, test_gathering.py of the supervisor
@pytest.mark.parametrize("kind", ALONE)
def test_a_script_that_meets_elsewhere_ends_the_run_at_once(project: Project, kind: str) -> None:
    (project.folder / "train.py").write_text(TRAIN)
    script = f"# torchrun\ntorchrun {ALONE[kind]} --nproc-per-node=1 train.py"
    (project.folder / "run.txt").write_text(script)
    # Made on the node: what reading the script tells is refused before the launch.
    made = "cp run.txt run.$RANK.sh; exec bash run.$RANK.sh"
    answer = project.run(*LAUNCH, "--start-timeout", "300", "--", "bash", "-c", made)
    assert answer.returncode == 125, (answer.stdout, answer.stderr)
    assert "failed (ended by world)" in answer.stderr
    assert "does not meet the other nodes: expected the run's at " in answer.stderr
    assert any(f"found {one}" in answer.stderr for one in FOUND[kind]), answer.stderr
    assert re.search(r"\(run\.[01]\.sh:2: ", answer.stderr), answer.stderr
    assert "hint: let the script give its launcher --nnodes=$NNODES" in answer.stderr
    assert project.status()["ended_by"] == "world"


@pytest.mark.soak  # test_gathering.py forces one without torch
def test_a_world_elsewhere_that_is_forced_is_told_and_goes_on(project: Project) -> None:
    (project.folder / "prep.py").write_text(
        TRAIN.replace("time.sleep(600)", 'while not os.path.exists("told"): time.sleep(0.1)')
    )
    (project.folder / "run.sh").write_text(
        "torchrun --nnodes=1 --nproc-per-node=1 --standalone prep.py"
    )
    launch = project.start(*LAUNCH, "--force", "--", "bash", "run.sh")
    assert launch.stderr is not None
    told = launch.stderr.readline()
    while "a rank does not meet the other nodes: expected the run's at " not in told:
        assert launch.poll() is None, told
        told += launch.stderr.readline()
    (project.placed / "told").touch()
    stdout, stderr = launch.communicate(timeout=BUSY)
    assert launch.returncode == 0, (stdout, stderr)
    # Lines that both print at once are one: `[*:0-1] size 1`.
    shown = [line.partition("]")[0] for line in stdout.splitlines() if line.endswith("size 1")]
    assert "".join(sorted(shown)) in {"[*:0-1", "[node1:0[node2:1"}


@pytest.mark.soak  # test_worlds.py of the supervisor, test_entry_script.py
def test_a_program_that_starts_ranks_of_its_node_alone_ends_the_run(project: Project) -> None:
    (project.folder / "train.py").write_text(TRAIN)
    (project.folder / "own.py").write_text(
        "import sys\n"
        "from torch.distributed.launcher.api import LaunchConfig, elastic_launch\n"
        "count, place = int(sys.argv[1]), sys.argv[2]\n"
        "config = LaunchConfig(count, count, 2, rdzv_backend='c10d', rdzv_endpoint=place)\n"
        "elastic_launch(config, sys.executable)('train.py')\n"
    )
    answer = project.run(*LAUNCH, "--", "own.py", "1", "localhost:0")
    assert answer.returncode == 125, (answer.stdout, answer.stderr)
    found = "found a rendezvous of the program's own processes at port "
    assert found in answer.stderr
    assert "(own.py:5: " in answer.stderr
    assert "hint: leave the ranks to clusterctl" in answer.stderr
