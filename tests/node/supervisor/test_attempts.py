"""A run that failed is started again by its supervisors, without a controller."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterctl.inventory.cluster import Hang, Job, Stop
from clusterctl.node import run_lock
from clusterctl.node.run.operations.status import LIVE
from tests.node.conftest import Run, save
from tests.waiting import wait_until

MakeRun = Callable[..., Run]
Head = dict[str, Any]
SOAK = pytest.mark.soak

JOB = """
import fcntl, os, sys, time
rank = os.environ["RANK"]
held = os.open("lock-" + rank, os.O_CREAT | os.O_RDWR)
fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # never two attempts alive at once
resumed = sys.argv[sys.argv.index("--resume") + 1] if "--resume" in sys.argv else "nothing"
print("begin", rank, "from", resumed, "as", os.environ["CLUSTERCTL_ATTEMPT"])
for step in range(3):
    print("step", step, "of", rank)
print("here", rank)
while not os.path.exists("go"):
    time.sleep(0.02)
print("done", rank)
"""


def of_attempts(
    make_run: MakeRun, text: str = JOB, *, most: int = 3, nodes: int = 2, **options: Any
) -> Run:
    """Make a run that may restart; checkpoints are in `ckpt`."""
    run = make_run(text, "words", nodes=nodes, **options)
    command = [sys.executable, "-u", "-c", text, "words"]
    run.change = {
        "checkpoints": "ckpt",
        "restart": {
            "max": most,
            "on": {},
            "never": {},
            "resumed_argv": [*command, "--resume", "{checkpoint}"],
        },
    }
    return run


def kinds(run: Run, n: int, *wanted: str) -> list[Head]:
    return [event for event in run.events(n) if event["kind"] in wanted]


def wait_for_attempt(run: Run, attempt: int) -> None:
    """Wait until both nodes run this attempt."""
    for n in range(len(run.names)):
        wait_until(
            lambda n=n: (
                len(kinds(run, n, "supervisor-up")) == attempt  # type: ignore[misc]
                and Path(run.paths(n).folder, f"ranks/{n}.log").exists()
                and run.log(n, n).count(b"here") >= attempt
            )
        )


def kill_rank(run: Run, n: int, number: int = signal.SIGKILL) -> None:
    os.kill(run.status(n)["ranks"][0]["pid"], number)


def fail_twice(run: Run, n: int) -> None:
    """Kill a rank of attempts 1 and 2, until all know of the third: it begins 12 s later."""
    kill_rank(run, n)
    wait_for_attempt(run, 2)
    kill_rank(run, n)
    for node in range(len(run.names)):
        wait_until(lambda node=node: len(kinds(run, node, "again")) == 2)  # type: ignore[misc]


class Watch:
    """Checks all the time whether each node's lock is held, until it is stopped."""

    def __init__(self, run: Run) -> None:
        self.free: list[str] = []
        self._locks = [node.lock for node in run.plan.nodes]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.005):
            self.free += [one for one in self._locks if run_lock.query(one, {"ask": "who"}) is None]

    def end(self) -> list[str]:
        """Return the locks that were seen free."""
        self._over.set()
        self._thread.join()
        return self.free


def test_a_killed_rank_makes_both_nodes_run_attempt_2_from_the_checkpoint(
    make_run: MakeRun,
) -> None:
    run = of_attempts(make_run).start()
    wait_for_attempt(run, 1)
    older, saved = save(run, 20), save(run, 40)
    began = [run.status(n)["began"] for n in (0, 1)]
    guards = [run.pid_of_guard(n) for n in (0, 1)]
    watch = Watch(run)
    kill_rank(run, 1)
    wait_for_attempt(run, 2)
    assert watch.end() == [], "another run could have begun between two attempts"
    assert [run.pid_of_guard(n) for n in (0, 1)] == guards
    for n in (0, 1):
        printed = run.log(n, n).decode()
        assert f"begin {n} from nothing as 1" in printed
        assert f"begin {n} from {saved} as 2" in printed, f"not from {older}"
        assert printed.count("step 0 of") == 2, "the logs of both attempts are there"
        head = Path(run.paths(n).launcher_log).read_text().splitlines()
        (first,) = [line for line in head if line.startswith("attempt 2")]
        assert first.startswith("attempt 2 of 4, from checkpoint step 40: "), first
        assert f"(rank 1 on {run.names[1]}, signal 9)" in first
        status = run.status(n)
        shown = {name: status[name] for name in ("state", "attempt", "attempts", "again", "began")}
        assert shown == {
            "state": "running", "attempt": 2, "attempts": 4, "again": None, "began": began[n],
        }  # fmt: skip
        (end,) = kinds(run, n, "end")
        assert (end["attempt"], end["state"]) == (1, "failed")
    messages = run.tail(1, follow=False)
    tailed = b"".join(one.body for one in messages if one.head.get("data") == "ranks/1.log")
    assert tailed == run.log(1, 1), "no line between two attempts is lost"
    open_files = Path(f"/proc/{run.status(0)['ranks'][0]['pid']}/fd").iterdir()
    links = [str(one.readlink()) for one in open_files]
    assert not [link for link in links if link.startswith("socket:")], "no rank holds the lock"
    (run.workdir / "go").touch()
    ends = [run.ended(n) for n in (0, 1)]
    assert [end["state"] for end in ends] == ["finished", "finished"]
    locks = [node.lock for node in run.plan.nodes]
    wait_until(lambda: all(run_lock.query(lock, {"ask": "who"}) is None for lock in locks))
    assert not run.left()


