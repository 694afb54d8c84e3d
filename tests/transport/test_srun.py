"""Nodes of a Slurm allocation: srun carries the calls, and its own errors are the node's.

The `srun` here is a script that runs the command on this machine, as Slurm's runs it on a node.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from clusterctl.inventory.cluster import Node, Ssh
from clusterctl.node.agent import main
from clusterctl.node.agent.call_channel import CallChannel
from clusterctl.node.run.processes.processes import become_subreaper
from clusterctl.transport.interface import Reply, Request
from clusterctl.transport.pool import Pool
from tests.failed_reply import error_of
from tests.sshd_servers import cluster_of
from tests.waiting import wait_until

HELLO = Request(op="hello", args={"x": "y"}, body=bytes(range(256)))
RUNS = 'echo "$@" > "$0.argv"; while [ "$1" != /bin/sh ]; do shift; done; exec "$@"'


@pytest.fixture(autouse=True)
def _allocation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


def say_hello(tmp_path: Path, script: str, *, job: str | None = "4711") -> Reply:
    srun = tmp_path / "srun"
    srun.write_text(f"#!/bin/sh\n{script}\n")
    srun.chmod(0o755)
    node = Node(host="gpu07", name="gpu07", ssh=Ssh(via="srun", slurm_job=job))
    with Pool(cluster_of(node)) as pool:
        (reply,) = pool.call({"gpu07": HELLO})
    return reply


def test_a_call_is_a_step_of_the_job_on_that_node(tmp_path: Path) -> None:
    reply = say_hello(tmp_path, RUNS)
    assert reply.ok, reply
    assert (reply.last.head["args"], reply.last.body) == ({"x": "y"}, HELLO.body)
    words = (tmp_path / "srun.argv").read_text().split()
    assert {"--jobid=4711", "--nodelist=gpu07", "--overlap", "--ntasks=1"} <= set(words)


def test_a_step_gets_all_of_the_job_whatever_one_task_of_it_would_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_GPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_LABELIO", "SLURM_EXPORT_ENV"):
        monkeypatch.setenv(name, "1")
    for name in ("SLURM_CONF", "SLURM_JOB_NAME", "SLURM_ARRAY_TASK_ID", "SLURM_JOBID"):
        monkeypatch.setenv(name, "kept")
    assert say_hello(tmp_path, f'env > "$0.env"\n{RUNS}').ok
    lines = (tmp_path / "srun.env").read_text().splitlines()
    found = {line for line in lines if line.startswith(("SLURM_", "SRUN_"))}
    assert {line for line in found if line.endswith("=1")} == set()
    assert len({line for line in found if line.endswith("=kept")}) == 4
    assert "HOME=" in "\n".join(lines)


def test_what_to_type_on_a_node_goes_through_srun(tmp_path: Path) -> None:
    error = error_of(say_hello(tmp_path, "cat >/dev/null & exit 3"))
    where = "srun --jobid=4711 --overlap --nodes=1 --nodelist=gpu07"
    assert error.hint == f"try: {where} echo it works"


def test_an_error_of_sruns_own_is_shown_with_what_to_type(tmp_path: Path) -> None:
    words = "Unable to confirm allocation for job 4711: Invalid job id specified"
    noise = "cluster configuration lacks support for cpu binding"
    script = f'echo "srun: {noise}" >&2; echo "srun: error: {words}" >&2; exit 1'
    error = error_of(say_hello(tmp_path, script))
    assert (error.state, error.message) == ("lost", f"srun: {words}")
    assert error.hint == "does the allocation still run? try: squeue --job 4711"


def test_the_exit_code_of_the_command_is_not_sruns_own(tmp_path: Path) -> None:
    ended = "srun: error: gpu07: task 0: Exited with exit code 97"
    error = error_of(say_hello(tmp_path, f'cat >/dev/null & echo "{ended}" >&2; exit 97'))
    assert error.message == "no Python 3.9 or newer was found"


def test_outside_an_allocation_it_names_the_missing_variable(tmp_path: Path) -> None:
    error = error_of(say_hello(tmp_path, RUNS, job=None))
    assert error.message.startswith("SLURM_JOB_ID: expected in the environment")
    assert error.hint.startswith("salloc ")


def test_without_srun_it_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    error = error_of(say_hello(tmp_path, RUNS))
    assert error.message == "there is no srun on this machine"


def test_a_step_stays_until_what_it_detached_has_ended(tmp_path: Path) -> None:
    """Slurm kills what a step leaves, a session of its own included."""
    answer, output = os.pipe()
    pid = os.fork()
    if pid == 0:
        reader = (tmp_path / "empty").open("wb+", buffering=0)
        become_subreaper()
        # The supervisor's parent is killed: the supervisor is left, in another session.
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                (tmp_path / "left").write_text(str(os.getpid()))
                os.close(output)
                time.sleep(600)
            os._exit(0)
        main.wait_for_descendants(CallChannel(reader, output))
        os._exit(0)
    os.close(output)
    try:
        assert os.read(answer, 1) == b"", "the controller must see the end of the answers"
        left = psutil.Process(int((tmp_path / "left").read_text()))
        wait_for_only_child(pid, left)
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
        left.kill()
        assert os.waitpid(pid, 0) == (pid, 0)
    finally:
        os.close(answer)


def wait_for_only_child(pid: int, left: psutil.Process) -> None:
    """Wait until a process has adopted another and has no other child."""
    parent = psutil.Process(pid)
    wait_until(lambda: parent.children() == [left], why=parent.children)
