"""A path is tried by a file that has no name, so that nothing of it is left."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from clusterctl.node.probe import path_probe
from clusterctl.node.probe.path_probe import probe_path


def test_a_folder_is_written_to_and_measured(tmp_path: Path) -> None:
    seen = probe_path({"path": str(tmp_path), "write": True, "speed": True})
    assert seen["writable"] is True
    assert seen["write_rate"] > 0
    assert seen["read_rate"] > 0
    assert 0 < seen["file_s"] < 1
    assert seen["total_files"] >= seen["free_files"] >= 0
    assert list(tmp_path.iterdir()) == []


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
