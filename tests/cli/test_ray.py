"""A Ray cluster of the run's own on three hosts: trained on, stopped, broken, resumed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import yaml

from clusterctl.sandbox.sandbox import Sandbox
from tests.cli.runs import Project
from tests.waiting import BUSY, wait_until

pytestmark = [
    pytest.mark.netns,
    pytest.mark.torch,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]

TRAIN = """
import json, os, pathlib, signal, sys, time
import ray

@ray.remote(num_cpus=1)
class Worker:
    def __init__(self, rank, world, address, weight):
        assert os.environ["GLOO_SOCKET_IFNAME"] in os.listdir("/sys/class/net")
        self.rank, self.world, self.weight = rank, world, weight
        self.gloo = "GLOO" in os.environ
        if self.gloo:
            import torch.distributed as dist
            dist.init_process_group(
                "gloo", init_method=f"tcp://{address}:29777", rank=rank, world_size=world
            )

    def step(self, step):
        x = float(self.rank + step)
        gradient = 2 * self.weight * x * x
        if self.gloo:
            import torch
            summed = torch.tensor([gradient], dtype=torch.float64)
            torch.distributed.all_reduce(summed)
            gradient = summed.item() / self.world
        return (self.weight * x) ** 2, gradient

    def update(self, gradient):
        self.weight -= 0.01 * gradient

    def read(self):
        return self.weight

def save(*_):
    import torch
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
    import torch
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
    losses, gradients = zip(*ray.get([worker.step.remote(step) for worker in workers]))
    mean = sum(gradients) / len(workers)
    ray.get([worker.update.remote(mean) for worker in workers])
    print(f"world {len(workers)} step {step} loss {losses[0]:.6f}", flush=True)
    if str(step) == os.environ.get("PAUSE_AT"):
        while True:
            ray.get([worker.read.remote() for worker in workers])
            time.sleep(0.2)
"""
"""It imports torch only for checkpoints, and its workers only if GLOO is set."""
STEPS = 4
SMALL = ["--num-cpus=1", "--object-store-memory=80000000"]


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


def expected(world: int = 3) -> dict[int, float]:
    """Return the loss of rank 0 in each step."""
    weight, found = 1.0, {}
    for step in range(1, STEPS + 1):
        found[step] = (weight * step) ** 2
        weight -= 0.01 * sum(2 * weight * (rank + step) ** 2 for rank in range(world)) / world
    return found


def losses(project: Project, world: int = 3) -> dict[int, float]:
    """Return the losses of the newest run; so many workers took part in each step."""
    printed = project.run("logs", "--raw", "--rank", "0").stdout
    assert "world" in printed
    assert not re.search(rf"world (?!{world} )", printed)
    return {int(n): float(x) for n, x in re.findall(r"step (\d+) loss ([\d.]+)", printed)}


def wait_for_step(launched: subprocess.Popen[str], step: int) -> None:
    """Wait until the driver of this launch has printed a step."""
    assert launched.stdout is not None
    assert any(f" step {step} " in line for line in launched.stdout)


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
    launched = training.run("launch", "--nodes", "2", seconds=BUSY)
    assert launched.returncode == 0, launched.stderr
    assert losses(training, 2) == pytest.approx(expected(2), rel=1e-5)
    status = training.status()
    assert [node["state"] for node in status["nodes"]] == ["finished"] * 2
    assert [(rank["rank"], rank["exit_code"]) for rank in status["ranks"]] == [(0, 0)]
    assert [(n["node"], n["cpus"], n["gpus"]) for n in status["ray"]["nodes"]] == [
        ("node1", 1, 0), ("node2", 1, 0),
    ]  # fmt: skip
    assert "2 nodes, 2 CPUs, 0 GPUs; its workers do not report" in training.run("status").stdout
    assert left_on(training.sandbox) == []


@pytest.fixture
def other_ray(training: Project) -> Iterator[Callable[[], bool]]:
    """Start a Ray of somebody else on node2, with Ray's usual ports; tell if it still works."""
    on_node2 = partial(training.sandbox.on, "node2")
    start = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", *SMALL,
        "--include-dashboard=false", "--node-ip-address=10.77.0.12",
    ]  # fmt: skip
    wait_until(lambda: on_node2(start).returncode == 0)
    ask = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address=10.77.0.12:6379"]
    yield lambda: "Active" in on_node2(ask).stdout
    on_node2([sys.executable, "-m", "ray.scripts.scripts", "stop", "--force"])
    on_node2(["rm", "-rf", "/tmp/ray"])


