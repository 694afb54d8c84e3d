"""A worker loses its power, and the run finishes on the spare node."""

from __future__ import annotations

import json
import random
import re
import subprocess
import time

import pytest
import yaml

from tests.cli.conftest import MakeProject
from tests.cli.hang_kinds import cut
from tests.cli.runs import Project
from tests.conftest import MakeSandbox
from tests.waiting import BUSY

pytestmark = pytest.mark.netns

JOB = """
import os, pathlib, socket, sys, time

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    server = socket.create_server(place)
    peers = [server.accept()[0] for _ in range(size - 1)]
else:
    while True:
        try:
            master = socket.create_connection(place)
            break
        except OSError:
            time.sleep(0.02)

def all_reduce():
    if rank:
        master.sendall(b"1")
        return int(master.recv(1))
    total = 1 + sum(int(peer.recv(1)) for peer in peers)
    for peer in peers:
        peer.sendall(b"%d" % total)
    return total

resumed = sys.argv[sys.argv.index("--resume") + 1] if "--resume" in sys.argv else ""
step = int(resumed.rpartition("-")[2]) if resumed else 0
first = step + 1
while not resumed or step < first + 20:
    total = all_reduce()
    step += 1
    when = f" first at {time.time():.2f}" if step == first else ""
    print(f"step {step} on {os.environ['CLUSTERCTL_NODE']} of {total}{when}", flush=True)
    if rank == 0 and step % 10 == 0:
        folder = pathlib.Path(f"out/checkpoint-{step}")
        folder.mkdir(parents=True, exist_ok=True)
        head = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
        data = len(head).to_bytes(8, "little") + head + bytes(4)
        (folder / "model.safetensors").write_bytes(data)
        (folder / "trainer_state.json").write_text('{"global_step": %d}' % step)
    time.sleep(0.1)
print("done", flush=True)
"""
"""Ranks that wait for each other in each step, as a training does, without what torch costs."""


def begin(project: Project) -> subprocess.Popen[str]:
    """Launch on three nodes and a spare; return once the ranks train."""
    (project.folder / "job.py").write_text(JOB)
    job = {"checkpoints": "out", "resume_args": ["--resume", "{checkpoint}"]}
    inventory = yaml.safe_load(project.inventory.read_text())
    project.inventory.write_text(yaml.safe_dump(inventory | {"job": job}, sort_keys=False))
    words = (
        "--no-check",
        "--launcher",
        "direct",
        "--restarts",
        "2",
        "--spares",
        "1",
        "--lost-after",
        "4",
    )
    launch = project.start("launch", *words, "--procs-per-node", "1", "--", "job.py")
    assert launch.stdout is not None
    next(line for line in launch.stdout if "step 10 " in line)
    return launch


def test_a_run_finishes_on_the_spare_when_a_worker_loses_its_power(
    make_sandbox: MakeSandbox, make_project: MakeProject
) -> None:
    project = make_project(make_sandbox(nodes=4))
    launch = begin(project)
    status = project.status()
    assert [node["state"] for node in status["nodes"]] == ["running"] * 3 + ["standby"]
    time.sleep(random.uniform(0, 3))
    lost = random.choice(["node2", "node3"])
    died = time.time()
    project.sandbox.fault(lost, "killed")
    printed, said = launch.communicate(timeout=4 * BUSY)
    assert launch.returncode == 0, printed + said
    assert f"without {lost}" in said
    assert "on node4 of 3" in printed
    first = re.search(r"on node4 of 3 first at ([0-9.]+)", project.run("logs").stdout)
    assert first is not None
    print(f"first step on the spare: {float(first[1]) - died:.1f} s after the death")

    status = project.status()
    states = {node["node"]: node["state"] for node in status["nodes"]}
    expected = dict.fromkeys(("node1", "node2", "node3", "node4"), "finished") | {lost: "left out"}
    assert (status["state"], states) == ("finished", expected)
    (left,) = [node["left_out"] for node in status["nodes"] if node["left_out"]]
    assert (left["node"], left["attempt"], left["spare"]) == (lost, 1, "node4")
    shown = project.run("status")
    assert shown.returncode == 0, shown.stdout
    assert "node4 has its place" in " ".join(shown.stdout.split())

    row = next(node for node in status["nodes"] if node["node"] == lost)
    assert (row["rank0"], row["ranks"], row["joined"]) == (None, 0, 0)
    stopped = project.run("stop", status["run"])
    assert stopped.returncode == 0, stopped.stdout
    assert f"{lost}: not verified, but the run had continued without it" in stopped.stdout

    # It is back, and takes no part.
    project.sandbox.heal()
    status = project.status()
    assert (status["state"], status["first_cause"]) == ("finished", None)
    assert project.run("stop", status["run"]).returncode == 0
    listed, *_ = json.loads(project.run("runs", "--json").stdout)["runs"]
    assert (listed["run"], listed["state"]) == (status["run"], "finished")


@pytest.mark.soak  # test_cut_links and test_blame show what is decided; only here is a link cut
def test_a_worker_that_another_does_not_reach_is_left_out(
    make_sandbox: MakeSandbox, make_project: MakeProject
) -> None:
    project = make_project(make_sandbox(nodes=4))
    launch = begin(project)
    cut(project, "node2", "node3")
    (rank,) = [one for one in project.status()["ranks"] if one["node"] == "node2"]
    project.sandbox.on("node2", ["kill", "-9", str(rank["pid"])])
    printed, said = launch.communicate(timeout=4 * BUSY)
    assert launch.returncode == 0, printed + said
    assert "without node3: node3: it does not reach node2" in " ".join(said.split())
    assert "on node4 of 3" in printed
