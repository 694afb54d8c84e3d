"""torchrun itself, on two loopback nodes: its ranks are ours to watch, end and account for."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.node.run.processes import processes
from clusterctl.node.supervisor.ranks.spawn import UNCOLLECTED
from tests.node.conftest import Run
from tests.node.supervisor.test_rank_variables import assert_variables
from tests.waiting import wait_until

RANK = """
import json, os, sys, time
print(json.dumps([sys.argv[1:], dict(os.environ)]), flush=True)
while not os.path.exists("go"): time.sleep(0.01)
if os.environ["RANK"] == "2": sys.exit(7)
time.sleep(300)
"""


@pytest.mark.torch
def test_unequal_nodes_gather_and_one_failure_ends_all(make_run: Callable[..., Run]) -> None:
    run = make_run(RANK, "--a b", "$HOME", nodes=2, procs=(2, 1), launcher="torchrun").start()
    for rank, local, n in ((0, 0, 0), (1, 1, 0), (2, 0, 1)):
        run.wait_for_log(rank, b"\n", n=n)
        arguments, variables = json.loads(run.log(rank, n=n))
        assert arguments == ["--a b", "$HOME"]
        assert_variables(variables, rank, local, (2, 1))
    # Its ranks make no process group: only the launcher has joined.
    wait_until(lambda: all(run.status(n)["launcher_joined"] for n in (0, 1)))
    assert [rank["joined"] for n in (0, 1) for rank in run.status(n)["ranks"]] == [False] * 3
    (run.workdir / "go").touch()
    worker, master = run.ended(1), run.ended(0)
    assert worker["end"]["reason"] == "rank 2 ended with exit code 7"
    assert worker["end"]["exit_code"] == 7
    assert master["end"]["by"] == "peer"
    assert not run.left()
    events = {n: {event["kind"]: event for event in run.events(n)} for n in (0, 1)}
    died, told = events[1]["rank-ended"], events[0]["peer-bad-end"]
    assert died["ordered"] is False
    assert told["time"] - died["time"] < 5  # 0.01 s on a machine with nothing else to do
    assert events[0]["end"]["left"] == []
    for n in (0, 1):
        (own,) = Path(run.paths(n).folder, "torchrun").iterdir()  # and nothing in /tmp
        assert (own / "attempt_0").is_dir()
    assert "nested-launcher" not in {*events[0], *events[1]}


@pytest.mark.torch
def test_a_launcher_that_is_killed_ends_the_run_and_its_ranks(make_run: Callable[..., Run]) -> None:
    run = make_run(RANK, procs=2, launcher="torchrun").start()
    for rank in (0, 1):
        run.wait_for_log(rank, b"\n")
    table = processes.process_table().values()
    (launcher,) = [one for one in table if one.parent == run.pid_of_supervisor()]
    processes.send(launcher.key, signal.SIGKILL)
    end = run.ended()["end"]
    assert (end["state"], end["by"], end["exit_code"]) == ("failed", "launcher", 128 + 9)
    assert end["reason"] == "the launcher was killed by signal 9"
    assert [event["ordered"] for event in run.events() if event["kind"] == "rank-ended"] == [
        True
    ] * 2
    assert not run.left()


def test_a_launcher_is_imported_without_garbage_collection_and_runs_as_with_m(
    tmp_path: Path,
) -> None:
    (tmp_path / "heavy").mkdir()
    (tmp_path / "heavy/__init__.py").write_text("import gc; collects = gc.isenabled()")
    main = "import gc, heavy, sys; print(__name__, sys.argv, heavy.collects, gc.isenabled())"
    (tmp_path / "heavy/run.py").write_text(main + "; print(gc.get_freeze_count() > 1000)")
    words = ["heavy.run", "--a b", ""]
    argv = [sys.executable, "-c", UNCOLLECTED, *words]
    found = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True)
    given = [str(tmp_path / "heavy/run.py"), *words[1:]]
    assert found.stdout == f"__main__ {given} False True\nTrue\n"
    assert found.stderr == ""
