"""A path is tried by a file that has no name, so that nothing of it is left."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path

import pytest

from clusterctl.checks.storage.run_paths import DEFAULT_STATE
from clusterctl.node.probe import path_probe
from clusterctl.node.probe.path_probe import probe_path
from clusterctl.node.run.files.run_paths import default_state_folder
from tests.small_disk import small_disk


def test_a_folder_is_written_to_and_measured(tmp_path: Path) -> None:
    seen = probe_path({"path": str(tmp_path), "write": True, "speed": True})
    assert seen["writable"] is True
    assert seen["write_rate"] > 0
    assert seen["read_rate"] > 0
    assert 0 < seen["file_s"] < 1
    assert seen["total_files"] >= seen["free_files"] >= 0
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_another_user_took_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("theirs")
    monkeypatch.setattr(time, "time_ns", lambda: 1)
    (tmp_path / f".clusterctl-{os.getpid()}-1").symlink_to(victim)
    seen = probe_path({"path": str(tmp_path), "write": True})
    assert (seen["writable"], seen["problem"]) == (False, "File exists")
    assert victim.read_text() == "theirs"


def test_the_measurement_is_small_and_its_file_has_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    write = os.write

    def watched(descriptor: int, data: bytes) -> int:
        assert list(tmp_path.iterdir()) == []
        written.append(len(data))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", watched)
    probe_path({"path": str(tmp_path), "write": True, "speed": True})
    assert 0 < sum(written) <= 8 * 1024 * 1024 + path_probe.BLOCK


def test_one_stall_of_a_busy_machine_is_no_slow_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, stalls = os.read, [2 * path_probe.READ_SECONDS]

    def stalled(descriptor: int, count: int) -> bytes:
        time.sleep(stalls.pop() if stalls else 0)
        return read(descriptor, count)

    monkeypatch.setattr(os, "read", stalled)
    question = {"path": str(tmp_path), "write": True, "speed": True}
    fast = probe_path(question)["read_rate"]
    stalls += [0.1] * path_probe.SPEED_CHUNKS
    assert probe_path(question)["read_rate"] < path_probe.SPEED_CHUNK / 0.1 < fast


@pytest.mark.parametrize(("stall_s", "reads"), [(60.0, 2), (0.01, 1)])
def test_a_slow_disk_is_told_by_two_chunks_or_a_slower_one_by_its_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stall_s: float, reads: int
) -> None:
    read, calls = os.read, 0

    def slow(descriptor: int, count: int) -> bytes:
        nonlocal calls
        calls += 1
        time.sleep(0.03)
        return read(descriptor, count)

    monkeypatch.setattr(os, "read", slow)
    monkeypatch.setattr(path_probe, "READ_SECONDS", 0.01)
    monkeypatch.setattr(path_probe, "STALL_SECONDS", stall_s)
    seen = probe_path({"path": str(tmp_path), "write": True, "speed": True})
    assert seen["read_rate"] < path_probe.SPEED_CHUNK / 0.03
    assert calls == reads


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_or_quota_is_not_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(_descriptor: int, _data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", full)
    seen = probe_path({"path": str(tmp_path), "write": True})
    assert (seen["writable"], seen["problem"]) == (False, os.strerror(number))
    assert list(tmp_path.iterdir()) == []


def test_a_filesystem_that_keeps_the_names_of_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = os.unlink
    refused: list[str] = []

    def busy_once(path: str) -> None:
        if not refused:
            refused.append(path)
            raise OSError(errno.EBUSY, "busy")
        unlink(path)

    monkeypatch.setattr(os, "unlink", busy_once)
    seen = probe_path({"path": str(tmp_path), "write": True, "speed": True})
    assert seen["writable"] is True
    assert "write_rate" not in seen
    assert list(tmp_path.iterdir()) == []


def test_files_are_made_for_a_short_time_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat, looked = os.stat, []

    def slowly(path: str) -> os.stat_result:
        if str(path).startswith(str(tmp_path / ".clusterctl")):
            looked.append(path)
            time.sleep(0.06)
        return stat(path)

    monkeypatch.setattr(os, "stat", slowly)
    seen = probe_path({"path": str(tmp_path), "write": True, "speed": True})
    assert len(looked) == 2
    assert 0.06 < seen["file_s"] < 1
    assert list(tmp_path.iterdir()) == []


def test_the_usual_folder_of_runs_is_looked_at_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a mount, or have a quota, and be full while the folder around it has room."""
    monkeypatch.setattr(path_probe, "STATE", f"{tmp_path}/clusterctl-UID")
    own = tmp_path / f"clusterctl-{os.getuid()}"
    question = {"path": f"{tmp_path}/clusterctl-UID", "write": True}
    around = probe_path(question)
    assert (around["exists"], around["writable"]) == (False, True)
    assert not own.exists()
    with small_disk(own, 1) as disk:
        assert probe_path(question)["total"] == 1 << 20
        with contextlib.suppress(OSError):
            (disk / "other").write_bytes(bytes(1 << 20))
        full = probe_path(question)
    assert (full["writable"], full["problem"]) == (False, "No space left on device")


def test_the_controller_and_the_node_mean_the_same_folder() -> None:
    assert path_probe.STATE == DEFAULT_STATE
    assert default_state_folder() == DEFAULT_STATE.replace("UID", str(os.getuid()))


def test_a_link_that_leads_nowhere_cannot_be_made_a_folder(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to("/nonexistent/data")
    for path in (tmp_path / "data", tmp_path / "data" / "code"):
        answer = probe_path({"path": str(path), "write": True})
        assert (answer["exists"], answer["writable"]) == (False, False)
        assert answer["problem"] == (
            f"{tmp_path}/data is a link to /nonexistent/data, which does not exist"
        )
    (tmp_path / "file").touch()
    assert probe_path({"path": str(tmp_path / "file"), "write": True})["folder"] is False
    below = probe_path({"path": str(tmp_path / "file" / "code"), "write": True})
    assert (below["exists"], below["problem"]) == (None, "Not a directory")
