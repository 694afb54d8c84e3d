"""Copies for this machine itself are as rsync's: whole files, exec bits, times, links."""

from __future__ import annotations

import os
from pathlib import Path

from clusterctl.sync.mirror import local_copy
from clusterctl.sync.rsync import PushResult


def copy(source: Path, paths: list[bytes], workdir: Path) -> PushResult:
    return local_copy(
        source=source, paths=paths, workdir=str(workdir), temporary="own", alive=lambda _count: None
    )


def test_what_is_copied(tmp_path: Path) -> None:
    source, work = tmp_path / "source", tmp_path / "work"
    (source / "a").mkdir(parents=True)
    (source / "a" / "run").write_text("x")
    (source / "a" / "run").chmod(0o755)
    os.utime(source / "a" / "run", (1_000_000_000, 1_000_000_000))
    (source / "link").symlink_to("a")
    work.mkdir()
    (work / "link").write_text("in the way")
    assert copy(source, [b"a/run", b"link"], work).code == 0
    assert os.access(work / "a" / "run", os.X_OK)
    assert (work / "a" / "run").stat().st_mtime == 1_000_000_000
    assert str((work / "link").readlink()) == "a"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    done = copy(tmp_path, [b"f"], tmp_path / "f")
    assert done.code == 1
    assert "Not a directory" in done.words


def test_holes_stay_holes(tmp_path: Path) -> None:
    source, work = tmp_path / "source", tmp_path / "work"
    source.mkdir()
    with (source / "sparse").open("wb") as file:
        file.write(b"head")
        file.truncate(64 << 20)
    assert copy(source, [b"sparse"], work).code == 0
    copied = work / "sparse"
    assert copied.read_bytes() == (source / "sparse").read_bytes()
    assert copied.stat().st_blocks * 512 < 4 << 20