def test_a_node_is_followed_across_attempts_to_the_end_of_the_last(make_run: MakeRun) -> None:
    run = of_attempts(make_run, most=1, nodes=1).start()
    wait_for_attempt(run, 1)
    found: list[Head] = []
    follower = threading.Thread(target=lambda: found.append(run.ended()))
    follower.start()
    kill_rank(run, 0)
    wait_for_attempt(run, 2)
    assert b"begin 0 from nothing" in run.log(0).split(b"here 0", 1)[1], "it had written none"
    assert follower.is_alive()
    kill_rank(run, 0, signal.SIGTERM)
    follower.join()
    (node,) = found
    assert (node["state"], node["attempt"], node["end"]["exit_code"]) == ("failed", 2, 143)
    assert node["end"]["no_restart"].endswith("; attempt 2 of 2 was the last")
    assert [end["attempt"] for end in kinds(run, 0, "end")] == [1, 2]
    assert not run.left()


@pytest.mark.parametrize(
    "how", ["order", pytest.param("supervisor", marks=SOAK), pytest.param("guard", marks=SOAK)]
)
def test_a_stop_before_the_next_attempt_begins_is_final(make_run: MakeRun, how: str) -> None:
    run = of_attempts(make_run).start()
    wait_for_attempt(run, 1)
    fail_twice(run, 0)
    waiting = run.status(0)
    assert (waiting["state"], waiting["again"]["attempt"]) == ("starting", 3)
    if how == "order":
        assert run.stop(1)["gone"]
    else:
        os.kill(run.pid_of_supervisor(1) if how == "supervisor" else run.pid_of_guard(1), 15)
    ends = [run.ended(n) for n in (0, 1)]
    assert [end["state"] for end in ends] == ["failed", "failed"], "that is what it had been"
    assert [end["end"]["no_restart"] for end in ends] == ["it was stopped"] * 2
    assert [len(kinds(run, n, "supervisor-up")) for n in (0, 1)] == [2, 2]
    assert not run.left()


def test_a_signal_while_the_next_attempt_starts_leaves_an_end(make_run: MakeRun) -> None:
    run = of_attempts(make_run, most=1, nodes=1).start()
    wait_for_attempt(run, 1)
    first, guard = Path(f"/proc/{run.pid_of_supervisor(0)}"), run.pid_of_guard(0)
    kill_rank(run, 0)
    while first.exists():
        time.sleep(0.001)  # its guard starts the next one right now
    os.kill(guard, signal.SIGTERM)
    end = run.ended()
    assert end["state"] in {"failed", "stopped"}, "and not lost"
    assert not run.left()


def test_a_killed_supervisor_ends_the_run_for_good(make_run: MakeRun) -> None:
    run = of_attempts(make_run).start()
    wait_for_attempt(run, 1)
    os.kill(run.pid_of_supervisor(1), signal.SIGKILL)
    ends = [run.ended(n) for n in (0, 1)]
    assert [end["state"] for end in ends] == ["failed", "failed"]
    assert ends[1]["end"]["by"] == "supervisor"
    assert ends[0]["end"]["no_restart"] == f"the supervisor on {run.names[1]} had died"
    assert not run.left()


@pytest.mark.parametrize("killed", [0, pytest.param(1, marks=SOAK)])
def test_a_supervisor_killed_before_the_next_attempt_ends_the_run(
    make_run: MakeRun, killed: int
) -> None:
    run = of_attempts(make_run, lost_after=5).start()
    wait_for_attempt(run, 1)
    fail_twice(run, 0)
    os.kill(run.pid_of_supervisor(killed), signal.SIGKILL)
    ends = [run.ended(n) for n in (0, 1)]
    assert [end["state"] for end in ends] == ["failed", "failed"]
    assert [len(kinds(run, n, "supervisor-up")) for n in (0, 1)] == [2, 2]
    assert not run.left()


