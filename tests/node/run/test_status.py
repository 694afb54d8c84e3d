"""What a run's folder says of the run on this node."""

from __future__ import annotations

import os
from pathlib import Path

from clusterctl.node.run.files.run_files import RunFiles, write_json
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.operations.status import RecordedProcesses
from clusterctl.node.run.processes.boot import boot_id


def folder(tmp_path: Path, boot: str) -> NodePaths:
    paths = NodePaths(str(tmp_path))
    write_json(paths.job, {"boot_id": boot})
    return paths


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
