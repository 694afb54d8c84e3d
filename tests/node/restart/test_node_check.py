"""Whether a node is fit for another attempt: what each look finds, and one that never answers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, cast

import pytest

from clusterctl.checks.gpu.xid_catalog import XIDS
from clusterctl.node.restart import blame, node_check
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.processes.boot import uptime
from clusterctl.node.run.processes.release_check import GpuMemory
from clusterctl.own_files import make_private
from clusterctl.wire import to_json
from tests.small_disk import small_disk


def job(tmp_path: Path, **more: Any) -> NodeJob:
    made = {"workdir": str(tmp_path), "checkpoints": "ck", "device": "cpu"}
    return cast("NodeJob", {**made, "lock": "clusterctl-run", **more})


def checked(made: NodeJob, tmp_path: Path, *, began: float = -60.0) -> node_check.Checks:
    """Check; `began`: when the run did, in seconds from now."""
    paths = NodePaths(f"{tmp_path}-run")
    make_private(paths.folder)
    Path(paths.supervisor).write_text(json.dumps({"began": time.time() + began}))
    return node_check.node_check(made, paths)


def test_a_healthy_node_is_fit(tmp_path: Path) -> None:
    fit = {"clock": "", "state": "", "workdir": "", "checkpoints": ""}
    assert checked(job(tmp_path), tmp_path) == fit
    assert list(tmp_path.iterdir()) == []


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    there = job(tmp_path, workdir=str(tmp_path / "away"))
    found = checked(there, tmp_path, began=500.0)
    assert found["workdir"] == f"{tmp_path}/away does not exist"
    assert "before the beginning" in (found["clock"] or "")


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8) as disk:
        assert checked(job(disk), tmp_path)["workdir"] == ""
        (disk / "filling").write_bytes(bytes((8 << 20) - (128 << 10)))
        assert checked(job(disk), tmp_path)["workdir"] == f"{disk} has 0 MiB left"


def test_what_does_not_answer_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_check, "CHECK_SECONDS", 2.0)
    monkeypatch.setattr(node_check, "probe_path", lambda _question: time.sleep(300))
    found = checked(job(tmp_path), tmp_path)
    assert found["workdir"] == "workdir: no answer within 2 s"
    assert found["clock"] == ""


def test_what_cannot_be_looked_at_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_check, "probe_path", lambda _question: 1 / 0)
    assert checked(job(tmp_path), tmp_path)["workdir"] is None


class Driver:
    """What the tools of a GPU node answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpus: list[dict[str, Any]] | None = [{"index": 0}]
        self.memory = GpuMemory(True, [], {})
        self.strangers: list[dict[str, Any]] = []
        self.log: dict[str, Any] = {"source": "kmsg", "lines": []}
        monkeypatch.setattr(node_check, "gpus", lambda: self.gpus)
        monkeypatch.setattr(node_check, "check_gpu_memory", lambda *_: self.memory)
        monkeypatch.setattr(node_check, "foreign_holders", lambda *_: self.strangers)
        monkeypatch.setattr(
            node_check, "read_kernel_log", lambda _patterns, write: write(to_json(self.log))
        )


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


def gpu_checks(tmp_path: Path, **more: Any) -> node_check.Checks:
    found = checked(job(tmp_path, device="cuda", **more), tmp_path)
    return {name: found[name] for name in ("gpus", "gpu-memory", "xid")}


def test_gpus_are_there_and_empty(tmp_path: Path, driver: Driver) -> None:
    assert gpu_checks(tmp_path) == {"gpus": "", "gpu-memory": "", "xid": ""}
    two = "clusterctl-run/GPU-1,GPU-2,port-29500"
    assert gpu_checks(tmp_path, lock=two)["gpus"] == "1 GPUs answer, expected 2"
    driver.memory = GpuMemory(False, [{"pid": 7, "cmd": "", "why": "keeps 9 MiB"}], {})
    driver.strangers = [{"pid": 8, "cmd": "python", "why": "holds 1 MiB"}]
    wanted = "pid 7 (): keeps 9 MiB; pid 8 (python): holds 1 MiB"
    assert gpu_checks(tmp_path)["gpu-memory"] == wanted


def test_a_driver_that_cannot_be_asked_proves_nothing(tmp_path: Path, driver: Driver) -> None:
    driver.gpus, driver.log = None, {"error": "not permitted"}
    driver.memory = GpuMemory(None, [], {})
    found = gpu_checks(tmp_path)
    assert (found["gpu-memory"], found["xid"]) == (None, None)
    # Without a driver of NVIDIA's there is no tool that could answer.
    there = Path("/proc/driver/nvidia").exists()
    assert found["gpus"] == ("nvidia-smi does not answer" if there else None)


def test_a_fault_of_a_gpu_since_the_beginning_is_named(tmp_path: Path, driver: Driver) -> None:
    now = uptime()
    fell = "NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus."
    of_a_program = "NVRM: Xid (PCI:0000:18:00): 31, pid=7, name=python, MMU Fault"
    driver.log["lines"] = [(now - 90, fell), (now - 30, of_a_program)]
    assert gpu_checks(tmp_path)["xid"] == ""
    driver.log["lines"].append((now - 30, fell))
    assert gpu_checks(tmp_path)["xid"] == "Xid 79 of GPU 0000:18:00"
    # Of several runs on a machine it may be another's.
    assert gpu_checks(tmp_path, lock="clusterctl-run/GPU-1")["xid"] is None


def test_the_faults_are_those_of_the_catalog() -> None:
    assert {number for number, xid in XIDS.items() if xid.status == "fail"} == blame.XIDS
