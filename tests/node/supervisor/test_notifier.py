"""The master tells people what becomes of a run, and nothing waits long for that."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.inventory.cluster import Job, Notify, Stop
from clusterctl.node.run.processes import processes
from tests.node.conftest import Run
from tests.node.notify.receiving import Receiver, receiving
from tests.node.supervisor.test_attempts import kill_rank, of_attempts, wait_for_attempt
from tests.waiting import wait_until

MakeRun = Callable[..., Run]
ALL = ("started", "restarted", "hung", "failed", "ended")

FAILS = """
import os, sys, time
print("here", flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
if os.environ["RANK"] == "1":
    raise ValueError("boom of <!channel>")
time.sleep(300)
"""
WAITS = """
import os, time
print("here", flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
"""


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiving() as known:
        yield known


def notified(
    make_run: MakeRun, text: str, server: Receiver, *, on: tuple[str, ...] = ALL, **options: Any
) -> Run:
    job = Job(stop=Stop(grace=5), notify=(Notify(on=on, webhook_from="HOOK"),))
    run = make_run(text, job=job, **options)
    run.webhooks = {"HOOK": server.url}
    return run


def failures(run: Run) -> list[dict[str, Any]]:
    return [one for one in run.events() if one["kind"] == "notify-failed"]


def test_a_start_and_a_failure_on_another_node_are_told_with_the_cause(
    make_run: MakeRun, server: Receiver
) -> None:
    run = notified(make_run, FAILS, server, nodes=2).start()
    wait_until(lambda: server.events == ["started"])
    for process in run._living():
        for file in ("cmdline", "environ"):
            assert b"SECRET" not in processes.read_proc(process.pid, file)
    (run.workdir / "go").touch()
    assert run.ended()["state"] == "failed"
    assert server.events == ["started", "failed"], "and not `ended` besides"
    told = server.messages[1]
    assert (told["run"], told["cluster"], told["state"]) == (run.plan.run, "test", "failed")
    assert told["nodes"] == run.names
    assert told["cause"] == {
        "node": run.names[1],
        "rank": 1,
        "exit_code": 1,
        "signal": None,
        "reason": "rank 1 ended with exit code 1",
        "line": "ValueError: boom of <!channel>",
    }
    first, command = told["text"].splitlines()
    assert first == (
        f"clusterctl: run {run.plan.run} on test has failed: {run.names[1]}: rank 1 ended with exit"
        " code 1: ValueError: boom of (!channel)"
    )
    assert command == f"next: {told['next']}" == f"next: clusterctl status {run.plan.run}"
    for n in (0, 1):
        files = [one for one in Path(run.paths(n).folder).rglob("*") if one.is_file()]
        assert not [one for one in files if b"SECRET" in one.read_bytes()]
    assert run.status()["notify_problem"] == ""
    assert not run.left()


def test_each_attempt_and_the_end_are_told(make_run: MakeRun, server: Receiver) -> None:
    job = Job(stop=Stop(grace=5), notify=(Notify(on=ALL, webhook_from="HOOK"),))
    run = of_attempts(make_run, nodes=1, job=job)
    run.webhooks = {"HOOK": server.url}
    run.start()
    wait_for_attempt(run, 1)
    wait_until(lambda: bool(server.got))
    kill_rank(run, 0)
    wait_for_attempt(run, 2)
    (run.workdir / "go").touch()
    assert run.ended()["state"] == "finished"
    assert server.events == ["started", "restarted", "ended"]
    _, again, end = server.messages
    assert (again["attempt"], again["attempts"]) == (2, 4)
    assert "is now attempt 2 of 4, from the beginning: " in again["text"]
    assert (end["attempt"], end["state"], end["cause"]) == (2, "finished", None)
    assert "has finished" in end["text"]


def test_that_a_run_is_alive_is_told_again_and_again_until_its_end(
    make_run: MakeRun, server: Receiver
) -> None:
    job = Job(stop=Stop(grace=5), notify=(Notify(every=0.3, webhook_from="HOOK"),))
    run = make_run(WAITS, job=job)
    run.webhooks = {"HOOK": server.url}
    run.start()
    wait_until(lambda: len(server.got) >= 3)
    (run.workdir / "go").touch()
    run.ended()
    assert set(server.events) == {"alive"}
    count = len(server.got)
    time.sleep(0.7)
    assert len(server.got) == count


def test_a_hang_is_told_once(make_run: MakeRun, server: Receiver) -> None:
    run = notified(make_run, "import time; print(1, flush=True); time.sleep(300)", server)
    run.change = {"hang": {"after": 3.0, "action": "report"}}
    run.start()
    wait_until(lambda: "hung" in server.events)
    assert server.messages[-1]["next"] == f"clusterctl dump {run.plan.run}"
    time.sleep(1.5)
    assert run.stop()["gone"]
    assert server.events == ["started", "hung", "ended"]
    assert "was stopped" in server.messages[-1]["text"]


def test_a_failed_try_is_made_again_and_what_never_arrives_is_noted_once(
    make_run: MakeRun, server: Receiver
) -> None:
    server.answers = [503, 200, 404]
    run = notified(make_run, WAITS, server).start()
    wait_until(lambda: server.events == ["started", "started"])
    (run.workdir / "go").touch()
    end = run.ended()
    assert end["state"] == "finished", "nobody being told changes no end"
    (failed,) = failures(run)
    assert (failed["receiver"], failed["event"]) == ("webhook HOOK", "ended")
    assert failed["message"] == "HTTP 404 Not Found: ok"
    assert run.status()["notify_problem"] == "webhook HOOK: HTTP 404 Not Found: ok"
    assert server.events == ["started", "started", "ended"], "a 404 is final"


def test_the_end_does_not_wait_for_an_older_message_to_be_tried_again(
    make_run: MakeRun, server: Receiver
) -> None:
    server.answers, server.seconds = [503], 3
    run = notified(make_run, WAITS, server).start()
    wait_until(lambda: server.events == ["started"])
    (run.workdir / "go").touch()
    assert run.ended()["state"] == "finished"
    assert server.events == ["started", "ended"]
    (failed,) = failures(run)
    assert failed["event"] == "started"


def test_values_of_env_from_are_not_sent(make_run: MakeRun, server: Receiver) -> None:
    text = """import os; raise ValueError("401 for https://hub/?token=" + os.environ["TOKEN"])"""
    run = notified(make_run, text, server, on=("failed",))
    run.secrets = {"TOKEN": "hf_T0SECRET"}
    run.start().ended()
    (told,) = server.messages
    assert told["cause"]["line"] == "ValueError: 401 for https://hub/?token=***"
    assert "token=***" in told["text"]
    assert "T0SECRET" not in json.dumps(told)


def test_a_stop_waits_only_briefly_for_a_server_that_does_not_answer(
    make_run: MakeRun, server: Receiver
) -> None:
    server.seconds = 60
    run = notified(make_run, WAITS, server, on=("ended",)).start()
    run.wait_for_log(0, b"here")
    began = time.monotonic()
    answer = run.stop()
    assert answer["gone"]
    assert time.monotonic() - began < 8
    assert not run.left(), "nor what was sending"
    assert run.status()["state"] == "stopped"
    (failed,) = failures(run)
    assert failed["message"] == "the run ended before it was sent"


def test_a_command_gets_the_event_in_the_jobs_folder_and_environment(make_run: MakeRun) -> None:
    command = ("sh", "-c", "cat >told-$KIND; (sleep 300 &)")
    job = Job(stop=Stop(grace=5), env=(("KIND", "x"),), notify=(Notify(on=ALL, command=command),))
    run = make_run(WAITS, job=job).start()
    wait_until((run.workdir / "told-x").exists)
    (run.workdir / "go").touch()
    assert run.ended()["state"] == "finished"
    assert json.loads((run.workdir / "told-x").read_text())["event"] == "ended"
    assert not run.left()


def test_a_dead_supervisor_is_told_by_its_guard(make_run: MakeRun, server: Receiver) -> None:
    run = notified(make_run, WAITS, server, on=("failed",)).start()
    run.wait_for_log(0, b"here")
    os.kill(run.pid_of_supervisor(), signal.SIGKILL)
    assert run.ended()["state"] == "failed"
    assert server.events == ["failed"]
    assert "killed by signal 9" in server.messages[0]["text"]