@pytest.mark.parametrize("waits", [False, pytest.param(True, marks=SOAK)])
def test_without_its_guard_a_node_starts_no_further_attempt(
    make_run: MakeRun,
    waits: bool,  # noqa: FBT001
) -> None:
    run = of_attempts(make_run).start()
    wait_for_attempt(run, 1)
    if waits:
        fail_twice(run, 0)
    os.kill(run.pid_of_guard(1), signal.SIGKILL)
    if not waits:
        kill_rank(run, 0)
    ends = [run.ended(n) for n in (0, 1)]
    assert [end["state"] for end in ends] == ["failed", "failed"]
    assert "guard" in ends[1]["end"]["no_restart"]
    assert [len(kinds(run, n, "supervisor-up")) for n in (0, 1)] == ([2, 2] if waits else [1, 1])
    assert not run.left()


def test_a_lost_master_ends_the_run_as_without_restarts(make_run: MakeRun) -> None:
    run = of_attempts(make_run, lost_after=2).start()
    wait_for_attempt(run, 1)
    run.kill_supervisor_and_guard(0)
    end = run.ended(1)
    assert (end["state"], end["end"]["by"]) == ("lost", "lost")
    assert end["end"]["no_restart"] == f"{run.names[0]}, whose supervisor decides, is lost"


def test_a_master_that_is_lost_before_the_next_attempt_ends_the_run(make_run: MakeRun) -> None:
    run = of_attempts(make_run, lost_after=2).start()
    wait_for_attempt(run, 1)
    fail_twice(run, 0)
    run.kill_supervisor_and_guard(0)
    end = run.ended(1)
    assert end["state"] == "failed", "that is what it had been"
    assert end["end"]["no_restart"] == f"{run.names[0]}, whose supervisor decides, is lost"
    assert kinds(run, 1, "peer-lost")


def test_a_lost_node_ends_the_run_and_the_way_on_without_it_is_named(make_run: MakeRun) -> None:
    run = of_attempts(make_run, lost_after=2).start()
    wait_for_attempt(run, 1)
    run.kill_supervisor_and_guard(1)
    end = run.ended(0)
    assert (end["state"], end["end"]["by"]) == ("lost", "lost")
    lost = run.names[1]
    assert end["end"]["no_restart"].startswith(f"{lost}: ")
    assert end["end"]["no_restart"].endswith(
        f"; without it: clusterctl resume {run.plan.run} --checkpoint latest --exclude {lost}"
    )


def test_what_the_program_does_again_is_not_tried_again(make_run: MakeRun) -> None:
    run = of_attempts(make_run, "import no_such_module_here", nodes=1).start()
    end = run.ended()
    assert (end["state"], end["attempt"], end["end"]["exit_code"]) == ("failed", 1, 1)
    assert "no_such_module_here" in end["end"]["no_restart"]


def test_saves_that_are_all_unusable_end_the_run(make_run: MakeRun) -> None:
    run = of_attempts(make_run, nodes=1).start()
    wait_for_attempt(run, 1)
    for step in (5, 10):
        folder = run.workdir / "ckpt" / f"step-{step}"
        folder.mkdir(parents=True)
        (folder / "model.pt").write_bytes(b"not of torch")
    kill_rank(run, 0)
    end = run.ended()
    assert (end["state"], end["attempt"]) == ("failed", 1)
    why = end["end"]["no_restart"]
    assert "no checkpoint can be taken: step-10: it is not complete: model.pt is no file" in why


def test_an_attempt_that_cannot_start_ends_the_run(make_run: MakeRun) -> None:
    run = of_attempts(make_run, nodes=1).start()
    wait_for_attempt(run, 1)
    fail_twice(run, 0)
    Path(run.paths().agent).unlink()  # what starts the ranks
    end = run.ended()
    assert (end["state"], end["attempt"]) == ("failed", 3)
    assert not run.left()


STANDS_STILL = """
import os, socket, sys
print("begin", flush=True)
if "--resume" not in sys.argv:
    pair = socket.socketpair()
    pair[0].recv(1)
print("done")
"""


@SOAK
def test_a_hang_is_followed_by_the_next_attempt(make_run: MakeRun) -> None:
    job = Job(stop=Stop(grace=5), hang=Hang(after=5.0, action="restart"))
    run = of_attempts(make_run, STANDS_STILL, job=job).start()
    for n in (0, 1):
        run.wait_for_log(n, b"begin", n)
    save(run, 1)
    wait_until(lambda: Path(run.paths(0).end).exists())
    ends = [run.ended(n) for n in (0, 1)]
    assert [(end["state"], end["attempt"]) for end in ends] == [("finished", 2)] * 2
    (end, _) = kinds(run, 0, "end")
    assert end["by"] == "hang"


