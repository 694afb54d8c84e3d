"""`clusterctl pull` from real hosts."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

from clusterctl.sandbox.sandbox import Sandbox
from tests.cli.test_json import validate

pytestmark = pytest.mark.netns

ROOT = Path(__file__).parents[2]
PULL = [sys.executable, "-m", "clusterctl", "pull"]
ENV = {"PYTHONPATH": str(ROOT)}


def test_shared_and_own_results_come_from_the_hosts_that_answer(
    sandbox3: Sandbox, tmp_path: Path
) -> None:
    shared, own = f"/shared/{tmp_path.name}", f"/workspace/{tmp_path.name}"
    sandbox3.on("node2", ["mkdir", "-p", shared])
    sandbox3.on("node2", ["sh", "-c", f"head -c 9000000 /dev/urandom > {shared}/model.bin"])
    for node in ("node1", "node2", "node3"):
        sandbox3.on(node, ["mkdir", "-p", own])
        sandbox3.on(node, ["sh", "-c", f"hostname > {own}/who"])
    project = tmp_path / "project"
    project.mkdir()
    done = sandbox3.run([*PULL, shared, f"{own}/who", "--json"], cwd=project, env=ENV)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    validate("pull", document)
    states = [[node["state"] for node in path["nodes"]] for path in document["paths"]]
    assert states == [["pulled", "same", "same"], ["pulled"] * 3]
    model = (project / "pulled" / tmp_path.name / "model.bin").read_bytes()
    there = sandbox3.on("node1", ["sha256sum", f"{shared}/model.bin"]).stdout.split()[0]
    assert hashlib.sha256(model).hexdigest() == there
    for node in ("node1", "node2", "node3"):
        assert (project / "pulled" / node / "who").read_text() == f"{node}\n"
    again = sandbox3.run([*PULL, f"{own}/who", "--from", "node2"], cwd=project, env=ENV)
    assert again.returncode == 0, again.stderr
    assert f"{own}/who: node2: 6 bytes in 1 file in {project}/pulled/who, verified" in again.stderr
    other = sandbox3.run([*PULL, f"{own}/who", "--from", "node3"], cwd=project, env=ENV)
    assert other.returncode == 1, other.stderr
    typed = f"hint: replace it: clusterctl pull {own}/who --from node3 --overwrite"
    assert typed in other.stderr.splitlines()
    assert (project / "pulled" / "who").read_text() == "node2\n"
    gone = sandbox3.run([*PULL, f"{own}/none"], cwd=project, env=ENV)
    assert gone.returncode == 1
    assert f"{own}/none: no node has it" in gone.stderr
