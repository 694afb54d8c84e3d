"""`clusterctl push` while nodes die, and where this machine does not reach their data network."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterctl.node.push.manifest import BLOCK
from clusterctl.sandbox.sandbox import Sandbox
from tests.conftest import MakeSandbox
from tests.installed import LOCATION
from tests.waiting import BUSY

pytestmark = pytest.mark.netns

ROOT = Path(__file__).parents[2]
PUSH = [sys.executable, "-m", "clusterctl", "push", "--json"]
ENV = {"PYTHONPATH": str(ROOT)}
BLOCKS = 12
FEW = 4
THERE = "/workspace/big"


@pytest.fixture
def big(tmp_path: Path) -> Path:
    return random_file(tmp_path, BLOCKS)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return random_file(tmp_path, FEW)


def random_file(folder: Path, blocks: int) -> Path:
    with (folder / "big").open("wb") as file:
        for _ in range(blocks):
            file.write(os.urandom(BLOCK))
    return folder / "big"


def written(box: Sandbox, node: str) -> int:
    """Return the bytes of the file on a node, whole or not."""
    shown = box.on(node, ["sh", "-c", "cat /workspace/big /workspace/.big.* 2>/dev/null | wc -c"])
    return int(shown.stdout or "0")


def nodes_of(output: str) -> dict[str, dict[str, Any]]:
    return {node["node"]: node for node in json.loads(output)["paths"][0]["nodes"]}


@pytest.mark.parametrize("kind", ["killed", pytest.param("sshd-killed", marks=pytest.mark.soak)])
def test_the_others_finish_without_a_node_that_dies(
    make_sandbox: MakeSandbox, big: Path, kind: str
) -> None:
    box = make_sandbox()
    for host in box.hosts:
        box.fault(host.name, "slow-network", "100")  # else it would be over too soon
    running = subprocess.Popen(
        box.command([*PUSH, f"{big}:{THERE}"]),
        env=box.environment() | ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + BUSY
    while written(box, "node2") < BLOCK:
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    box.fault("node2", kind)
    out, err = running.communicate(timeout=BUSY)
    assert running.returncode == 3, err
    found = nodes_of(out)
    assert [found[name]["state"] for name in ("node1", "node3")] == ["updated"] * 2
    assert found["node2"]["state"] == "unreachable"
    sums = {box.on(name, ["sha256sum", THERE]).stdout for name in ("node1", "node3")}
    assert len(sums) == 1
    box.heal()
    done = box.run([*PUSH, f"{big}:{THERE}"], env=ENV)
    again = nodes_of(done.stdout)
    assert done.returncode == 0, done.stderr
    assert again["node2"]["state"] == "updated"
    assert again["node2"]["received"] <= (BLOCKS - 1) * BLOCK
    assert again["node3"]["state"] == "unchanged"


def test_a_data_network_that_this_machine_is_not_on(
    make_sandbox: MakeSandbox, small: Path, tmp_path: Path
) -> None:
    """The blocks go to the first node over SSH, and from there through the chain."""
    box = make_sandbox()
    for number, host in enumerate(box.hosts):
        box.fault(host.name, "second-interface", f"data0=10.88.0.1{number}/24")
    document = yaml.safe_load(box.inventory.read_text())
    document["network"]["subnet"] = "10.88.0.0/24"
    own = tmp_path / "hosts.yaml"
    own.write_text(yaml.safe_dump(document, sort_keys=False))
    done = box.run([*PUSH, "-i", str(own), f"{small}:{THERE}"], env=ENV)
    assert done.returncode == 0, done.stderr
    assert {node["state"] for node in nodes_of(done.stdout).values()} == {"updated"}
    sums = {box.on(host.name, ["sha256sum", THERE]).stdout for host in box.hosts}
    assert len(sums) == 1


def test_a_node_that_the_one_before_it_cannot_reach_is_served_by_the_source(
    make_sandbox: MakeSandbox, small: Path, tmp_path: Path
) -> None:
    box = make_sandbox()
    rules = """
        table inet closed {
            chain input {
                type filter hook input priority 0;
                tcp dport != 22 tcp flags & (syn|ack) == syn reject with tcp reset
            }
        }
    """
    closed = box.on("node2", ["sh", "-c", f"echo '{rules}' | nft -f -"])
    assert closed.returncode == 0, closed.stderr
    done = box.run([*PUSH, f"{small}:{THERE}"], env=ENV)
    assert done.returncode == 0, done.stderr  # over SSH
    assert [node["state"] for node in nodes_of(done.stdout).values()] == ["updated"] * 3
    assert len({box.on(host.name, ["sha256sum", THERE]).stdout for host in box.hosts}) == 1


# What a node does instead of what the sources of this project say.
LIES_OF_THE_ONE_BEFORE = (
    "tree.py",
    "        if len(data) != block.length or",
    "        if os.uname().nodename == 'node2' or len(data) != block.length or",
)
SENDS_OTHER_BLOCKS = (
    "chain.py",
    "                tls.sendall(data)\n",
    "                tls.sendall(bytes(len(data)) if os.uname().nodename == 'node1' else data)\n",
)


@pytest.mark.parametrize(
    ("lie", "states"),
    [
        (LIES_OF_THE_ONE_BEFORE, {"node1": "updated", "node2": "failed", "node3": "updated"}),
        (SENDS_OTHER_BLOCKS, {"node1": "updated", "node2": "updated", "node3": "updated"}),
    ],
    ids=["says bad", "sends bad"],
)
def test_a_node_that_lies_harms_no_other(
    sandbox3: Sandbox,
    small: Path,
    tmp_path: Path,
    lie: tuple[str, str, str],
    states: dict[str, str],
) -> None:
    box, there = sandbox3, f"/workspace/{tmp_path.name}"
    shutil.copytree(LOCATION / "clusterctl", tmp_path / "lying" / "clusterctl")
    module, truth, untruth = lie
    changed = tmp_path / "lying" / "clusterctl" / "node" / "push" / module
    text = changed.read_text()
    assert text.count(truth) == 1
    text = text.replace(truth, untruth)
    changed.write_text(text.replace("import contextlib\n", "import contextlib\nimport os\n"))
    lying = {"PYTHONPATH": str(tmp_path / "lying")}
    done = box.run([*PUSH, f"{small}:{there}"], cwd=tmp_path, env=lying)
    found = nodes_of(done.stdout)
    assert {name: node["state"] for name, node in found.items()} == states, done.stderr
    right = hashlib.sha256(small.read_bytes()).hexdigest()
    for name, state in states.items():
        shown = box.on(name, ["sha256sum", there]).stdout
        assert shown.startswith(right) == (state == "updated")
    if "failed" in states.values():
        words = found["node2"]["words"]
        assert "it found blocks wrong that this machine sent and has right" in words
