"""A node that is lost under a run, comes back and is cleared up; each hint on the way is typed."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
import yaml

from tests.cli.conftest import MakeProject
from tests.cli.hints import commands
from tests.cli.runs import checkpoint
from tests.conftest import MakeSandbox

pytestmark = pytest.mark.netns


def hinted(done: subprocess.CompletedProcess[str]) -> list[tuple[str, ...]]:
    """Return the commands that the hints of a command propose."""
    lines = re.findall(r"^hint: .*", done.stdout + done.stderr, re.MULTILINE)
    return list(commands("\n".join(lines)))


@pytest.mark.soak  # test_quarantine.py and test_spares.py lose one
def test_a_run_that_lost_a_node_stays_lost_when_it_is_cleared_up(
    make_sandbox: MakeSandbox, make_project: MakeProject
) -> None:
    project = make_project(make_sandbox(nodes=2))
    job = {"checkpoints": "out", "resume_args": ["{checkpoint}"]}
    inventory = yaml.safe_load(project.inventory.read_text())
    project.inventory.write_text(yaml.safe_dump(inventory | {"job": job}, sort_keys=False))
    words = ("--lost-after", "5", "--env", "STEPS=6000", "--", "job.py")
    run = project.launch("--detach", *words).stdout.strip()
    project.wait_for(run, "running")
    checkpoint(project.placed / "out", 5, run)
    project.sandbox.fault("node2", "killed")
    project.wait_for(run, "lost")

    without = ("resume", run, "--exclude", "node2", "--checkpoint", "latest")
    shown = hinted(project.run("status", run))
    assert {without, ("check", "--nodes", "node2"), ("stop", run)} <= {*shown}
    stopped = project.run("stop", run)
    assert (stopped.returncode, hinted(stopped)) == (3, [("stop", run)])
    again = project.run(*without, "--detach")
    assert again.returncode == 0, again.stderr
    second = again.stdout.strip()

    project.sandbox.heal()
    assert "the machine was rebooted" in project.run("status", run).stdout
    kept = json.loads(project.run("runs", "--prune", "9", "--json").stdout)["kept"]
    assert [one["run"] for one in kept] == [second]  # it alone has not ended
    assert project.run("stop", run).returncode == 0
    listed = {one["run"]: one for one in json.loads(project.run("runs", "--json").stdout)["runs"]}
    document = project.status(run)
    assert (listed[run]["state"], document["state"], document["ended_by"]) == ("lost",) * 3

    joined = project.run("join", second, "--nodes", "node2")
    back = ("resume", second, "--nodes", "node1,node2", "--checkpoint", "latest")
    assert (joined.returncode, hinted(joined)) == (1, [("stop", second), back])
    assert project.run("stop", second).returncode == 0
    third = project.run(*back, "--detach")
    assert third.returncode == 0, third.stderr
    nodes = project.status(third.stdout.strip())["nodes"]
    assert [node["node"] for node in nodes] == ["node1", "node2"]