@pytest.mark.soak
def test_a_stopped_driver_saves_through_ray_and_is_resumed_beside_another_ray(
    training: Project, other_ray: Callable[[], bool]
) -> None:
    launched = training.start("launch", "--env", "PAUSE_AT=2", "--env", "GLOO=1")
    wait_for_step(launched, 2)
    assert other_ray()
    stopped = training.run("stop")
    assert stopped.returncode == 0, stopped.stderr  # it verified that no process is left
    launched.communicate(timeout=BUSY)
    before = losses(training)
    assert "saved 2" in training.run("logs", "--raw", "--rank", "0").stdout
    resumed = training.run("resume", "--checkpoint", "latest", "--env", "PAUSE_AT=0", seconds=BUSY)
    assert resumed.returncode == 0, resumed.stderr
    after = losses(training)
    assert (sorted(before), sorted(after)) == ([1, 2], [3, 4])
    assert {**before, **after} == pytest.approx(expected(), rel=1e-5)
    assert other_ray()


@pytest.mark.soak
def test_nobody_else_can_use_the_runs_ray(training: Project) -> None:
    launched = training.start("launch", "--env", "PAUSE_AT=2")
    wait_for_step(launched, 2)
    use = "import ray; ray.init('10.77.0.11:29500'); print('nodes', len(ray.nodes()))"
    stranger = training.sandbox.on("node2", [sys.executable, "-c", use])
    assert stranger.returncode != 0
    assert "nodes" not in stranger.stdout
    assert "oken" in stranger.stderr
    assert training.run("stop", seconds=BUSY).returncode == 0
    launched.communicate(timeout=BUSY)


DRIVER = """
import os, ray
ray.init(logging_level="ERROR")
assert not os.environ.keys() & {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"}
print("nodes", [node["NodeManagerAddress"] for node in ray.nodes()], flush=True)
"""


@pytest.mark.soak
@pytest.mark.parametrize("address", ["auto", "10.77.0.12:6379"])
def test_a_ray_that_is_there_gets_only_a_driver(
    training: Project, other_ray: Callable[[], bool], address: str
) -> None:
    (training.folder / "driver.py").write_text(DRIVER)
    document = yaml.safe_load(training.inventory.read_text())
    document["job"]["ray_address"] = address
    document["nodes"] = [{"host": "node2", "master": True}, "node1", "node3"]
    training.inventory.write_text(yaml.safe_dump(document, sort_keys=False))
    launched = training.run("launch", "--", "driver.py", seconds=BUSY)
    assert launched.returncode == 0, launched.stderr
    assert "nodes ['10.77.0.12']" in launched.stdout
    status = training.status()
    assert [node["node"] for node in status["nodes"]] == ["node2"]
    assert status["ray"] is None
    assert training.run("stop").returncode == 0
    assert other_ray()


@pytest.mark.soak
def test_a_killed_raylet_ends_all_and_its_node_is_named(training: Project) -> None:
    launched = training.start("launch", "--env", "PAUSE_AT=2")
    wait_for_step(launched, 2)
    assert training.sandbox.on("node2", ["pkill", "-KILL", "-x", "raylet"]).returncode == 0
    _, errors = launched.communicate(timeout=BUSY)
    assert launched.returncode not in {0, 125}, errors
    cause = training.status()["first_cause"]
    assert (cause["node"], cause["kind"]) == ("node2", "launcher")
    assert "raylet [exit code=-9]" in cause["message"]
    assert left_on(training.sandbox) == []


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["node1", "node3"])
def test_a_killed_supervisor_leaves_nothing_of_ray(training: Project, victim: str) -> None:
    launched = training.start("launch", "--env", "PAUSE_AT=2")
    wait_for_step(launched, 2)
    nodes = {node["node"]: node for node in training.status()["nodes"]}
    pid = nodes[victim]["supervisor"]["pid"]
    assert training.sandbox.on(victim, ["kill", "-KILL", str(pid)]).returncode == 0
    _, errors = launched.communicate(timeout=BUSY)
    assert launched.returncode == 125, errors
    assert training.run("stop").returncode == 0
    assert left_on(training.sandbox) == []


@pytest.mark.soak
def test_a_stop_leaves_nothing_where_nobody_looked_after_ray_any_more(training: Project) -> None:
    launched = training.start("launch", "--lost-after", "5", "--env", "PAUSE_AT=2")
    wait_for_step(launched, 2)
    pid = training.status()["nodes"][2]["supervisor"]["pid"]
    both = f"kill -KILL $(ps -o ppid= -p {pid}) {pid}"  # its guard, too
    assert training.sandbox.on("node3", ["sh", "-c", both]).returncode == 0
    launched.communicate(timeout=BUSY)
    assert left_on(training.sandbox) != []
    stopped = training.run("stop", seconds=BUSY)
    assert stopped.returncode == 0, stopped.stderr
    assert left_on(training.sandbox) == []


@pytest.mark.soak
def test_a_node_that_cannot_join_is_named(training: Project) -> None:
    training.sandbox.fault("node3", "port-dropped")
    try:
        launched = training.run("launch", "--start-timeout", "20", "--force", seconds=BUSY)
    finally:
        training.sandbox.heal()
    assert launched.returncode == 125, launched.stderr
    cause = training.status()["first_cause"]
    assert cause["kind"] == "start-timeout"
    assert "node3 does not reach 10.77.0.11:29500" in cause["message"]
    assert left_on(training.sandbox) == []
