"""Why a rank is slow, by the counters of its node."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.node.hang import quota, slow_reasons
from clusterctl.node.hang.quota import Quota
from clusterctl.node.hang.sample import TICKS_PER_SECOND, OwnTime
from clusterctl.node.hang.slow_reasons import NONE, Node, Reading, machine_time, reason

BEFORE = Reading(
    100.0, 1000.0, 0.0, {1: 5000, 2: 10}, {7: (900, "sshd")}, Quota(50, 5), 40, {"eth0": 3}
)
LATER = BEFORE._replace(moment=110.0, busy=1010.0, run={1: 5000 + 10 * TICKS_PER_SECOND, 2: 10})
"""In 10 s the rank used a core, and nobody else any."""
NODE = Node(cores=2, nice=0)
BUSY = OwnTime(ran=0.9)
QUEUED = OwnTime(ran=0.4, queued=0.5)
NEIGHBOR = LATER._replace(
    busy=1025.0, others={7: (901, "sshd"), 9: (15 * TICKS_PER_SECOND, "stress-ng")}
)


@pytest.mark.parametrize(
    ("now", "share", "node", "words"),
    [
        (LATER, BUSY, NODE, NONE),
        (
            LATER,
            OwnTime(0.1, 0.0, 0.0, 0.7),
            NODE,
            "a signal or a debugger has it stopped for 70 %",
        ),
        (LATER, BUSY, NODE._replace(throttled=["GPU 3: too hot"]), "GPU 3: too hot"),
        (LATER._replace(quota=Quota(150, 85)), BUSY, NODE, "quota is used up in 80 % of the"),
        (LATER._replace(faults=540, swapped=1 << 30), BUSY, NODE, "swapped out: 50 pages a second"),
        (LATER._replace(faults=540), BUSY, NODE, NONE),  # it reads files by memory maps
        (LATER._replace(stolen=6.0), QUEUED, NODE, "gives 30 % of the CPU time to others (steal)"),
        (NEIGHBOR, QUEUED, NODE, "use 1.5 of 2 cores, stress-ng (pid 9) the most"),
        (NEIGHBOR, BUSY, NODE, NONE),  # they are not in its way
        (NEIGHBOR._replace(others={}), QUEUED, NODE, "other processes use 1.5 of 2 cores"),
        (NEIGHBOR, QUEUED, NODE._replace(nice=10), "the most, and it runs at nice 10"),
        (LATER, QUEUED, NODE, "the run's own processes use them"),
        (LATER, OwnTime(0.2, 0.0, 0.6, 0.0), NODE, "a disk or a file server for 60 % of the time"),
        (NEIGHBOR, OwnTime(0.2, 0.2, 0.5, 0.0), NODE, "a disk or a file server for 50 % of the"),
        (LATER._replace(errors={"eth0": 303, "eth1": 9}), BUSY, NODE, "of eth0 grow: 30 a second"),
    ],
)
def test_the_most_certain_reason_is_told(
    now: Reading, share: OwnTime, node: Node, words: str
) -> None:
    told = reason(BEFORE, now, share, node)
    assert words in told
    assert "\n" not in told


def test_all_counters_of_a_living_process_are_read() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = slow_reasons.read(child.pid)
        assert found.busy > 0
        assert {child.pid, os.getppid()} <= found.run.keys()
        assert found.others
        assert found.faults >= 0
        child.communicate(b"\n")
    assert slow_reasons.read(child.pid).faults == 0  # it has exited


def test_the_tightest_quota_around_a_process_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, text in {
        "pod": "nr_periods 100\nnr_throttled 70\nthrottled_usec 9000000\n",
        "pod/job": "usage_usec 1\nnr_periods 100\nnr_throttled 2\nthrottled_usec 40\n",
        "cpu,cpuacct/a": "nr_periods 10\nnr_throttled 9\nthrottled_time 5000000000\n",
        "memory/pod": "nonsense\n",
    }.items():
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "cpu.stat").write_text(text)
    monkeypatch.setattr(quota, "CGROUPS", str(tmp_path))
    for groups, found in {
        b"0::/pod/job\n": (100, 70, 9.0),
        b"0::/\n4:memory:/pod\n": (0, 0, 0.0),
        b"0::/../memory/pod\n": (0, 0, 0.0),
        b"2:cpu,cpuacct:/a\n1:name=systemd:/\n": (10, 9, 5.0),
        b"": (0, 0, 0.0),
    }.items():
        monkeypatch.setattr(quota, "read_proc", lambda _pid, _name, told=groups: told)
        assert quota.quota_of(1) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("cpu  100 100 100 900 900 0 100 300 0 0\ncpu0 1\n", (4.0, 3.0)),
        ("cpu  100 0 0 900\n", (1.0, 0.0)),
        ("", (0.0, 0.0)),
    ],
)
def test_the_machines_time_is_read(text: str, found: tuple[float, float]) -> None:
    assert machine_time(text) == tuple(each * 100 / TICKS_PER_SECOND for each in found)
