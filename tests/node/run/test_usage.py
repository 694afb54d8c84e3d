"""What a run uses on a node, from real processes and from what nvidia-smi prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.node.run.files.run_files import RunFiles, write_json
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.processes.boot import boot_id
from clusterctl.node.run.processes.processes import key_of
from clusterctl.node.run.processes.usage import cpu_seconds, parse_gpus, private_bytes, usage
from tests.waiting import wait_until

MIB = 1 << 20
HOLDS = "import sys; held = bytearray(64 << 20); print('up', flush=True); sys.stdin.read()"


def test_living_processes_count_with_the_memory_of_their_own(tmp_path: Path) -> None:
    paths = NodePaths(str(tmp_path))
    write_json(paths.job, {"boot_id": boot_id()})
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        ended = subprocess.Popen(["true"])
        gone = key_of(ended.pid)
        ended.wait()
        RunFiles(paths).record_processes([key_of(process.pid), gone])
        rank = {"rank": 3, "pid": process.pid}
        used = usage(paths, {"device": "cpu"}, [rank, {"rank": 4, "pid": ended.pid}])
        process.communicate()
    assert used["processes"] == 1
    assert 64 * MIB <= used["memory_bytes"] < 128 * MIB
    assert used["gpus"] is None
    (one,) = used["ranks"]
    assert (one["rank"], one["processes"]) == (3, 1)
    assert one["memory_bytes"] == used["memory_bytes"]
    assert private_bytes(process.pid) == 0


def test_gpus_as_nvidia_smi_lists_them() -> None:
    assert parse_gpus("0, 97, 71234, 81559\n1, [N/A], 1, 81559\n\nno devices\n") == [
        {"index": 0, "percent": 97, "memory_used_bytes": 71234 * MIB,
         "memory_total_bytes": 81559 * MIB},
        {"index": 1, "percent": None, "memory_used_bytes": MIB,
         "memory_total_bytes": 81559 * MIB},
    ]  # fmt: skip


@pytest.mark.parametrize("script", ["exit 9", "echo nonsense"])
def test_a_driver_that_does_not_tell_hides_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    paths = NodePaths(str(tmp_path))
    write_json(paths.job, {"boot_id": boot_id()})
    assert usage(paths, {"device": "cuda"}) == {
        "processes": 0,
        "memory_bytes": 0,
        "cpu_percent": 0,
        "ranks": [],
        "gpus": [] if "nonsense" in script else None,
    }


BURNS = """
import subprocess, sys
worker = "import sys\\nprint('up', flush=True)\\nwhile True: pass"
child = subprocess.Popen([sys.executable, "-c", worker], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
child.kill()
"""


def test_a_ranks_share_has_what_it_started(tmp_path: Path) -> None:
    paths = NodePaths(str(tmp_path))
    write_json(paths.job, {"boot_id": boot_id()})
    with subprocess.Popen(
        [sys.executable, "-c", BURNS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        own = key_of(os.getpid())  # a launcher's
        RunFiles(paths).record_processes([own, key_of(process.pid), key_of(worker)])
        ranks = [{"rank": 0, "pid": process.pid}]

        def busy() -> bool:
            used = usage(paths, {"device": "cpu"}, ranks)
            assert [one["processes"] for one in used["ranks"]] == [2]
            assert used["processes"] == 3
            return bool(used["ranks"][0]["cpu_percent"] > 0)

        wait_until(busy)
        process.communicate()
    assert cpu_seconds(process.pid) == 0.0
