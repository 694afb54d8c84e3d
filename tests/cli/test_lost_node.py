"""A node that is lost under a run, comes back and is cleared up."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import MakeProject
from tests.conftest import MakeSandbox

pytestmark = pytest.mark.netns


def test_a_run_that_lost_a_node_stays_lost_when_it_is_cleared_up(
    make_sandbox: MakeSandbox, make_project: MakeProject
) -> None:
    project = make_project(make_sandbox(nodes=2))
    words = ("--lost-after", "2", "--env", "STEPS=6000", "--", "job.py")
    run = project.launch("--detach", *words).stdout.strip()
    project.wait_for(run, "running")
    project.sandbox.fault("node2", "killed")
    project.wait_for(run, "lost")
    project.sandbox.heal()
    assert "the machine was rebooted" in project.run("status", run).stdout
    assert project.run("stop", run).returncode == 0
    (listed,) = json.loads(project.run("runs", "--json").stdout)["runs"]
    document = project.status(run)
    assert (listed["state"], document["state"], document["ended_by"]) == ("lost", "lost", "lost")
