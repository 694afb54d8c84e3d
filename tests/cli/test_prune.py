"""Old runs deleted from real hosts, a live one left alone."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import MakeProject
from tests.conftest import MakeSandbox

pytestmark = pytest.mark.netns


@pytest.mark.soak  # test_json.py prunes; both test_prune.py choose
def test_old_runs_go_from_nodes_and_controller_and_a_live_one_stays(
    make_sandbox: MakeSandbox, make_project: MakeProject
) -> None:
    project = make_project(make_sandbox(nodes=2))
    name = project.sandbox.layout.name
    for _ in range(3):
        assert project.launch("--env", "STEPS=1", "--", "job.py").returncode == 0
    assert project.launch("--", "no-such-program").returncode == 125
    words = ("--detach", "--env", "STEPS=6000", "--", "job.py")
    live = project.launch(*words).stdout.strip()
    listed = [run["run"] for run in json.loads(project.run("runs", "--json").stdout)["runs"]]
    refused, *finished = (run for run in listed if run != live)
    asked = project.run("runs", "--prune", "2", "--all")
    assert (asked.returncode, asked.stdout) == (2, "")
    hint = "hint: clusterctl runs --prune 2 --all --yes"
    assert asked.stderr.splitlines()[-1] == hint
    shown = asked.stderr.splitlines()[1:-2]
    assert [row.split()[0] for row in shown] == [run.rpartition("-")[2] for run in finished[1:]]
    kept = json.loads(project.run("runs", "--prune", "2", "--json").stdout)
    assert (kept["removed"], len(kept["kept"])) == ([], 3)
    answer = project.run(*hint.split()[2:], "--json")
    assert answer.returncode == 0, answer.stderr
    document = json.loads(answer.stdout)
    assert document["removed"] == finished[1:]
    assert [kept["run"] for kept in document["kept"]] == [live]
    stays = sorted([refused, finished[0], live])
    assert sorted(folder.parent.name for folder in project.state.glob("*/*/record.json")) == stays
    for node in ("node1", "node2"):
        found = project.sandbox.on(node, ["ls", f"/var/tmp/clusterctl-0/{name}"]).stdout.split()
        assert set(found) <= set(stays)
        assert {finished[0], live} <= set(found)
    assert project.status(live)["state"] == "running"
    assert project.run("logs", finished[0]).returncode == 0
