"""`status` on real hosts: of several live runs all are shown."""

from __future__ import annotations

import shlex

import pytest

from tests.cli.conftest import MakeProject
from tests.conftest import MakeSandbox

pytestmark = pytest.mark.netns


def test_status_without_a_name_shows_every_live_run_and_what_it_printed(
    make_sandbox: MakeSandbox, make_project: MakeProject
) -> None:
    project = make_project(make_sandbox(nodes=2))
    runs = [
        project.launch(
            "--detach", "--no-check", "--nodes", node, "--env", "STEPS=6000", "--", "job.py"
        ).stdout.strip()
        for node in ("node1", "node2")
    ]
    for run in runs:
        project.wait_for(run, "running")
    shown = project.run("status")
    assert shown.returncode == 0, shown.stderr
    assert all(run in shown.stdout for run in runs)
    assert shown.stdout.count("  command  job.py") == 2
    assert shown.stdout.count("printed  0 s ago: [node") >= 1
    for words, last in ((["status", "--json"], []), (["stop", "--grace", "1"], ["--all"])):
        verb, *rest = words
        refused = project.run(*words)
        assert refused.returncode == 2
        named = [each.removeprefix("hint: ") for each in refused.stderr.splitlines()[1:]]
        assert sorted(named) == sorted(
            f"clusterctl {shlex.join((verb, each, *rest))}" for each in (*runs, *last)
        )
        for hint in named:
            assert project.run(*shlex.split(hint)[1:]).returncode == 0
