"""What a run's folder says of the run on this node."""

from __future__ import annotations

import os
import time
from pathlib import Path

from clusterctl.node.run.files.run_files import RunFiles, write_json
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.operations.status import START_SECONDS, RecordedProcesses, node_status
from clusterctl.node.run.processes.boot import boot_id


def folder(tmp_path: Path, boot: str) -> NodePaths:
    paths = NodePaths(str(tmp_path))
    write_json(paths.job, {"boot_id": boot})
    return paths


def test_a_run_is_not_lost_before_its_supervisor_had_time_to_come_up(tmp_path: Path) -> None:
    paths = folder(tmp_path, boot_id())
    assert node_status(paths)["state"] == "starting"
    os.utime(paths.job, (0, time.time() - START_SECONDS))
    assert node_status(paths)["state"] == "lost"


def test_the_list_of_processes_is_read_again_only_after_a_change(tmp_path: Path) -> None:
    paths = folder(tmp_path, boot_id())
    record, found = RunFiles(paths), RecordedProcesses(paths)
    assert found.read() == []
    record.record_processes([(10, 1000)])
    assert found.read() == [(10, 1000)]
    file = Path(paths.processes)
    seen = file.stat()
    file.write_bytes(b"11 1000\n")  # the same size, and now the same time
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert found.read() == [(10, 1000)]
    record.record_processes([(12, 1000)])
    assert found.read() == [(11, 1000), (12, 1000)]
    file.unlink()
    assert found.read() == []


def test_processes_of_an_earlier_boot_are_nobodys(tmp_path: Path) -> None:
    paths = folder(tmp_path, "another boot")
    RunFiles(paths).record_processes([(10, 1000)])
    assert RecordedProcesses(paths).read() == []
