"""A node says by itself whether it keeps a rank from running."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

import pytest

from clusterctl.node.hang.blame import blame
from clusterctl.node.hang.stacks import dump_ranks
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.processes.processes import process_table
from tests.waiting import wait_until


def dump(state: str = "S", wait: str = "", *frames: str, throttled: tuple[str, ...] = ()) -> Any:
    thread = {"wait": wait, "frames": [{"function": name} for name in frames]}
    process = {"pid": 7, "state": state, "threads": [thread]}
    return {"ranks": [{"rank": 3, "processes": [process]}], "throttled": list(throttled)}


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (dump("S", "futex_wait_queue"), ""),
        (dump("R"), ""),
        (dump("t", "ptrace_stop"), ""),  # a person debugs it
        (dump("T", "do_signal_stop"), ""),  # the next attempt ends it, on the same node
        (dump("D", "rpc_wait_bit_killable"), "rank 3 (pid 7) waits for a file server"),
        (dump("S", "", "request_wait_answer"), "rank 3 (pid 7) waits for a file server"),
        (dump("D", "io_schedule"), "rank 3 (pid 7) waits for a disk"),
        (dump("D", "", "os_acquire_rwlock_read"), "rank 3 (pid 7) waits for the driver of a GPU"),
        (dump("S", throttled=("GPU 1: too hot",)), "GPU 1: too hot"),
    ],
)
def test_what_a_node_says_of_itself(found: Any, why: str) -> None:
    assert blame(found) == why


def test_a_real_process_that_a_signal_stopped_is_no_fault_of_its_node(tmp_path: Any) -> None:
    with subprocess.Popen(["sleep", "600"]) as sleeping:
        ranks = [{"rank": 0, "pid": sleeping.pid, "state": "running"}]
        paths = NodePaths(str(tmp_path))
        os.kill(sleeping.pid, signal.SIGSTOP)
        wait_until(lambda: process_table()[sleeping.pid].state == "T")
        assert blame(dump_ranks(paths, ranks, stacks_only=True)) == ""
        sleeping.kill()
