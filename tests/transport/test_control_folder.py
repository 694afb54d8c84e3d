"""What lies in a shared temporary folder under our names is swept only if it is ours."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from clusterctl.transport.ssh.control_master import _sweep


@pytest.fixture
def dead() -> int:
    """Return the pid of a process that has ended."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    return ended.pid


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize("name", ["²-x", "99999999999999999999-x", "-x", "0-x", "٣٣-x", "+1-x"])
def test_a_name_that_is_no_pid_is_left_and_stops_nothing(
    tmp_path: Path, dead: int, name: str
) -> None:
    (tmp_path / f"cctl-{name}").mkdir()
    (tmp_path / f"cctl-{dead}-x").mkdir()
    _sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"cctl-{name}"]


def test_a_link_to_a_folder_is_not_followed(tmp_path: Path, dead: int) -> None:
    home, swept = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    swept.mkdir()
    bind(home / "r-1")
    (home / "r-thesis.tex").touch()
    (swept / f"cctl-{dead}-x").symlink_to(home)
    (swept / f"cctl-{dead}-file").touch()
    _sweep(swept)
    assert sorted(path.name for path in home.iterdir()) == ["r-1", "r-thesis.tex"]
    assert len(list(swept.iterdir())) == 2


def test_only_sockets_are_removed_and_one_folder_keeps_no_other(tmp_path: Path, dead: int) -> None:
    for name in "ab":
        (tmp_path / f"cctl-{dead}-{name}").mkdir()
        bind(tmp_path / f"cctl-{dead}-{name}" / "r-1")
    (tmp_path / f"cctl-{dead}-a" / "r-2").touch()
    (tmp_path / f"cctl-{dead}-a" / "r-3").symlink_to(tmp_path / f"cctl-{dead}-b" / "r-1")
    _sweep(tmp_path)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    folder = f"cctl-{dead}-a"
    assert left[0] == folder
    assert (
        {f"{folder}/r-2", f"{folder}/r-3"}
        <= set(left)
        <= {f"{folder}/r-{n}" for n in "123"} | {folder}
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes another user's folder")
def test_another_users_folder_is_left(tmp_path: Path, dead: int) -> None:
    folder = tmp_path / f"cctl-{dead}-x"
    folder.mkdir()
    bind(folder / "r-1")
    os.chown(folder, 65534, 65534)
    _sweep(tmp_path)
    assert (folder / "r-1").exists()