TRAINS = """
import os, signal, sys
import torch.distributed as dist
dist.init_process_group("gloo")
resumed = "--resume" in sys.argv
print("begin", dist.get_rank(), sys.argv[sys.argv.index("--resume") + 1] if resumed else "nothing")
for step in range(3):
    dist.barrier()
    if step == 1 and dist.get_rank() == 1 and not resumed:
        os.kill(os.getpid(), signal.SIGKILL)
print("done", dist.get_rank())
dist.destroy_process_group()
"""


@SOAK
@pytest.mark.torch
def test_torchrun_meets_again_in_the_next_attempt(make_run: MakeRun) -> None:
    run = of_attempts(make_run, TRAINS, launcher="torchrun")
    older = run.workdir / "ckpt" / "checkpoint-1"
    run.start()
    wait_until(lambda: bool(kinds(run, 0, "rank-started")))
    save(run, 1)
    wait_until(lambda: Path(run.paths(0).end).exists())
    ends = [run.ended(n) for n in (0, 1)]
    assert [(end["state"], end["attempt"]) for end in ends] == [("finished", 2)] * 2
    for n in (0, 1):
        assert f"begin {n} {older}\n".encode() in run.log(n, n)
        assert b"done" in run.log(n, n)
    assert not run.left()


ROUNDS = int(os.environ.get("CLUSTERCTL_SOAK_ROUNDS", "30"))


def is_over(run: Run) -> bool:
    """Tell whether no part of a run lives, be it that nobody is left to write its end."""
    return not any(run.status(n)["state"] in LIVE for n in (0, 1))


def pid_of(run: Run, n: int, what: str) -> int:
    if what == "rank":
        return int(run.status(n)["ranks"][0]["pid"])
    return run.pid_of_supervisor(n) if what == "supervisor" else run.pid_of_guard(n)


@SOAK
@pytest.mark.timeout(7200)
def test_whatever_dies_and_whenever_it_is_stopped_no_two_attempts_live_at_once(
    make_run: MakeRun,
) -> None:
    seed = os.environ.get("CLUSTERCTL_SOAK_SEED", "1")
    dice = random.Random(seed)
    for number in range(ROUNDS):
        run = of_attempts(make_run, most=2, lost_after=5).start()
        told, stopped = [], 0.0
        while not stopped and not is_over(run):
            time.sleep(dice.uniform(0.0, 8.0))
            n, what = dice.randrange(2), dice.choice(["rank"] * 6 + ["supervisor", "guard", "stop"])
            told.append((what, n))
            if what == "stop":
                assert run.stop(n, grace=0)["gone"], told
                stopped = time.time()
                continue
            with contextlib.suppress(LookupError, OSError, ValueError, TypeError):
                os.kill(pid_of(run, n, what), dice.choice([signal.SIGKILL, signal.SIGTERM]))
        wait_until(lambda run=run: is_over(run))  # type: ignore[misc]
        ends = [run.status(n) for n in (0, 1)]
        shown = (seed, number, told, [(end["state"], end["end"]) for end in ends])
        assert {end["state"] for end in ends} <= {"failed", "stopped", "lost"}, shown
        assert not run.left(), shown
        for n in (0, 1):
            printed = run.log(n, n) if Path(run.paths(n).folder, f"ranks/{n}.log").exists() else b""
            assert b"BlockingIOError" not in printed, ("two attempts lived at once", shown)
            ups = [event["time"] for event in kinds(run, n, "supervisor-up")]
            assert len(ups) <= 3, shown
            assert not stopped or max(ups) < stopped, ("started again after a stop", shown)
            tailed = run.tail(n, follow=False)
            sent = b"".join(m.body for m in tailed if m.head.get("data") == f"ranks/{n}.log")
            assert sent == printed, ("a line is lost", shown)
        print(number, *shown[2:])


def test_a_pattern_that_never_ends_blocks_no_supervisor(make_run: MakeRun) -> None:
    run = of_attempts(make_run, f"print('{'a' * 60}!'); 1 / 0", nodes=1)
    run.change["restart"]["on"] = {"patterns": ["(a+)+$"]}
    end = run.start().ended()
    assert (end["state"], end["attempt"]) == ("failed", 2)
    assert end["end"]["no_restart"].endswith("; the same as in the attempt before")
    assert [one["pattern"] for one in kinds(run, 0, "pattern-late")] == ["(a+)+$"] * 2
