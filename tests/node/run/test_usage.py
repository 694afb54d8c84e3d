"""What a run uses on a node, from real processes and from what nvidia-smi prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.node.run.boot import boot_id
from clusterctl.node.run.processes import key_of
from clusterctl.node.run.run_files import RunFiles, write_json
from clusterctl.node.run.run_paths import NodePaths
from clusterctl.node.run.usage import parse_gpus, private_bytes, usage

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
        used = usage(paths, {"device": "cpu"})
        process.communicate()
    assert used["processes"] == 1
    assert 64 * MIB <= used["memory_bytes"] < 128 * MIB
    assert used["gpus"] is None
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
        "gpus": [] if "nonsense" in script else None,
    }
