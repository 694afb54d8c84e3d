"""A follower of a hung run sees the verdict, on stderr and as JSON."""

from __future__ import annotations

import json

import pytest

from tests.cli.runs import Project

WAITS = "still.py:5 wait_for_batch"

STANDS_STILL = """
import os, socket, time

def wait_for_batch():
    time.sleep(600)

print("begins", flush=True)
if os.environ["RANK"] == "1":
    wait_for_batch()
pair = socket.socketpair()
pair[0].recv(1)
"""


@pytest.mark.netns
def test_a_hang_is_explained_once_to_everybody_who_follows(project: Project) -> None:
    (project.folder / "still.py").write_text(STANDS_STILL)
    launch = project.start(
        "launch", "--launcher", "direct", "--hang-after", "4s", "--json", "--", "still.py"
    )
    assert launch.stdout is not None
    next(line for line in launch.stdout if "begins" in line)
    logs = project.start("logs", "--follow")
    assert logs.stdout is not None
    assert logs.stderr is not None
    told = [json.loads(next(line for line in launch.stdout if '"verdict"' in line))]
    said = [next(line for line in logs.stderr if WAITS in line)]
    run = told[0]["run"]
    assert told[0]["silent"] == {}
    assert told[0]["verdict"]["ranks"] == [1]
    assert WAITS in told[0]["verdict"]["text"]
    assert project.run("stop", run, "--grace", "0").returncode == 0
    told += [json.loads(line) for line in launch.stdout]
    said += logs.stderr
    assert sum(one["kind"] == "verdict" for one in told) == 1
    assert sum(line.startswith("rank 1 on node2 sleeps") for line in said) == 1
    assert WAITS not in logs.stdout.read()  # stdout is the log
    kept = json.loads(project.run("dump", run, "--json").stdout)
    assert WAITS in kept["verdict"]["text"]
