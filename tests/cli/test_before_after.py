"""A command before the ranks that fails on one node is the first cause, and no rank has started."""

from __future__ import annotations

import pytest

from tests.cli.runs import Project
from tests.cli.test_notify import write_job

pytestmark = pytest.mark.netns


def test_the_node_whose_before_failed_is_named_and_after_has_cleaned_up(project: Project) -> None:
    line = "[ $CLUSTERCTL_NODE != node2 ] || { echo no such share; exit 3; }"
    write_job(project, "print('a rank')", before=line, after="touch cleaned-$CLUSTERCTL_NODE")
    launched = project.run("launch", "--no-check", "--nodes", "node1,node2")
    assert launched.returncode == 125, launched.stderr
    why = "first cause: node2: before ended with exit code 3: no such share"
    assert why in launched.stderr
    assert "(ended by before)" in launched.stderr
    assert "a rank" not in launched.stdout
    status = project.status()
    assert (status["state"], status["ended_by"]) == ("failed", "before")
    assert status["first_cause"]["kind"] == "before"
    assert {path.name for path in project.placed.glob("cleaned-*")} == {
        "cleaned-node1",
        "cleaned-node2",
    }
    logs = project.run("logs", "--raw", "--nodes", "node2").stdout
    assert f"clusterctl: before: {line}" in logs
    assert "clusterctl: before ended with exit code 3 after" in logs
