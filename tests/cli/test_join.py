"""Nodes join an elastic training: real hosts, real torchrun, real SSH."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.runs import Project
from tests.cli.test_json import validate
from tests.skew.make_fixture import check_out
from tests.waiting import wait_until

pytestmark = [pytest.mark.netns, pytest.mark.torch]

TRAIN = """
import gc, os, pathlib, time
gc.disable()  # a third of the import
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
assert os.environ["TOKEN"] == "s3cret-of-the-shell"
print(f"world {world} on {os.environ['CLUSTERCTL_NODE']}", flush=True)
out = pathlib.Path("out")
while not (out / "end").exists():
    dist.all_reduce(torch.ones(1))
    if rank == 0:
        out.mkdir(exist_ok=True)
        (out / f"world{world}-{os.environ['TORCHELASTIC_RESTART_COUNT']}").touch()
        (out / "now").write_text(str(world))
    time.sleep(0.1)
"""
CONF = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=20"
SECRET = {"TOKEN": "s3cret-of-the-shell"}


@pytest.fixture
def training(project: Project) -> Project:
    """A project with an elastic job."""
    (project.folder / "train.py").write_text(TRAIN)
    document = yaml.safe_load(project.inventory.read_text())
    job = {
        "launcher": "torchrun",
        "launcher_args": ["--nnodes=1:3", "--max-restarts=3", f"--rdzv-conf={CONF}"],
        "command": ["train.py"],
        "env": {"OMP_NUM_THREADS": "1"},
        "env_from": ["TOKEN"],
    }
    project.inventory.write_text(yaml.safe_dump({**document, "job": job}, sort_keys=False))
    return project


def world(project: Project) -> int:
    now = project.placed / "out" / "now"
    return int(now.read_text() or 0) if now.exists() else 0


def states(project: Project, **env: str) -> dict[str, str]:
    answer = project.run("status", "--json", env=env)
    document: dict[str, Any] = json.loads(answer.stdout)
    return {node["node"]: node["state"] for node in document["nodes"]}


def kill_part(project: Project, node: str) -> None:
    """Kill a node's supervisor and its guard, so that nobody is left there to say why."""
    (one,) = [each for each in project.status()["nodes"] if each["node"] == node]
    kill = f"import os; os.killpg(os.getpgid({one['supervisor']['pid']}), 9)"
    killed = project.sandbox.on(node, [sys.executable, "-c", kill])
    assert killed.returncode == 0, killed.stderr


EARLIER = "27fcc0b"
"""The first version that is kept in tests/skew and lets nodes join."""
EVERYBODY = dict.fromkeys(("node1", "node2", "node3"), "running")


def grown(training: Project, *words: str, to: int = 3) -> subprocess.Popen[str]:
    """Launch on all hosts but one, let it join, and return the launch that follows the run."""
    late = f"node{to}"
    launched = training.start("launch", "--nodes", str(to - 1), *words, env=SECRET)
    wait_until(lambda: world(training) == to - 1 or launched.poll() is not None)
    assert launched.poll() is None, launched.communicate()
    other = {**SECRET, "CLUSTERCTL_STATE": str(training.folder.parent / "another-laptop")}
    refused = training.run("join", "--nodes", late, env=other)
    assert refused.returncode == 1, refused.stderr
    assert f"{late}: this machine did not launch" in refused.stderr
    joined = training.run("join", "--nodes", late, "--json", env=SECRET)
    assert joined.returncode == 0, joined.stderr
    assert f"{late}: command: train.py\n{late}: env_from: TOKEN\n" in joined.stderr
    validate("join", json.loads(joined.stdout))
    wait_until(lambda: world(training) == to)
    return launched


def stop_everywhere(training: Project, launched: subprocess.Popen[str], count: int = 3) -> None:
    """Stop the run, which is verified on all its hosts."""
    everybody = [*EVERYBODY][:count]
    stopped = training.run("stop", "--json", "--grace", "5")
    assert stopped.returncode == 0, stopped.stderr
    (result,) = json.loads(stopped.stdout)["runs"]
    gone = {node["node"]: node["gone"] for node in result["nodes"]}
    assert gone == dict.fromkeys(everybody, True)
    out, errors = launched.communicate(timeout=120)
    assert f"world {count} on node{count}" in out, errors  # who followed from the start saw it, too
    for node in everybody:
        found = training.sandbox.on(node, ["grep", "-rl", SECRET["TOKEN"], "/var/tmp"])
        assert found.stdout == ""


def is_seen_by_everybody(training: Project, count: int = 3) -> None:
    """See all nodes run, from here and from a laptop without a record."""
    everybody = dict.fromkeys([*EVERYBODY][:count], "running")
    assert states(training) == everybody
    other = str(training.folder.parent / "another")
    assert states(training, CLUSTERCTL_STATE=other) == everybody


@pytest.mark.soak  # test_open_ports.py has a node join, and watches
def test_a_node_that_was_lost_joins_a_training_again(training: Project) -> None:
    launched = grown(training, "--lost-after", "20")
    is_seen_by_everybody(training)
    refused = training.run("join", "--nodes", "node2", env=SECRET)
    assert refused.returncode == 1
    assert "part of the run already" in refused.stderr
    assert training.run("join", "--nodes", "node9").returncode == 2

    kill_part(training, "node3")
    wait_until(lambda: world(training) == 2)
    assert training.status()["state"] == "running"

    again = training.run("join", "--nodes", "node3", env=SECRET)
    assert again.returncode == 0, again.stderr
    wait_until(lambda: world(training) == 3)
    lines = training.run("logs", "--node", "node3", "--raw").stdout.splitlines()
    assert lines.count("world 3 on node3") >= 2

    stop_everywhere(training, launched)
    over = training.run("join", "--nodes", "node3", env=SECRET)
    assert (over.returncode, "is over" in over.stderr) == (1, True)


@pytest.mark.soak
def test_a_node_joins_a_training_that_an_earlier_version_began(
    training: Project, tmp_path: Path
) -> None:
    try:
        check_out(EARLIER, ("clusterctl",), tmp_path / "earlier")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this checkout lacks {EARLIER}: {error.stderr.decode().strip()}")
    earlier = {**SECRET, "PYTHONPATH": str(tmp_path / "earlier")}
    launched = training.start("launch", "--nodes", "2", env=earlier)
    wait_until(lambda: world(training) == 2 or launched.poll() is not None)
    assert launched.poll() is None, launched.communicate()
    joined = training.run("join", "--nodes", "node3", env=SECRET)
    assert joined.returncode == 0, joined.stderr
    wait_until(lambda: world(training) == 3)
    assert states(training) == EVERYBODY
    stop_everywhere(training, launched)
