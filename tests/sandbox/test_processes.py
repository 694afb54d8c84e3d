"""A process is known again, and never mistaken for a later one with its number."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from clusterctl.sandbox import processes


@pytest.mark.skipif(not psutil.LINUX, reason="where the kernel reckons its start from the clock")
def test_a_process_is_known_again_after_the_clock_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes.record(tmp_path / "pid", os.getpid())
    began = psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: began + 1)
    assert processes.recorded(tmp_path / "pid") == os.getpid()


def test_another_process_with_its_number_is_not_taken_for_it(tmp_path: Path) -> None:
    processes.record(tmp_path / "pid", os.getpid())
    pid, began = (tmp_path / "pid").read_text().split()
    (tmp_path / "pid").write_text(f"{pid} {float(began) - 1:g}")
    assert processes.recorded(tmp_path / "pid") is None
    (tmp_path / "pid").write_text(f"{2**22} {began}")
    assert processes.recorded(tmp_path / "pid") is None
