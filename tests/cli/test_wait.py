"""`launch --wait`: a launch that waits until no one else uses its nodes."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from typing import IO

import pytest
import yaml

from tests.cli.runs import Project
from tests.waiting import BUSY, wait_until

pytestmark = pytest.mark.netns

ONE = ("--launcher", "direct", "--procs-per-node", "1")
SLEEP = ("--", "-c", "import time; print('here', flush=True); time.sleep(600)")


def hold(project: Project, nodes: str, *words: str) -> str:
    """Launch a run that stays; return its id."""
    answer = project.run("launch", "--detach", "--no-check", "--nodes", nodes, *ONE, *words, *SLEEP)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def runs(project: Project) -> set[str]:
    """Return the ids of all runs: other tests have some, too."""
    return {one["run"] for one in json.loads(project.run("runs", "--json").stdout)["runs"]}


def first_with(stream: IO[str] | None, words: str) -> str:
    assert stream is not None
    read = []
    for line in stream:
        read.append(line)
        if words in line:
            return line
    raise AssertionError("".join(read))


def events(out: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


def test_a_launch_that_waits_names_the_holder_once_and_starts_when_it_ends(
    project: Project,
) -> None:
    held = hold(project, "node1", "--name", "first")
    words = ("--nodes", "node1,node2", *ONE, "--wait", "5m", "--json")
    waits = project.start("launch", *words, "--", "-c", "print('done')")
    line = json.loads(first_with(waits.stdout, '"waiting"'))
    assert line["nodes"].keys() == {"node1"}
    assert held in line["nodes"]["node1"]
    assert "'first'" in line["nodes"]["node1"]
    assert line["limit_s"] == 300
    time.sleep(7)  # it has looked again by then
    project.run("stop", held)
    out, err = waits.communicate(timeout=4 * BUSY)
    assert waits.returncode == 0, out + err
    told = [one for one in events(out) if one["kind"] == "waiting"]
    assert [one["nodes"] for one in told] == [{}], "what did not change is not told again"
    assert "done" in out


@pytest.mark.soak  # test_wait_until_free.py has the limit
def test_one_that_does_not_come_free_is_refused_and_nothing_is_left(project: Project) -> None:
    held = hold(project, "node1")
    before = runs(project)
    answer = project.run("launch", "--nodes", "node1", *ONE, "--wait", "1s", *SLEEP)
    assert answer.returncode == 125
    assert "not launched: not free within 1 s" in answer.stderr
    assert "not ready" not in answer.stdout + answer.stderr, "who holds the node says more"
    assert f"node1: run {held}" in answer.stderr.split("not free within 1 s")[1]
    assert runs(project) == before


def test_ctrl_c_leaves_nothing(project: Project) -> None:
    held = hold(project, "node1")
    before = runs(project)
    waits = project.start("launch", "--nodes", "node1", *ONE, "--wait", *SLEEP)
    first_with(waits.stderr, "waiting for others")
    first_with(waits.stderr, held)
    waits.send_signal(signal.SIGINT)
    out, err = waits.communicate(timeout=BUSY)
    assert waits.returncode == 130, out + err
    assert "nothing was started" in err
    assert runs(project) == before


@pytest.mark.soak  # test_wait_until_free.py tells one from the other
def test_what_else_is_wrong_refuses_at_once(project: Project) -> None:
    hold(project, "node1")
    document = yaml.safe_load(project.inventory.read_text())
    project.inventory.write_text(yaml.safe_dump(document | {"job": {"needs": ["/no/such/model"]}}))
    words = ("launch", "--nodes", "node1", *ONE, "--wait", "2h", *SLEEP)
    answer = project.run(*words)
    assert answer.returncode == 125, answer.stderr
    assert "/no/such/model" in answer.stderr.split("not launched: ")[1]
    assert "waiting for others" not in answer.stderr


@pytest.mark.soak  # the first, and tests/node/test_run_lock.py
def test_of_two_that_wait_one_starts_and_the_other_waits_on(project: Project) -> None:
    held = hold(project, "node1,node2")

    def begin(nodes: str) -> subprocess.Popen[str]:
        words = ("launch", "--nodes", nodes, *ONE, "--wait", "10m", "--detach")
        return project.start(*words, *SLEEP)

    both = [begin("node1,node2"), begin("node2,node1")]
    for one in both:
        first_with(one.stderr, "waiting for others")
    project.run("stop", held)
    wait_until(lambda: any(one.poll() is not None for one in both), 4 * BUSY)
    (won,) = [one for one in both if one.poll() is not None]
    (other,) = [one for one in both if one is not won]
    assert won.returncode == 0
    out, _ = won.communicate()
    run = out.strip().splitlines()[-1]
    first_with(other.stderr, f"run {run}")
    assert other.poll() is None
    live = json.loads(project.run("runs", "--json").stdout)["runs"]
    assert [one["run"] for one in live if one["state"] in {"running", "starting"}] == [run]
    project.run("stop", run)
    wait_until(lambda: other.poll() is not None, 4 * BUSY)
    assert other.returncode == 0
