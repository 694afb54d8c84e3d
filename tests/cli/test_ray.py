"""A Ray cluster of the run's own on three hosts: trained on, stopped, broken, resumed."""

from __future__ import annotations

import importlib.util
import re
import time
from collections.abc import Callable

import pytest
import yaml

from clusterctl.sandbox.sandbox import Sandbox
from tests.cli.runs import Project

pytestmark = [
    pytest.mark.netns,
    pytest.mark.torch,
    pytest.mark.timeout(400),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]

TRAIN = """
import json, os, pathlib, signal, sys, time
import ray, torch

@ray.remote(num_cpus=1)
class Worker:
    def __init__(self, rank, world, address, weight):
        import torch.distributed as dist
        dist.init_process_group(
            "gloo", init_method=f"tcp://{address}:29777", rank=rank, world_size=world
        )
        self.dist, self.rank, self.world = dist, rank, world
        self.weight = torch.tensor([weight], dtype=torch.float64)

    def step(self, step):
        x = float(self.rank + step)
        loss = (self.weight * x) ** 2
        gradient = 2 * self.weight * x * x
        self.dist.all_reduce(gradient)
        self.weight -= 0.01 * gradient / self.world
        return loss.item()

    def read(self):
        return self.weight.item()

def save(*_):
    folder = pathlib.Path("out") / f"checkpoint-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    weight = ray.get(workers[-1].read.remote())  # through Ray, from another node
    torch.save({"weight": weight}, folder / "pytorch_model.bin")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    print("saved", step, flush=True)
    sys.exit(0)

ray.init(address="auto", logging_level="ERROR")
step, weight = 0, 1.0
if len(sys.argv) > 1:
    folder = pathlib.Path(sys.argv[1])
    step = json.loads((folder / "trainer_state.json").read_text())["global_step"]
    weight = torch.load(folder / "pytorch_model.bin", weights_only=False)["weight"]
nodes = sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"])
workers = [
    Worker.options(resources={f"node:{address}": 0.01}).remote(rank, len(nodes), nodes[0], weight)
    for rank, address in enumerate(nodes)
]
signal.signal(signal.SIGTERM, save)
while step < int(os.environ["STEPS"]):
    step += 1
    losses = ray.get([worker.step.remote(step) for worker in workers])
    print(f"world {len(workers)} step {step} loss {losses[0]:.6f}", flush=True)
    if str(step) == os.environ.get("PAUSE_AT"):
        while True:
            ray.get([worker.read.remote() for worker in workers])
            time.sleep(0.2)
"""
STEPS = 4
SMALL = ["--num-cpus=1", "--object-store-memory=80000000"]
BUSY = 120.0


@pytest.fixture
def training(project: Project) -> Project:
    """A project whose job is the training above."""
    (project.folder / "train.py").write_text(TRAIN)
    document = yaml.safe_load(project.inventory.read_text())
    job = {
        "launcher": "ray",
        "launcher_args": SMALL,
        "command": ["train.py"],
        "env": {"STEPS": str(STEPS)},
        "checkpoints": "out",
        "resume_args": ["{checkpoint}"],
    }
    project.inventory.write_text(yaml.safe_dump({**document, "job": job}, sort_keys=False))
    return project


def expected() -> dict[int, float]:
    """Return the loss of rank 0 in each step, with three ranks."""
    weight, found = 1.0, {}
    for step in range(1, STEPS + 1):
        found[step] = (weight * step) ** 2
        weight -= 0.01 * sum(2 * weight * (rank + step) ** 2 for rank in range(3)) / 3
    return found


def losses(project: Project) -> dict[int, float]:
    """Return the losses of the newest run; three workers took part in each step."""
    printed = project.run("logs", "--raw", "--rank", "0").stdout
    assert "world" in printed
    assert not re.search(r"world (?!3 )", printed)
    return {int(n): float(x) for n, x in re.findall(r"step (\d+) loss ([\d.]+)", printed)}


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + BUSY
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.5)


def wait_for_step(project: Project, step: int) -> None:
    """Wait until the driver has printed a step."""
    wait_for(lambda: f"step {step} " in project.run("logs", "--raw", "--rank", "0").stdout)


def left_on(sandbox: Sandbox) -> list[str]:
    """Return what Ray left on the hosts: processes, names in /tmp, shared memory, sockets."""
    look = (
        "ps axo args | grep -E '[r]aylet|[g]cs_server|[r]ay::|[r]ay[.]scripts';"
        " ls -d /tmp/clusterctl-ray* /tmp/ray /dev/shm/plasma* 2>/dev/null;"
        " find /var/tmp -path '*/ray/*' -type s"
    )
    found = [sandbox.on(host, ["sh", "-c", look]).stdout for host in ("node1", "node2", "node3")]
    return [line for text in found for line in text.splitlines()]


def test_a_training_runs_on_all_nodes_and_leaves_nothing_but_logs(training: Project) -> None:
    launched = training.run("launch")
    assert launched.returncode == 0, launched.stderr
    assert losses(training) == pytest.approx(expected(), rel=1e-5)
    status = training.status()
    assert [node["state"] for node in status["nodes"]] == ["finished"] * 3
    assert [(rank["rank"], rank["exit_code"]) for rank in status["ranks"]] == [(0, 0)]
    assert left_on(training.sandbox) == []
