"""Ray's folder: a short name while it runs, and only its logs afterwards."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from clusterctl.node.run.files import ray_folder

LONGEST = 107
"""Bytes of a socket's path."""
SOCKET = "session_2026-11-23_17-41-29_936579_4194304/sockets/plasma_store.1"


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / ("long-" * 20) / "node1"
    folder.mkdir(parents=True)
    return folder


def test_a_socket_fits_below_the_short_name_and_the_files_are_the_runs(run_folder: Path) -> None:
    short = Path(ray_folder.make(str(run_folder)))
    try:
        path = short / SOCKET
        assert len(os.fsencode(path)) <= LONGEST
        path.parent.mkdir(parents=True)
        (short / "session_latest").symlink_to(path.parent.parent)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
        (path.parent.parent / "logs").mkdir()
        (path.parent.parent / "logs" / "raylet.out").write_text("kept")
        (path.parent.parent / "spilled").write_text("no longer needed")
        assert (run_folder / "ray").stat().st_mode & 0o777 == 0o700
    finally:
        ray_folder.clean(str(run_folder))
    assert not os.path.lexists(short.parent)
    assert not os.path.lexists(run_folder / "ray-short")
    session = run_folder / "ray" / SOCKET.split("/", maxsplit=1)[0]
    assert [entry.name for entry in session.iterdir()] == ["logs"]
    assert [entry for entry in session.parent.iterdir() if entry.is_symlink()] == []
    assert (session / "logs" / "raylet.out").read_text() == "kept"


def test_nobody_else_can_take_or_enter_the_short_name(run_folder: Path) -> None:
    short = Path(ray_folder.make(str(run_folder)))
    other = run_folder.with_name("node2")
    other.mkdir()
    try:
        assert short.parent.stat().st_mode & 0o777 == 0o700
        assert ray_folder.make(str(other)) != str(short), "no two runs have one name"
        os.utime(short.parent, (0, 0))
        os.utime(short, (0, 0), follow_symlinks=False)
        ray_folder.keep_fresh(str(run_folder))
        for path in (short.parent, short):
            assert min(path.lstat().st_atime, path.lstat().st_mtime) > time.time() - 60
    finally:
        for folder in (run_folder, other):
            ray_folder.clean(str(folder))
    assert not short.parent.exists()


def test_a_folder_of_another_user_at_the_name_is_left_alone(run_folder: Path) -> None:
    """A cleaner removed ours, and somebody who had seen the name made it again."""
    if os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    short = Path(ray_folder.make(str(run_folder)))
    try:
        os.chown(short.parent, 65534, 65534)
        os.utime(short.parent, (0, 0))
        ray_folder.keep_fresh(str(run_folder))
        ray_folder.clean(str(run_folder))
        assert short.is_symlink()
        assert short.parent.stat().st_mtime == 0
    finally:
        short.unlink()
        short.parent.rmdir()
