"""Jobs in a shell script on real hosts: a dead supervisor leaves nothing, and causes are named."""

from __future__ import annotations

import time

import pytest

from tests.cli.runs import Project
from tests.waiting import BUSY

pytestmark = pytest.mark.netns

SCRIPT = """
setsid sleep 1234 &
( (setsid sleep 1235 &) & )
python3 -u job.py{}
"""
HOSTS = ("node1", "node2", "node3")
OURS = ("sleep 123", "job.py", "job.sh", "clusterctl.node.supervisor.guard")

FAILS = """
import os, sys, time
if os.environ["RANK"] == "1":
    raise ValueError("shapes do not match")
time.sleep(600)
"""


def living(project: Project) -> list[str]:
    """Return what lives of the job, and what looks after it, on all hosts."""
    found = []
    for host in HOSTS:
        shown = project.sandbox.on(host, ("ps", "-eo", "stat=,args=")).stdout.splitlines()
        found += [line for line in shown if line[0] != "Z" and any(word in line for word in OURS)]
    return found


@pytest.mark.parametrize(
    ("n", "form"),
    [
        pytest.param(0, "", id="master"),
        pytest.param(2, " & wait $!", id="worker", marks=pytest.mark.soak),
    ],
)
def test_nothing_of_a_script_is_left_when_a_supervisor_is_killed(
    project: Project, n: int, form: str
) -> None:
    (project.folder / "job.sh").write_text(SCRIPT.format(form))
    words = ("launch", "--launcher", "direct", "--env", "STEPS=6000", "--", "bash", "job.sh")
    with project.start(*words) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if "step 5" in line)
        nodes = project.status()["nodes"]
        assert len([line for line in living(project) if "sleep 123" in line]) == 6
        pid = nodes[n]["supervisor"]["pid"]
        began = time.monotonic()
        project.sandbox.on(HOSTS[n], ("kill", "-9", str(pid)))
        while left := living(project):
            assert time.monotonic() < began + 120, left
        took = time.monotonic() - began
        print(f"nothing left {took:.2f} s after the kill")
        process.communicate(timeout=BUSY)
    assert process.returncode == 125
    document = project.status()
    cause = document["first_cause"]
    assert (document["state"], document["ended_by"]) == ("failed", "supervisor")
    assert (cause["node"], cause["kind"]) == (nodes[n]["node"], "supervisor")
    assert cause["message"] == "the supervisor was killed by signal 9"
    assert project.run("stop", document["run"]).returncode == 0


def test_the_error_of_the_program_in_a_script_is_the_first_cause(project: Project) -> None:
    (project.folder / "job.sh").write_text("python3 fails.py || exit $?\n")
    (project.folder / "fails.py").write_text(FAILS)
    answer = project.launch("--json", "--", "bash", "job.sh")
    assert answer.returncode == 1
    cause = project.status()["first_cause"]
    assert (cause["rank"], cause["kind"], cause["exit_code"]) == (1, "exit", 1)
    assert cause["message"] == "exited with 1: ValueError: shapes do not match"
