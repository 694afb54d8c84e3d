"""The digests that a sync keeps: a file is read once, and again as soon as it may have changed."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest

from clusterctl.node.mirror.tree_hash import digest_of
from clusterctl.sync import digests
from clusterctl.sync.digests import Digests
from clusterctl.sync.source import read_source
from tests.small_disk import small_disk


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files whose contents were read."""
    names: list[str] = []

    def noted(path: bytes, kind: str) -> str:
        names.append(Path(os.fsdecode(path)).name)
        return digest_of(path, kind)

    monkeypatch.setattr("clusterctl.sync.digests.digest_of", noted)
    return names


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "SETTLED_NS", 20_000_000)
    code = tmp_path / "code"
    code.mkdir()
    for name in ("a.py", "b.py"):
        (code / name).write_text(name)
    time.sleep(0.1)
    read_source(code)
    return code


def test_an_unchanged_file_is_not_read_again(folder: Path, read: list[str]) -> None:
    before = read_source(folder)
    assert read == []
    (folder / "b.py").write_text("B.py")
    after = read_source(folder)
    assert read == ["b.py"]
    assert after.tree != before.tree


def test_a_change_shows_though_size_and_modification_time_are_put_back(
    folder: Path, read: list[str]
) -> None:
    path = folder / "a.py"
    times = path.stat()
    before = read_source(folder).tree
    path.write_text("A.py")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert read_source(folder).tree != before
    assert read == ["a.py"]


def test_another_file_in_its_place_is_read(folder: Path, read: list[str]) -> None:
    os.link(folder / "b.py", folder / "c.py")
    (folder / "c.py").replace(folder / "a.py")
    read_source(folder)
    assert "a.py" in read


def test_a_file_that_changed_just_now_is_not_trusted(
    folder: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A second change within one tick of the filesystem's clock leaves the same times.
    monkeypatch.setattr(digests, "SETTLED_NS", 3_600_000_000_000)
    (folder / "a.py").write_text("A.py")
    for _ in range(2):
        read_source(folder)
    assert read == ["a.py", "a.py"]


def test_times_are_compared_with_the_clock_of_the_files_own_server(
    folder: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a.py").write_text("A.py")
    made = (folder / "a.py").stat()
    monkeypatch.setattr(digests, "_filesystem", lambda _: (made.st_mtime_ns, made.st_dev))
    time.sleep(0.1)
    for _ in range(2):
        read_source(folder)
    assert read == ["a.py", "a.py"]


@pytest.mark.parametrize("damage", [b"", b"{}", b"00000000\n{}", b"\xff\x00"])
def test_a_damaged_cache_is_not_used(folder: Path, read: list[str], damage: bytes) -> None:
    (kept,) = (folder.parent / "cache/clusterctl/digests").iterdir()
    kept.write_bytes(damage)
    read_source(folder)
    assert sorted(read) == ["a.py", "b.py"]


def test_a_flipped_digit_in_the_cache_is_noticed(folder: Path, read: list[str]) -> None:
    (kept,) = (folder.parent / "cache/clusterctl/digests").iterdir()
    data = bytearray(kept.read_bytes())
    data[-5] ^= 1
    kept.write_bytes(data)
    read_source(folder)
    assert sorted(read) == ["a.py", "b.py"]


def test_a_cache_that_cannot_be_written_is_no_error(
    folder: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "a.py"))
    for _ in range(2):
        read_source(folder)
    assert sorted(read) == ["a.py", "a.py", "b.py", "b.py"]


def test_the_cache_is_readable_by_its_user_only(folder: Path) -> None:
    (kept,) = (folder.parent / "cache/clusterctl/digests").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept.parent.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_was_not_synced_for_months_is_forgotten(folder: Path) -> None:
    (kept,) = (folder.parent / "cache/clusterctl/digests").iterdir()
    old = kept.with_name("old.json")
    old.touch()
    os.utime(old, (0, 0))
    (folder / "a.py").unlink()
    read_source(folder)
    assert not old.exists()
    assert kept.exists()


def test_a_link_is_read_each_time(folder: Path, read: list[str]) -> None:
    link = folder / "link"
    link.symlink_to("a.py")
    status = link.lstat()
    for _ in range(2):
        one = Digests(folder)
        one.of(b"link", "l", status)
        one.save()
    assert read == ["link", "link"]


def test_a_full_disk_leaves_nothing_of_the_cache_behind(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
        kept = disk / "clusterctl" / "digests"
        kept.mkdir(parents=True)
        with contextlib.suppress(OSError):
            (disk / "other").write_bytes(bytes(1 << 20))
        read_source(folder)
        assert list(kept.iterdir()) == []


def test_a_cache_that_others_may_write_is_left_alone_with_a_warning(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache" / "clusterctl"
    cache.chmod(0o775)
    (folder / "a.py").write_text("A.py")
    time.sleep(0.1)
    before = {path: path.read_bytes() for path in cache.rglob("*.json")}
    read_source(folder)
    assert {path: path.read_bytes() for path in cache.rglob("*.json")} == before
    assert f"chmod -R go-w {cache}" in caplog.text
