"""Small files travel as one value, and arrive as rsync would have written them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterctl.node.mirror.mirror import write_files
from clusterctl.sync import mirror
from clusterctl.sync.mirror import pack


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work" / "tmp").mkdir(parents=True)
    return tmp_path / "work"


def write(source: Path, work: Path, *paths: str) -> str:
    packed = pack(source, os.urandom(8).hex(), [os.fsencode(path) for path in paths])
    assert packed is not None
    return write_files(os.fsencode(work), os.fsencode(work / "tmp"), packed)


def test_contents_modes_times_and_links_arrive(tmp_path: Path, work: Path) -> None:
    source = tmp_path / "code"
    (source / "a").mkdir(parents=True)
    for name, mode in (("a/run", 0o755), ("plain\udcff", 0o644), ("was-run", 0o644)):
        (source / name).write_text(name.encode(errors="replace").decode())
        (source / name).chmod(mode)
    os.utime(source / "a" / "run", ns=(0, 1_000_000_001))
    (source / "link").symlink_to("a/")
    (work / "link").write_text("in the way")
    (work / "was-run").touch()
    (work / "was-run").chmod(0o750)
    names = ["a/run", "plain\udcff", "was-run", "link"]
    assert not write(source, work, *names, "vanished")
    for name in names[:3]:
        assert (work / name).read_bytes() == (source / name).read_bytes()
    assert os.readlink(work / "link") == "a/"  # noqa: PTH115  (a Path loses the `/`)
    assert (work / "a" / "run").stat().st_mtime_ns == 1_000_000_001
    assert [(work / name).stat().st_mode & 0o777 for name in ("a/run", "was-run")] == [0o755, 0o640]


def test_nothing_is_written_through_a_link(tmp_path: Path, work: Path) -> None:
    source = tmp_path / "code"
    (source / "a" / "b").mkdir(parents=True)
    (source / "a" / "b" / "c").write_text("ours")
    (tmp_path / "theirs").mkdir()
    (work / "a").symlink_to(tmp_path / "theirs")
    assert write(source, work, "a/b/c") == "a/b/c: Not a directory"
    assert not list((tmp_path / "theirs").iterdir())


def test_equal_needs_are_read_once_and_large_ones_are_left_to_rsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_text("x")
    packed = pack(tmp_path, "sync", [b"f"])
    (tmp_path / "f").unlink()
    assert packed is not None
    assert pack(tmp_path, "sync", [b"f"]) is packed
    assert pack(tmp_path, "next", [b"f"]) != packed
    (tmp_path / "f").write_text("xyz")
    monkeypatch.setattr(mirror, "SMALL", 129)
    assert pack(tmp_path, "other", [b"f"]) is None
