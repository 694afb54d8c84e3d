"""`clusterctl push` between real hosts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterctl.node.push.manifest import BLOCK
from clusterctl.sandbox.sandbox import Sandbox
from tests.waiting import BUSY

pytestmark = pytest.mark.netns

ROOT = Path(__file__).parents[2]
NODES = ("node1", "node2", "node3")
PUSH = [sys.executable, "-m", "clusterctl", "push"]
ENV = {"PYTHONPATH": str(ROOT)}


def push(box: Sandbox, cwd: Path, *words: str, code: int = 0) -> dict[str, Any]:
    done = box.run([*PUSH, *words, "--json"], cwd=cwd, env=ENV)
    assert done.returncode == code, (done.stdout, done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def states(found: dict[str, Any], path: int = 0) -> list[str]:
    return [node["state"] for node in found["paths"][path]["nodes"]]


def hashes(box: Sandbox, path: str) -> set[str]:
    return {box.on(node, ["sha256sum", path]).stdout.split()[0] for node in NODES}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "a weight").write_bytes(os.urandom(2 * BLOCK + 5))
    (folder / "sub" / "b").write_bytes(b"b")
    (folder / "link").symlink_to("sub/b")
    return folder


def test_a_folder_goes_from_here_and_from_a_node(
    sandbox3: Sandbox, tmp_path: Path, model: Path
) -> None:
    there = f"/workspace/{tmp_path.name}/model"
    found = push(sandbox3, tmp_path, f"model:{there}")
    assert states(found) == ["updated"] * 3
    assert found["paths"][0]["source"] == "this machine"
    assert len(hashes(sandbox3, f"{there}/a weight")) == 1
    assert sandbox3.on("node3", ["readlink", f"{there}/link"]).stdout == "sub/b\n"
    assert states(push(sandbox3, tmp_path, f"model:{there}")) == ["unchanged"] * 3

    sandbox3.on("node3", ["sh", "-c", f"echo own > {there}/sub/b"])
    found = push(sandbox3, tmp_path, f"model:{there}")
    assert states(found) == ["unchanged", "unchanged", "updated"]
    assert [node["words"] for node in found["paths"][0]["nodes"]] == ["", "", "replaced sub/b"]

    sandbox3.on("node2", ["rm", "-r", there])
    dry = push(sandbox3, tmp_path, there, "--dry-run")
    assert states(dry) == ["source", "would-update", "unchanged"]
    assert sandbox3.on("node2", ["ls", there]).returncode
    found = push(sandbox3, tmp_path, there, "--from", "node3")
    assert found["paths"][0]["source"] == "node3"
    assert states(found) == ["unchanged", "updated", "source"]
    assert found["paths"][0]["nodes"][1]["received"] == 2 * BLOCK + 6
    assert len(hashes(sandbox3, f"{there}/a weight")) == 1


def test_what_the_job_needs_is_what_is_pushed(
    sandbox3: Sandbox, tmp_path: Path, model: Path
) -> None:
    there = f"/workspace/{tmp_path.name}/data"
    sandbox3.on("node1", ["mkdir", "-p", there])
    sandbox3.on("node1", ["sh", "-c", f"echo 1 > {there}/all.jsonl"])
    document = yaml.safe_load(sandbox3.inventory.read_text())
    own = tmp_path / "hosts.yaml"
    own.write_text(yaml.safe_dump(document | {"job": {"needs": [there]}}, sort_keys=False))
    check = [sys.executable, "-m", "clusterctl", "check", "-i", str(own)]
    only = ["--only", "storage.needs"]
    before = sandbox3.run([*check, *only], cwd=tmp_path, env=ENV)
    assert before.returncode == 1
    assert f"clusterctl push {there}" in before.stdout + before.stderr
    assert states(push(sandbox3, tmp_path, "-i", str(own))) == ["source", "updated", "updated"]
    assert sandbox3.run([*check, *only], cwd=tmp_path, env=ENV).returncode == 0


def test_a_shared_folder_is_written_once(sandbox3: Sandbox, tmp_path: Path, model: Path) -> None:
    there = f"/shared/{tmp_path.name}/model"
    found = push(sandbox3, tmp_path, "model", "--to", f"/shared/{tmp_path.name}")
    assert states(found) == ["updated", "shared", "shared"]
    names = sandbox3.on("node2", ["ls", "-A", there]).stdout.split("\n")
    assert names == ["a weight", "link", "sub", ""]


@pytest.fixture
def slow_hosts(sandbox3: Sandbox) -> Iterator[Sandbox]:
    """Hosts to which a push takes long enough to be interrupted."""
    try:
        for node in NODES:
            sandbox3.fault(node, "slow-network", "100")
        yield sandbox3
    finally:
        sandbox3.heal()


def test_an_interrupted_push_leaves_nothing_running_and_is_resumed(
    slow_hosts: Sandbox, tmp_path: Path
) -> None:
    size = 12 * BLOCK
    with (tmp_path / "big").open("wb") as file:
        for _ in range(size // BLOCK):
            file.write(os.urandom(BLOCK))
    there = f"/workspace/{tmp_path.name}"
    command = slow_hosts.command([*PUSH, f"{tmp_path}/big:{there}/big"])
    running = subprocess.Popen(
        command, cwd=tmp_path, env=slow_hosts.environment() | ENV, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + BUSY

    def written() -> int:
        done = slow_hosts.on("node3", ["sh", "-c", f"du -sk {there} | cut -f1"])
        return int(done.stdout or "0") * 1024

    while written() < 3 * BLOCK:
        assert time.monotonic() < deadline
        assert running.poll() is None, running.communicate()
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    kept = written()
    while any(
        "clusterctl.node.agent" in slow_hosts.on(node, ["ps", "-eo", "args"]).stdout
        for node in NODES
    ):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert written() <= kept + 2 * BLOCK  # nothing writes on
    assert "big" not in slow_hosts.on("node3", ["ls", there]).stdout.split()
    slow_hosts.heal()
    found = push(slow_hosts, tmp_path, f"big:{there}/big")
    assert states(found)[2] in {"updated", "unchanged"}
    assert found["paths"][0]["nodes"][2]["received"] <= size - 3 * BLOCK + BLOCK
    assert len(hashes(slow_hosts, f"{there}/big")) == 1


def test_without_room_nothing_is_written(sandbox3: Sandbox, tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(64 << 20)
    done = sandbox3.on("node2", ["df", "--output=avail", "/dev/shm"])
    room = int(done.stdout.split()[-1]) * 1024
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(room + 1)
    there = f"/dev/shm/{tmp_path.name}"
    found = push(sandbox3, tmp_path, f"sparse:{there}", "--dry-run", code=1)
    assert states(found) == ["failed"] * 3
    assert "bytes to write" in found["paths"][0]["nodes"][1]["words"]


def test_a_path_that_nobody_has_is_an_error(sandbox3: Sandbox, tmp_path: Path) -> None:
    done = sandbox3.run([*PUSH, "/workspace/none"], cwd=tmp_path, env=ENV)
    assert done.returncode == 1
    assert "neither this machine nor a node has it" in done.stderr
    done = sandbox3.run([*PUSH, "/"], cwd=tmp_path, env=ENV)
    assert done.returncode == 2
