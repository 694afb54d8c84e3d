"""Ray's folder: a short name while it runs, and only its logs afterwards."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from clusterctl.node.run import ray_folder

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
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
        (path.parent.parent / "logs").mkdir()
        (path.parent.parent / "logs" / "raylet.out").write_text("kept")
        (path.parent.parent / "spilled").write_text("no longer needed")
        assert (run_folder / "ray").stat().st_mode & 0o777 == 0o700
    finally:
        ray_folder.clean(str(run_folder))
    assert not os.path.lexists(short)
    session = run_folder / "ray" / SOCKET.split("/", maxsplit=1)[0]
    assert [entry.name for entry in session.iterdir()] == ["logs"]
    assert (session / "logs" / "raylet.out").read_text() == "kept"


def test_what_another_put_at_the_short_name_is_neither_used_nor_removed(run_folder: Path) -> None:
    short = Path(ray_folder.short_name(str(run_folder)))
    short.symlink_to("/nowhere")
    try:
        with pytest.raises(FileExistsError):
            ray_folder.make(str(run_folder))
        ray_folder.clean(str(run_folder))
        assert short.is_symlink()
    finally:
        short.unlink()
