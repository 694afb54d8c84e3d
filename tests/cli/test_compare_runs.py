"""Two real runs that differ in a flag, a package and a node: exactly these are named."""

from __future__ import annotations

import json
import shutil
import sys
import venv

import pytest
import yaml

from tests.cli.runs import Project

pytestmark = [pytest.mark.netns, pytest.mark.soak]
PROGRAM = """
import argparse, json, os, time
from pathlib import Path
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--out", type=Path)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
for step in range(1, 9):
    time.sleep(options.lr)
    if os.environ["RANK"] == "0":
        record = {"step": step, "time": time.time(), "loss": 2 - options.lr * step}
        record |= {"step_s": options.lr, "tok_s": 10 / options.lr}
        with (options.out / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\\n")
"""
JOB = ("slow.py", "--out", "out/{run}", "--lr")


def test_a_flag_a_package_and_a_node_are_named_with_their_effect(project: Project) -> None:
    environment = project.placed.with_name(f"{project.placed.name}-venv")
    venv.create(environment, with_pip=False)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = environment / "lib" / version / "site-packages"
    document = yaml.safe_load(project.inventory.read_text())
    document["defaults"]["python"] = f"{project.workdir}-venv/bin/python"
    document["job"] = {"launcher": "direct", "checkpoints": "out/{run}"}
    project.inventory.write_text(yaml.safe_dump(document, sort_keys=False))
    (project.folder / "slow.py").write_text(PROGRAM)
    try:
        (packages / "small-1.0.dist-info").mkdir()
        first = project.run("launch", "--nodes", "node1,node2", "--name", "one", "--", *JOB, "0.1")
        (packages / "small-1.0.dist-info").rename(packages / "small-1.1.dist-info")
        second = project.run(
            "launch", "--nodes", "node1,node3", "--name", "two", "--", *JOB, "0.05"
        )
        assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
        found = project.run("runs", "compare", "one", "two", "--json")
        events = project.run("runs", "show", "two", "--events")
        report = project.run("report", "two", "--output", "two.html")
    finally:
        shutil.rmtree(environment)

    compared = json.loads(found.stdout)
    assert [(one["block"], one["what"], one["values"]) for one in compared["differences"]] == [
        ("command", "--lr", ["0.1", "0.05"]),
        ("nodes", "nodes", ["node[1-2]", "node[1,3]"]),
        ("versions", "small", ["1.0", "1.1"]),
    ]
    assert compared["speedups"][0]["speedup"] == pytest.approx(2.0)
    assert compared["losses"][-1] == {"step": 8, "losses": pytest.approx([1.2, 1.6])}
    assert "launched on 2 nodes by" in events.stdout
    assert report.returncode == 0
    assert "tokens/s" in (project.folder / "two.html").read_text()
