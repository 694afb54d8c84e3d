"""torchrun starts failed ranks again: how such a run ends, and what its records and logs tell."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.cli.runs import Project

pytestmark = [pytest.mark.netns, pytest.mark.torch]

JOB = """
import os, pathlib, sys, time

rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
for step in range(3):
    print(f"rank {rank} attempt {attempt} step {step} by {os.getpid()}", flush=True)
if attempt == "0":
    if rank == "0":
        pathlib.Path("printed").touch()
        time.sleep(600)
    while not os.path.exists("printed"):
        time.sleep(0.02)
    sys.exit(7)
"""


def test_a_run_whose_rank_failed_once_finishes_and_tells_both_attempts(project: Project) -> None:
    (project.folder / "job.py").write_text(JOB)
    document = yaml.safe_load(project.inventory.read_text())
    job = {"launcher": "torchrun", "launcher_args": ["--max-restarts=1"], "command": ["job.py"]}
    project.inventory.write_text(yaml.safe_dump(document | {"job": job}))
    words = ("launch", "--no-check", "--json", "--nodes", "node1", "--procs-per-node", "2")
    answer = project.run(*words, seconds=250)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    told = [json.loads(line) for line in answer.stdout.splitlines()]
    ended = told[-1]
    assert (ended["kind"], ended["state"], ended["first_cause"]) == ("ended", "finished", None)

    status = project.status()
    assert (status["state"], status["ended_by"], status["first_cause"]) == ("finished", "job", None)
    events = [one["event"] for one in told if one["kind"] == "event"]
    started = [
        (one["restarts"], one["rank"], one["pid"])
        for one in events
        if one["kind"] == "rank-started"
    ]
    assert sorted(one[:2] for one in started) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    ends = {(one["rank"], one["pid"]): one for one in events if one["kind"] == "rank-ended"}
    pids = {(attempt, rank): pid for attempt, rank, pid in started}
    assert ends[1, pids[0, 1]]["exit_code"] == 7
    # torchrun waits for the ranks that it ends, and may be quicker than the supervisor.
    assert ends[0, pids[0, 0]]["signal"] in {15, None}
    last = [(rank["pid"], rank["exit_code"], rank["joined"]) for rank in status["ranks"]]
    assert last == [(pids[1, 0], 0, False), (pids[1, 1], 0, False)]  # without a process group

    wanted = [
        f"rank {rank} attempt {attempt} step {step} by {pids[attempt, rank]}"
        for rank in range(2)
        for attempt in range(2)
        for step in range(3)
    ]
    followed = [one["line"] for one in told if one["kind"] == "line" and one["rank"] is not None]
    read = project.run("logs", "--raw", "--rank", "0-1").stdout.splitlines()
    assert sorted(followed) == sorted(read) == wanted
