"""The job's commands on each node, before its ranks start and after all of them ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusterctl.inventory.cluster import Job, Restart, Stop
from tests.node.conftest import Run
from tests.node.supervisor.test_attempts import kill_rank, kinds, of_attempts, wait_for_attempt
from tests.waiting import wait_until

MakeRun = Callable[..., Run]

PREPARED = """
import os, sys
node = os.environ["CLUSTERCTL_NODE"]
print("prepared" if os.path.exists("ready-" + node) else "not prepared", len(os.listdir()))
sys.exit(int(os.environ.get("CODE", "0")))
"""
NODE = "$CLUSTERCTL_NODE"


def of(make_run: MakeRun, text: str, nodes: int = 2, **keys: Any) -> Run:
    return make_run(text, nodes=nodes, job=Job(stop=Stop(grace=5), **keys))


def node_log(run: Run, n: int) -> str:
    return Path(run.paths(n).launcher_log).read_text()


def test_no_rank_starts_before_all_nodes_are_prepared_and_after_hears_how_it_ended(
    make_run: MakeRun,
) -> None:
    run = of(
        make_run,
        PREPARED,
        before=f"echo preparing {NODE}; until [ -e go ]; do sleep 0.05; done; touch ready-{NODE}",
        after=f"echo cleaning; echo $CLUSTERCTL_RUN_STATE >after-{NODE}",
    )
    slow = run.names[1]
    run.change = {"before": f"[ {NODE} != {slow} ] || until [ -e go ]; do sleep 0.05; done; "
                  f"echo preparing; touch ready-{NODE}"}  # fmt: skip
    run.start()
    wait_until((run.workdir / f"ready-{run.names[0]}").exists)
    time.sleep(1)
    assert run.status()["state"] == "starting"
    assert not kinds(run, 0, "rank-started"), "the other node is not prepared"
    (run.workdir / "go").touch()
    ends = [run.ended(n) for n in (0, 1)]
    assert [end["state"] for end in ends] == ["finished", "finished"]
    for n, name in enumerate(run.names):
        assert run.log(n, n).startswith(b"prepared ")
        lines = node_log(run, n).splitlines()
        assert lines[0].startswith("clusterctl: before: [ ")
        assert lines[1] == "preparing"
        assert lines[2].startswith("clusterctl: before ended with exit code 0 after ")
        assert lines[3].startswith("clusterctl: after: echo cleaning")
        assert lines[4] == "cleaning"
        assert (run.workdir / f"after-{name}").read_text() == "finished\n"
    assert not run.left()


def test_the_time_of_a_start_begins_when_before_has_ended_and_waits_for_no_spare(
    make_run: MakeRun,
) -> None:
    never = "until [ -e go ]; do sleep 0.05; done"
    restart = Restart(max=1)
    keys: dict[str, Any] = {"restart": restart, "stop": Stop(grace=5), "before": "sleep 3"}
    run = make_run("print('here')", nodes=3, spares=1, start_timeout=2.0, job=Job(**keys))
    spare = run.names[2]
    run.change = {"before": f"sleep 3; [ {NODE} != {spare} ] || {never}"}
    run.start()
    assert [run.ended(n)["state"] for n in (0, 1)] == ["finished", "finished"]
    assert [run.log(n, n) for n in (0, 1)] == [b"here\n", b"here\n"]
    assert run.ended(2)["state"] == "finished"
    assert not run.left()


def test_where_before_fails_no_rank_starts_on_any_node_and_after_cleans_up(
    make_run: MakeRun,
) -> None:
    run = of(make_run, PREPARED, before="true", after=f"echo $CLUSTERCTL_RUN_STATE >after-{NODE}")
    bad = run.names[1]
    run.change = {"before": f"[ {NODE} != {bad} ] || {{ echo no such share; (exit 3); }}"}
    run.start()
    ends = [run.ended(n) for n in (0, 1)]
    assert [(end["state"], end["end"]["by"]) for end in ends] == [
        ("failed", "peer"),
        ("failed", "before"),
    ]
    why = "before ended with exit code 3: no such share"
    assert ends[1]["end"]["reason"] == why
    assert [event["message"] for event in kinds(run, 1, "before-failed")] == [why]
    for n, name in enumerate(run.names):
        assert not kinds(run, n, "rank-started")
        assert (run.workdir / f"after-{name}").read_text() == "failed\n"
    assert not run.left()


def test_a_command_that_takes_too_long_is_ended_with_what_it_started(make_run: MakeRun) -> None:
    run = of(make_run, PREPARED, nodes=1, before="sleep 300 & sleep 300", before_after_timeout=1.0)
    run.start()
    end = run.ended()
    assert end["end"]["reason"] == "before: it did not end within 1 s"
    assert not run.left()


def test_that_after_fails_changes_neither_state_nor_exit_code(make_run: MakeRun) -> None:
    run = of(make_run, PREPARED, nodes=1, after="echo no mount; exit 7", env=(("CODE", "5"),))
    run.start()
    end = run.ended()
    assert (end["state"], end["end"]["exit_code"]) == ("failed", 5)
    (event,) = kinds(run, 0, "after-failed")
    assert event["message"] == "after ended with exit code 7: no mount"


def test_a_stop_ends_before_and_after(make_run: MakeRun) -> None:
    run = of(make_run, PREPARED, before="touch began; sleep 300", after="touch cleans; sleep 300")
    run.start()
    wait_until((run.workdir / "began").exists)
    assert run.stop()["gone"], "both commands are ended"
    assert run.stop(1)["gone"]
    assert [run.status(n)["state"] for n in (0, 1)] == ["stopped", "stopped"]
    assert not kinds(run, 0, "rank-started")
    assert not run.left()


def test_a_stop_while_after_runs_ends_it(make_run: MakeRun) -> None:
    run = of(make_run, PREPARED, nodes=1, after="trap '' TERM; touch cleans; sleep 300")
    run.start()
    wait_until((run.workdir / "cleans").exists)
    assert run.status()["state"] == "running"
    assert run.stop()["gone"]
    assert run.status()["state"] == "finished", "it had finished"
    (event,) = kinds(run, 0, "after-failed")
    assert event["message"] == "after: it was stopped"
    assert not run.left()


def test_before_runs_for_each_attempt_and_after_once(make_run: MakeRun) -> None:
    job = Job(
        stop=Stop(grace=5),
        before="echo $CLUSTERCTL_ATTEMPT >>before; touch ready-$CLUSTERCTL_NODE",
        after="echo $CLUSTERCTL_ATTEMPT $CLUSTERCTL_RUN_STATE >>after",
    )
    run = of_attempts(make_run, nodes=1, job=job).start()
    wait_for_attempt(run, 1)
    kill_rank(run, 0)
    wait_for_attempt(run, 2)
    (run.workdir / "go").touch()
    assert run.ended()["state"] == "finished"
    assert (run.workdir / "before").read_text() == "1\n2\n"
    assert (run.workdir / "after").read_text() == "2 finished\n"


def test_a_dead_supervisors_guard_runs_after(make_run: MakeRun) -> None:
    run = of(make_run, "import time; print('here'); time.sleep(300)", nodes=1, after="touch clean")
    run.start()
    run.wait_for_log(0, b"here")
    os.kill(run.pid_of_supervisor(), 9)
    assert run.ended()["state"] == "failed"
    assert (run.workdir / "clean").exists()
