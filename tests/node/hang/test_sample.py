"""What is read of a rank: its output, its bytes, its CPU time, all its processes."""

from __future__ import annotations

import copy
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from clusterctl.node.hang import sample
from clusterctl.node.hang.life import Moved
from clusterctl.node.probe.interface_addresses import list_interfaces
from clusterctl.node.run.processes import processes
from clusterctl.node.run.processes.processes import Process
from clusterctl.node.tcp_sockets import is_loopback
from tests.waiting import wait_until


def own(*pids: int) -> list[Process]:
    found = [processes.read(pid) for pid in pids]
    assert all(found)
    return [process for process in found if process]


def moved(before: sample.RankSample, log: Path, seconds: float = 1.0) -> Moved:
    now = sample.sample_rank(before.moment + seconds, str(log), own(os.getpid()))
    return sample.difference(before, now)


def test_output_files_and_cpu_time_are_seen(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.touch()
    first = sample.sample_rank(1.0, str(log), own(os.getpid()))
    assert not moved(first, log).printed
    log.write_bytes(b"x")
    (tmp_path / "checkpoint").write_bytes(bytes(5_000_000))
    sum(range(20_000_000))
    now = moved(first, log)
    assert now.printed
    assert now.bytes >= 5_000_000
    assert now.cpu > 0


def test_a_rank_that_gets_no_core_beside_others_is_busy() -> None:
    core = min(os.sched_getaffinity(0))
    spin = f"import os; os.sched_setaffinity(0, [{core}])\nos.nice(NICE)\nwhile True: pass"
    argvs = [[sys.executable, "-c", spin.replace("NICE", nice)] for nice in ("0", "19")]
    children = [subprocess.Popen(argv) for argv in argvs]
    try:
        pid = children[1].pid
        wait_until(lambda: os.getpriority(os.PRIO_PROCESS, pid) == 19)
        began = time.monotonic()
        first = sample.sample_rank(began, "none", own(pid))

        def is_busy() -> bool:
            found = sample.sample_rank(time.monotonic(), "none", own(pid))
            return sample.difference(first, found).cpu > 1 + 0.5 * (found.moment - began)

        wait_until(is_busy)
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_a_process_that_is_stuck_in_the_kernel_is_not_asked_for_its_bytes() -> None:
    (process,) = own(os.getpid())
    stuck = copy.copy(process)
    stuck.state = "D"
    first = sample.sample_rank(1.0, "none", [process])
    assert first.files[process.key] > 0
    assert sample.sample_rank(2.0, "none", [stuck], first).files == first.files
    second = sample.sample_rank(2.0, "none", [stuck], first)
    assert not sample.difference(first, second).shows
    assert not sample.difference(second, second).shows, "it waits for the same thing"
    time.sleep(0.001)  # the process waits for something else
    assert sample.difference(second, sample.sample_rank(3.0, "none", [stuck], second)).shows
    assert sample.sample_rank(2.0, "none", [stuck]).files == {stuck.key: 0}


def test_a_process_that_is_new_counts_from_its_start_and_one_that_ended_takes_nothing_away() -> (
    None
):
    def made(**files: int) -> sample.RankSample:
        known = {(int(name[1:]), 1): count for name, count in files.items()}
        return sample.RankSample(1.0, (0, 0), known, known, {}, {}, 0.0)

    assert sample.difference(made(p1=100), made(p1=150, p2=30)).bytes == 80
    assert sample.difference(made(p1=100, p2=900), made(p1=100)).bytes == 0


def test_each_process_is_its_nearest_ranks() -> None:
    def process(pid: int, parent: int) -> Process:
        return Process(pid, parent, pid, 1, "S", 1, 0)

    living = [process(10, 1), process(11, 10), process(12, 11), process(20, 1), process(30, 1)]
    found = sample.processes_of({10: 0, 20: 1}, living)
    assert {rank: [one.pid for one in mine] for rank, mine in found.items()} == {
        0: [10, 11, 12], 1: [20],
    }  # fmt: skip


def test_bytes_to_another_machine_are_seen_although_no_file_counts_them() -> None:
    known = [each["local"] for one in list_interfaces() for each in one["addr_info"]]
    address = next((one for one in known if ":" not in one and not is_loopback(one)), "")
    if not address:
        pytest.skip("this machine has no address but the loopback's")
    with socket.create_server((address, 0)) as server:
        there = socket.create_connection(server.getsockname())
        here, _ = server.accept()
    with here, there:
        before = sample.socket_bytes(sample.tcp_bytes(), own(os.getpid()))
        receive = threading.Thread(target=lambda: there.recv(3_000_000, socket.MSG_WAITALL))
        receive.start()
        here.sendall(bytes(3_000_000))
        receive.join()
        now = sample.socket_bytes(sample.tcp_bytes(), own(os.getpid()))
    # What is one connection here has both of its ends in this process.
    assert sample.moved_by(before, now) >= 3_000_000


def test_a_machine_talking_to_itself_moves_nothing_to_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = socket.create_connection(server.getsockname())
        with there, server.accept()[0] as here:
            inodes = {str(os.fstat(one.fileno()).st_ino) for one in (there, here)}
            assert not inodes & sample.tcp_bytes().keys()


def test_a_process_of_another_program_is_read_too() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert sample.sample_rank(1.0, "none", own(child.pid)).files
        child.communicate(b"\n")
    assert sample.sample_rank(1.0, "none", []).log == (0, 0)
