"""Two supervisors on two loopback addresses, as two nodes: one end is everyone's end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.inventory.cluster import Job, Stop
from clusterctl.node import run_lock
from clusterctl.node.event_loop import EventLoop
from clusterctl.node.peer_link.peers import Peers
from clusterctl.node.peer_link.run_tokens import node_token
from clusterctl.node.peer_link.tls_channel import client_context
from clusterctl.node.run.processes import processes
from clusterctl.node.supervisor.members import Members
from clusterctl.node.supervisor.shutdown import Cause
from clusterctl.node.supervisor.supervisor import Supervisor
from tests.node.conftest import Head, Run
from tests.waiting import wait_until

MakeRun = Callable[..., Run]

SLEEP = "import time; print('here'); time.sleep(300)"

FAIL = """
import os, sys, time
print("here")
while not os.path.exists("go"):
    time.sleep(0.01)
if os.environ["RANK"] == "3":
    sys.exit(7)
time.sleep(300)
"""

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, ["kworker/0:1", "-c", "import time; time.sleep(300)"], {})
    os._exit(0)
os.wait()
"""


def times(run: Run, n: int, kind: str) -> list[float]:
    return [event["time"] for event in run.events(n) if event["kind"] == kind]


def test_one_rank_fails_and_everything_is_gone_on_both_nodes(make_run: MakeRun) -> None:
    run = make_run(STUBBORN + FAIL, nodes=2, procs=2).start()
    for rank in range(4):
        run.wait_for_log(rank, b"here", n=rank // 2)
    wait_until(lambda: len(daemons_of(run)) == 4)
    daemons = daemons_of(run)
    (run.workdir / "go").touch()
    nodes = [run.ended(0), run.ended(1)]
    over = max(Path(run.paths(n).end).stat().st_mtime for n in (0, 1))
    assert [node["state"] for node in nodes] == ["failed", "failed"]
    assert nodes[1]["end"]["by"] == "rank"
    assert nodes[1]["end"]["exit_code"] == 7
    assert nodes[1]["end"]["reason"] == "rank 3 ended with exit code 7"
    assert nodes[0]["end"]["by"] == "peer"
    assert f"{run.names[1]}: rank 3 ended with exit code 7" in nodes[0]["end"]["reason"]
    assert not run.left()
    assert not any(map(is_alive, daemons))
    died = next(e for e in run.events(1) if e["kind"] == "rank-ended" and e["rank"] == 3)
    assert died["ordered"] is False
    told = next(e for e in run.events(0) if e["kind"] == "peer-bad-end")
    assert {key: told[key] for key in ("peer", "by", "rank", "exit_code", "signal", "lost")} == {
        "peer": run.names[1], "by": "rank", "rank": 3, "exit_code": 7, "signal": None, "lost": None,
    }  # fmt: skip
    assert over - died["time"] < 5  # 1.1 s on a machine with nothing else to do


def is_alive(pid: int) -> bool:
    return processes.alive(processes.key_of(pid))


def daemons_of(run: Run) -> list[int]:
    """Return what supervisors have adopted: in a session of its own, name and stamp wiped."""
    supervisors = {
        run.pid_of_supervisor(n)
        for n in range(len(run.names))
        if not run.paths(n).ownership_problem()
    }
    adopted = [p.pid for p in processes.process_table().values() if p.parent in supervisors]
    return [pid for pid in adopted if processes.command_of(pid).startswith("kworker/0:1 -c")]


def test_a_rank_killed_by_a_signal_is_told_with_it(make_run: MakeRun) -> None:
    run = make_run(SLEEP, procs=2).start()
    for rank in (0, 1):
        run.wait_for_log(rank, b"here")
    os.kill(run.status()["ranks"][1]["pid"], signal.SIGSEGV)
    node = run.ended()
    assert node["end"]["exit_code"] == 128 + signal.SIGSEGV
    assert (node["ranks"][1]["exit_code"], node["ranks"][1]["signal"]) == (139, 11)
    assert node["ranks"][0]["signal"] == signal.SIGTERM


def test_ranks_that_end_well_end_the_run_well(make_run: MakeRun) -> None:
    meet = """
import os, socket, time
master = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if os.environ["RANK"] == "0":
    store = socket.create_server(master)
    peers = [store.accept()[0] for _ in range(2)]
    while not os.path.exists("go"): time.sleep(0.01)
    time.sleep(0.5)
else:
    while True:
        try: peer = socket.create_connection(master); break
        except OSError: time.sleep(0.05)
    if os.environ["RANK"] == "1": peer.recv(1)
    else:
        while not os.path.exists("go"): time.sleep(0.01)
"""
    run = make_run(meet, nodes=3)
    run.start()
    for n in range(3):
        wait_until(lambda n=n: all(r["joined"] for r in run.status(n)["ranks"]))  # type: ignore[misc]
    (run.workdir / "go").touch()
    nodes = [run.ended(n) for n in (2, 1, 0)]
    assert [node["state"] for node in nodes] == ["finished"] * 3
    assert [node["end"]["exit_code"] for node in nodes] == [0] * 3
    # How soon the link to the other nodes is up depends on them.
    kinds = [event["kind"] for event in run.events(1) if event["kind"] != "clock"]
    kinds.insert(1, kinds.pop(kinds.index("peer-joined")))
    assert kinds == [
        "supervisor-up", "peer-joined", "rank-started", "rank-joined", "rank-ended", "end",
    ]  # fmt: skip
    clock = next(event for event in run.events(1) if event["kind"] == "clock")
    assert abs(clock["offset_s"]) <= clock["error_s"] + 0.001
    assert run_lock.query(run.plan.master.lock, {"ask": "who"}) is None


SERVE = [sys.executable, "-c", "import time; print('served', flush=True); time.sleep(300)"]
"""As a launcher: what the master's ranks use on the other nodes."""


def start_serving(run: Run, argv: list[str] = SERVE) -> None:
    run.change = {"ends_with_master": True, "procs": 0, "launcher_argv": argv}
    head = run.start_node(1)
    assert "error" not in head, head


def test_what_serves_the_master_ends_once_the_master_is_over(make_run: MakeRun) -> None:
    run = make_run("import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)", nodes=2)
    run.link_port = run.start_node(0)["link_port"]
    start_serving(run)
    wait_until(lambda: bool([e for e in run.events(0) if e["kind"] == "peer-joined"]))
    assert run.status(1)["end"] is None
    (run.workdir / "go").touch()
    nodes = [run.ended(n) for n in (0, 1)]
    assert [node["state"] for node in nodes] == ["finished", "finished"]
    assert nodes[1]["end"]["by"] == "master"
    assert nodes[1]["end"]["reason"] == f"the run has finished on node {run.names[0]}"
    assert not run.left()


def test_what_serves_the_master_is_kept_while_the_master_uses_its_grace(make_run: MakeRun) -> None:
    save = """
import os, signal, sys, time
def save(*_):
    open("saving", "w").close()
    while not os.path.exists("saved"): time.sleep(0.02)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("here")
time.sleep(300)
"""
    run = make_run(save, nodes=2, job=Job(stop=Stop(grace=120)))
    run.link_port = run.start_node(0)["link_port"]
    start_serving(run)
    run.wait_for_log(0, b"here")
    wait_until(lambda: bool([e for e in run.events(0) if e["kind"] == "peer-joined"]))
    wait_until(lambda: b"served" in Path(run.paths(1).launcher_log).read_bytes())
    run.call(0, "stop", {**run.where(0), "wait": False})
    wait_until((run.workdir / "saving").exists)
    wait_until(lambda: run.status(1)["end"] is not None)
    time.sleep(1.5)  # longer than it takes where nobody is to be asked
    assert [e["kind"] for e in run.events(1)][-1] == "stop-ordered"
    began = time.monotonic()
    (run.workdir / "saved").touch()
    assert [run.ended(n)["state"] for n in (0, 1)] == ["stopped", "stopped"]
    assert time.monotonic() - began < 60  # not the grace
    assert not run.left()


def test_what_serves_the_master_must_not_end_before_it(make_run: MakeRun) -> None:
    run = make_run(SLEEP, nodes=2)
    run.link_port = run.start_node(0)["link_port"]
    run.wait_for_log(0, b"here")
    start_serving(run, [sys.executable, "-c", ""])
    nodes = [run.ended(n) for n in (0, 1)]
    assert [node["state"] for node in nodes] == ["failed", "failed"]
    assert nodes[1]["end"]["by"] == "launcher"
    assert not run.left()


def test_a_node_that_is_done_stays_until_all_are(make_run: MakeRun) -> None:
    """The master carries what the others say; who leaves early is taken for lost."""
    wait = "import os, time\nwhile os.environ['RANK'] == '1' and not os.path.exists('go'):"
    run = make_run(f"{wait} time.sleep(0.02)", nodes=2).start()
    wait_until(lambda: run.status(0)["end"] is not None)
    wait_until(lambda: run.status(1)["ranks"][0]["state"] == "running")
    (run.workdir / "go").touch()
    assert [run.ended(n)["state"] for n in (0, 1)] == ["finished", "finished"]
    over = Path(run.paths(0).end).stat().st_mtime
    assert over >= times(run, 1, "rank-ended")[0]


def test_a_supervisor_and_a_guard_that_are_killed_take_their_ranks_along(make_run: MakeRun) -> None:
    run = make_run(SLEEP, nodes=2, procs=2, lost_after=3.0).start()
    for rank in (2, 3):
        run.wait_for_log(rank, b"here", n=1)
    ranks = [rank["pid"] for rank in run.status(1)["ranks"]]
    run.kill_supervisor_and_guard(1)
    wait_until(lambda: not any(map(is_alive, ranks)))
    wait_until(lambda: run.status(1)["state"] == "lost")
    assert not run.status(1)["supervisor"]["alive"]
    master = run.ended(0)
    assert master["state"] == "lost"
    assert master["end"]["by"] == "lost"
    assert f"{run.names[1]} has been silent for 3 s" in master["end"]["reason"]
    assert not run.left()
    stopped = run.stop(1)
    assert stopped["gone"]
    assert stopped["left"] == []
    found = run.status(1)
    assert (found["state"], found["end"]["by"]) == (
        "lost",
        "lost",
    )  # to clear up changes no history


def test_a_number_that_is_used_again_is_no_rank_of_a_lost_run(make_run: MakeRun) -> None:
    run = make_run(SLEEP).start()
    run.wait_for_log(0, b"here")
    run.kill_supervisor_and_guard()
    assert not run.left()
    account = json.loads(Path(run.paths().supervisor).read_text())
    account["ranks"][0]["pid"] = os.getpid()
    Path(run.paths().supervisor).write_text(json.dumps(account))
    node = run.status()
    assert (node["state"], node["ranks"][0]["state"]) == ("lost", "ended")


def test_the_masters_death_ends_the_workers(make_run: MakeRun) -> None:
    run = make_run(SLEEP, nodes=2, lost_after=3.0).start()
    run.wait_for_log(1, b"here", n=1)
    run.kill_supervisor_and_guard(0)
    worker = run.ended(1)
    assert worker["end"]["by"] == "lost"
    (lost,) = [e for e in run.events(1) if e["kind"] == "peer-lost"]
    assert lost["peer"] == run.names[0]
    assert lost["time"] - lost["since"] == pytest.approx(3.0, abs=0.5)  # since the last word
    assert not run.left()


def test_the_others_learn_which_node_was_lost(make_run: MakeRun) -> None:
    run = make_run(SLEEP, nodes=3, lost_after=3.0).start()
    run.wait_for_log(2, b"here", n=2)
    wait_until(lambda: len(times(run, 0, "peer-joined")) == 2)
    run.kill_supervisor_and_guard(1)
    assert run.ended(2)["end"]["by"] == "peer"
    (told,) = [e for e in run.events(2) if e["kind"] == "peer-bad-end"]
    assert (told["peer"], told["by"], told["lost"]) == (run.names[0], "lost", run.names[1])
    assert not run.left()


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_short_silence_costs_nothing_and_a_long_one_ends_the_run(
    make_run: MakeRun, frozen: int
) -> None:
    run = make_run(SLEEP, nodes=2, lost_after=4).start()
    run.wait_for_log(1, b"here", n=1)
    wait_until(lambda: times(run, 0, "peer-joined") != [])
    supervisor = run.pid_of_supervisor(frozen)
    os.kill(supervisor, signal.SIGSTOP)
    time.sleep(1.2)
    os.kill(supervisor, signal.SIGCONT)
    time.sleep(3)  # longer than is left of the limit: the silence ended, and is not counted on
    assert [run.status(n)["state"] for n in (0, 1)] == ["running", "running"]
    os.kill(supervisor, signal.SIGSTOP)
    assert run.ended(1 - frozen)["end"]["by"] == "lost"
    os.kill(supervisor, signal.SIGCONT)
    assert run.ended(frozen)["end"]["by"] in ("lost", "peer")
    assert not run.left()


def test_a_node_that_never_comes_ends_the_run_with_its_name(make_run: MakeRun) -> None:
    run = make_run(SLEEP, nodes=2, start_timeout=1.0)
    assert "error" not in run.start_node(0)
    node = run.ended(0)
    assert node["end"]["by"] == "start-timeout"
    assert run.names[1] in node["end"]["reason"]
    (late,) = [event for event in run.events(0) if event["kind"] == "start-timeout"]
    assert (late["peer"], late["message"]) == (run.names[1], "it was not there within 1 s")


def test_a_rank_that_gets_no_answer_at_the_rendezvous_ends_the_start(make_run: MakeRun) -> None:
    connect = """
import os, socket, time
print("here", flush=True)
if os.environ["RANK"] == "1":
    time.sleep(300)
socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"])), 300)
"""
    run = make_run(connect, nodes=2, start_timeout=8.0)
    address = ("127.0.0.1", run.plan.master_port)
    # A listener whose queue is full lets the packets fall, as a firewall does.
    with socket.create_server(address, backlog=0) as full, ExitStack() as taken:
        for _ in range(4):
            each = taken.enter_context(socket.socket())
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        run.start()
        node = run.ended()
    assert node["end"]["by"] == "start-timeout"
    where = f"127.0.0.1:{run.plan.master_port}"
    assert node["end"]["reason"] == f"not gathered within 8 s: rank 0 does not reach {where}"
    run.ended(1)
    first, busy = ([e["message"] for e in run.events(n) if e["kind"] == "late"] for n in (0, 1))
    assert first == [f"rank 0 does not reach {where}"]
    told = rf"rank 1 has run for \d+ s without connecting to {where}; last line: here"
    assert re.fullmatch(told, *busy)


def test_a_job_without_a_rendezvous_is_not_waited_for(make_run: MakeRun) -> None:
    run = make_run(SLEEP, start_timeout=0.5).start()
    run.wait_for_log(0, b"here")
    time.sleep(1.5)
    assert run.status()["state"] == "running"
    assert run.status()["launcher_joined"] is None


@pytest.mark.parametrize("reaches", [True, False])
def test_a_launcher_that_starts_no_ranks_ends_the_start(make_run: MakeRun, reaches: bool) -> None:  # noqa: FBT001
    run = make_run(SLEEP, start_timeout=2.0)
    listen = f"s = socket.create_server(('127.0.0.1', {run.plan.master_port}))" if reaches else ""
    waits = f"import socket, time; {listen}\ntime.sleep(300)"
    run.change = {"launcher": "torchrun", "launcher_argv": [sys.executable, "-c", waits]}
    run.start()
    if reaches:
        wait_until(lambda: bool(run.status()["launcher_joined"]))
    node = run.ended()
    what = "waits at {} for another" if reaches else "does not reach {}"
    where = f"127.0.0.1:{run.plan.master_port}"
    assert node["end"]["by"] == "start-timeout"
    assert node["end"]["reason"].endswith("its launcher " + what.format(where))
    assert ("launcher-joined" in [event["kind"] for event in run.events()]) is reaches


def test_a_run_goes_on_when_its_folder_is_deleted(make_run: MakeRun) -> None:
    run = make_run(SLEEP).start()
    run.wait_for_log(0, b"here")
    supervisor = run.pid_of_supervisor()
    run.delete_folder()
    time.sleep(1.5)
    assert is_alive(supervisor)
    assert run.left()
    stopped = run.stop(lock=run.plan.master.lock, grace=1, signal="TERM")
    assert stopped["gone"]
    assert not is_alive(supervisor)
    assert not run.left()


def test_a_supervisor_that_fails_ends_everything_and_says_so(make_run: MakeRun) -> None:
    run = make_run(STUBBORN + SLEEP)
    run.change = {"stop": {"grace": "soon"}}
    run.start()
    wait_until(lambda: daemons_of(run) != [])
    daemons = daemons_of(run)
    os.kill(run.pid_of_supervisor(), signal.SIGTERM)
    node = run.ended()
    assert (node["state"], node["end"]["by"]) == ("failed", "supervisor")
    assert "TypeError" in node["end"]["reason"]
    assert "Traceback" in Path(run.paths().launcher_log).read_text()
    assert not any(map(is_alive, daemons))
    assert not run.left()


def test_a_peer_that_sends_nonsense_loses_its_connection_and_nothing_else(
    make_run: MakeRun,
) -> None:
    run = make_run(SLEEP, nodes=2)
    up = run.start_node(0)
    run.wait_for_log(0, b"here")
    context = client_context(run.identity.certificate)
    name = run.names[1]
    hello = {"token": node_token(run.identity.token, name), "node": name}
    for ending in (5, {"by": "rank"}, {"by": "x", "reason": "x", "node": 1}):
        plain = socket.create_connection(("127.0.0.1", up["link_port"]))
        with context.wrap_socket(plain) as tls:
            for message in ({"hello": hello}, {"ending": ending}):
                tls.sendall(json.dumps(message).encode() + b"\n")
            tls.settimeout(20)
            with suppress(ConnectionResetError):
                while tls.recv(4096):
                    pass
    assert run.status()["state"] == "running"
    assert Path(run.paths().launcher_log).read_text() == "", "a peer could fill the disk"
    run.link_port = up["link_port"]
    run.start_node(1)
    run.wait_for_log(1, b"here", n=1)
    assert run.stop(1, grace=0)["gone"]
    assert run.ended(0)["end"]["by"] == "stop"


def test_a_worker_that_another_has_taken_over_decides_nothing_for_other_nodes(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = make_run(SLEEP, nodes=3, lost_after=60.0).start()
    for n in range(3):
        run.wait_for_log(n, b"here", n)
    wait_until(lambda: len(times(run, 0, "peer-joined")) == 2)
    taken = run.pid_of_supervisor(1)
    os.kill(taken, signal.SIGSTOP)
    token = node_token(run.identity.token, run.names[1])
    context = client_context(run.identity.certificate)

    def speak(name: str, message: Head) -> socket.socket:
        tls = context.wrap_socket(socket.create_connection(("127.0.0.1", run.link_port)))
        tls.settimeout(20)
        for one in ({"hello": {"token": token, "node": name}}, message):
            tls.sendall(json.dumps(one).encode() + b"\n")
        return tls

    with speak(run.names[2], {"bye": "finished"}) as refused, suppress(ConnectionResetError):
        assert refused.recv(4096) == b"", "its token is not that node's"
    files = {"file": str(tmp_path / "elsewhere"), "signal": None, "grace": 99999999}
    ending = {"by": "stop", "reason": "why", "node": run.names[2], **files}
    with speak(run.names[1], {"ending": ending}):
        wait_until(lambda: {run.status(n)["state"] for n in (0, 2)} == {"stopped"})
    os.kill(taken, signal.SIGCONT)
    assert not (tmp_path / "elsewhere").exists()


def test_a_node_that_dies_while_an_end_is_relayed_does_not_hide_the_first_cause(
    make_run: MakeRun,
) -> None:
    fail = "import os, sys, time; print('here')\n"
    fail += "while os.environ['RANK'] != '1' or not os.path.exists('go'): time.sleep(0.01)\n"
    fail += "sys.exit(7)"
    run = make_run(fail, nodes=3)
    run.link_port = run.start_node(0)["link_port"]
    run.start_node(1)
    context = client_context(run.identity.certificate)
    plain = socket.create_connection(("127.0.0.1", run.link_port))
    other = context.wrap_socket(plain)  # the third node
    name = run.names[2]
    hello = {"token": node_token(run.identity.token, name), "node": name}
    other.sendall(json.dumps({"hello": hello}).encode() + b"\n")
    wait_until(lambda: len(times(run, 0, "peer-joined")) == 2)
    run.wait_for_log(0, b"here")
    run.wait_for_log(1, b"here", n=1)
    master = run.pid_of_supervisor(0)
    os.kill(master, signal.SIGSTOP)
    (run.workdir / "go").touch()
    wait_until(lambda: times(run, 1, "rank-ended") != [])
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.close()  # by a reset, which the master learns only after it has read of the end
    os.kill(master, signal.SIGCONT)
    nodes = [run.ended(0), run.ended(1)]
    assert [node["state"] for node in nodes] == ["failed", "failed"]
    assert nodes[0]["end"]["by"] == "peer"
    assert f"{run.names[1]}: rank 1 ended with exit code 7" in nodes[0]["end"]["reason"]
    assert nodes[1]["end"]["reason"] == "rank 1 ended with exit code 7"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_supervisor_stops_the_run_everywhere(
    make_run: MakeRun, number: signal.Signals
) -> None:
    run = make_run(SLEEP, nodes=2).start()
    run.wait_for_log(1, b"here", n=1)
    wait_until(lambda: times(run, 0, "peer-joined") != [])
    os.kill(run.pid_of_supervisor(1), number)
    assert [run.ended(n)["state"] for n in (0, 1)] == ["stopped", "stopped"]
    assert number.name in run.status(1)["end"]["reason"]
    assert not run.left()


def test_what_a_good_end_leaves_behind_is_ended_too(make_run: MakeRun) -> None:
    wait = "\nwhile not os.path.exists('go'): time.sleep(0.01)"
    run = make_run(STUBBORN.replace("SIG_IGN", "SIG_DFL") + wait).start()
    wait_until(lambda: daemons_of(run) != [])
    daemons = daemons_of(run)
    (run.workdir / "go").touch()
    assert run.ended()["state"] == "finished"
    assert not any(map(is_alive, daemons))
    assert not run.left()


def test_the_job_says_how_long_the_others_may_save_after_a_failure(make_run: MakeRun) -> None:
    text = """
import os, signal, sys, time
def save(*_): time.sleep(3); print("saved"); sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("here")
while not os.path.exists("go"): time.sleep(0.01)
if os.environ["RANK"] == "0": sys.exit(7)
time.sleep(300)
"""
    run = make_run(text, nodes=2, procs=2, job=Job(stop=Stop(failure_grace=60.0))).start()
    for rank in range(4):
        run.wait_for_log(rank, b"here", n=rank // 2)
    wait_until(lambda: times(run, 0, "peer-joined") != [])
    (run.workdir / "go").touch()
    assert [run.ended(n)["state"] for n in (0, 1)] == ["failed", "failed"]
    for rank in (1, 2, 3):
        assert run.log(rank, n=rank // 2).endswith(b"saved\n")


def test_the_job_says_how_long_what_is_left_after_a_good_end_may_run(make_run: MakeRun) -> None:
    text = """
import os, time
if os.fork() == 0:
    time.sleep(7)
    print("uploaded")
"""
    run = make_run(text, job=Job(stop=Stop(leftovers=60.0))).start()
    assert run.ended()["state"] == "finished"
    assert run.log(0) == b"uploaded\n"
    assert times(run, 0, "leftovers-ended") == []


def test_what_is_ended_after_a_good_end_and_who_never_joined_is_named(make_run: MakeRun) -> None:
    text = """
import os, time
time.sleep(5.5)
if os.fork() == 0:
    time.sleep(300)
"""
    run = make_run(text, nodes=2, job=Job(stop=Stop(leftovers=0.1))).start()
    assert [run.ended(n)["state"] for n in (0, 1)] == ["finished", "finished"]
    for n in (0, 1):
        events = {event["kind"]: event for event in run.events(n)}
        assert events["leftovers-ended"]["count"] == 1
        assert " -u -c import os, time time" in events["leftovers-ended"]["commands"][0]
        assert events["never-met"]["master"] == f"127.0.0.1:{run.plan.master_port}"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([], "a process without RANK: expected 2 ranks, found one alone"),
        (["RANK=0", "WORLD_SIZE=1"], "expected WORLD_SIZE=2, found 1 for rank 0"),
    ],
)
def test_a_process_that_a_launcher_starts_outside_of_the_world_ends_the_run(
    make_run: MakeRun, given: list[str], reason: str
) -> None:
    run = make_run("print('trains alone')", procs=2)
    run.change = {"launcher": "accelerate", "launcher_argv": ["env", *given]}
    node = run.start().ended()
    assert (node["state"], node["end"]["by"], node["end"]["reason"]) == ("failed", "world", reason)
    sent = b"".join(message.body for message in run.tail())
    assert b"trains alone" not in sent
    assert not Path(run.paths().folder, "ranks/.log").exists()


@pytest.mark.parametrize(
    ("over", "certain", "follows", "lost"),
    [
        (True, True, False, False), (False, True, False, True), (True, False, False, True),
        (True, True, True, True),
    ],
)  # fmt: skip
def test_a_master_that_left_after_its_end_is_not_lost(
    *, over: bool, certain: bool, follows: bool, lost: bool
) -> None:
    """It waits some seconds for a rank that is slow to exit, and has told why it ends.

    One that decides on a next attempt has not left.
    """
    causes: list[Cause] = []
    events: list[str] = []
    made: Any = Supervisor.__new__(Supervisor)
    made._ending = SimpleNamespace(settled=False, certain=certain)
    made._job = {"link": {"lost_after": 5.0}, "node": "b", "node_rank": 1}
    made._peers = SimpleNamespace(others_over=over)
    made._next = SimpleNamespace(may_follow=follows)
    made._record = SimpleNamespace(event=lambda kind, **_: events.append(kind))
    made._end_everywhere = causes.append
    made.peer_lost("a", "Connection refused")
    assert ([cause.lost for cause in causes], events) == (["a"] * lost, ["peer-lost"] * lost)


def test_a_worker_whose_failure_ends_the_attempt_is_part_of_the_run_and_may_not_join() -> None:
    """To let it in would put it out of the next attempt."""
    job: Any = {
        "node": "a", "node_rank": 0, "master": {"node": "a"}, "workers": ["b"], "run": "r",
        "link": {"lost_after": 5.0}, "lineup": {"seats": []}, "restart": {"max": 1},
    }  # fmt: skip
    made: Any = Supervisor.__new__(Supervisor)
    made._job, made._peers = job, Peers(job, job["workers"])
    made._members = Members(EventLoop(), job, made._peers, "secret", lambda: None)
    made._ending = SimpleNamespace(begun=False)
    made._next = SimpleNamespace(may_follow=True)
    assert not made.peer_leaves({"by": "rank", "node": "b", "reason": "it failed"})
    asked: Any = {"ask": "join", "run": "r", "node": "a", "joins": "b"}
    assert made.handle_request(asked, SimpleNamespace())["refused"] == "joined"
