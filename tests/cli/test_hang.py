"""A follower of a hung run sees the verdict, on stderr and as JSON, without typing anything."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.runs import JOB, Project

STANDS_STILL = (
    JOB.partition("for step")[0]
    + """
from torch.distributed.distributed_c10d import all_reduce

def wait_for_batch():
    time.sleep(600)

if rank == 1:
    wait_for_batch()
all_reduce()
"""
)
LINE = STANDS_STILL.partition("    time.sleep(600)")[0].count("\n") + 1
WAITS = f"still.py:{LINE} wait_for_batch"
SPINS = """
import time

def all_reduce():
    while sum(range(40_000)) and not time.sleep(0.02): continue
"""
"""As NCCL does while it waits, at one line: only its stack tells that it does nothing."""


def fresh(project: Project) -> None:
    """Let no host have py-spy, neither its own nor one next to the job's interpreter."""
    python = Path(sys.executable).resolve()
    if python.with_name("py-spy").exists():
        return  # then the nodes have one without launch's
    document = yaml.safe_load(project.inventory.read_text())
    document["defaults"]["python"] = str(python)
    project.inventory.write_text(yaml.safe_dump(document, sort_keys=False))
    there = "/var/tmp/clusterctl-*/.tools"
    assert project.run("exec", "--", "sh", "-c", f"rm -rf {there}").returncode == 0


@pytest.mark.netns
def test_a_hang_is_explained_once_to_everybody_who_follows(project: Project) -> None:
    fresh(project)
    (project.folder / "still.py").write_text(STANDS_STILL)
    torch = project.folder / "torch" / "distributed"
    torch.mkdir(parents=True)
    (torch / "distributed_c10d.py").write_text(SPINS)
    launch = project.start(
        "launch", "--launcher", "direct", "--hang-after", "4s", "--json", "--", "still.py"
    )
    assert launch.stdout is not None
    assert any("all met" in line for line in launch.stdout), launch.communicate()
    logs = project.start("logs", "--follow")
    assert logs.stdout is not None
    assert logs.stderr is not None
    told: list[dict[str, Any]] = []
    while not told or told[-1]["kind"] != "verdict":
        told.append(json.loads(next(launch.stdout)))
    said = [next(line for line in logs.stderr if WAITS in line)]
    run = told[-1]["run"]
    assert told[-1]["silent"] == {}
    assert told[-1]["verdict"]["ranks"] == [1]
    assert WAITS in told[-1]["verdict"]["text"]
    late = project.start("logs", "--tail", "1", "--follow")
    assert late.stderr is not None
    next(line for line in late.stderr if WAITS in line)
    view = project.status(run)
    assert view["state"] == "hung"
    assert WAITS in view["verdict"]["text"]
    assert project.run("stop", run, "--grace", "0").returncode == 0
    told += [json.loads(line) for line in launch.stdout]
    said += logs.stderr
    # On a busy machine it may count as running again, and then as hung once more.
    hung = [one["event"] for one in told if one.get("event", {}).get("kind") == "hung"]
    times = len({event["alarm"] for event in hung})
    assert sum(one["kind"] == "verdict" for one in told) == times
    assert 1 <= sum(line.startswith("rank 1 on node2 sleeps") for line in said) <= times
    assert sum(line.startswith("hung: ") for line in said) <= times
    assert WAITS not in logs.stdout.read()  # stdout is the log
    kept = json.loads(project.run("dump", run, "--json").stdout)
    assert WAITS in kept["verdict"]["text"]
