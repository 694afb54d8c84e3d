"""What belongs to this user alone is nobody else's to read or write, and is replaced whole."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusterctl.own_files import NotPrivateError, make_private, replace_file, write_named
from tests.small_disk import small_disk

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount and act as two")


@contextmanager
def masked(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> str:
    return oct(path.stat().st_mode & 0o7777)


@pytest.mark.parametrize("mask", [0o000, 0o002, 0o022, 0o277])
def test_each_level_that_is_missing_is_made_for_this_user_alone(tmp_path: Path, mask: int) -> None:
    top = tmp_path / "a" / "b" / "state"
    with masked(mask):
        make_private(top, top / "lab", top / "lab" / "run")
    made = [top.parent.parent, top.parent, top, top / "lab", top / "lab" / "run"]
    assert [mode(folder) for folder in made] == ["0o700"] * 5


@pytest.mark.parametrize("at", [0, 1])
def test_a_level_that_others_may_write_is_refused_with_the_command_that_mends_it(
    tmp_path: Path, at: int
) -> None:
    levels = [tmp_path / "my state", tmp_path / "my state" / "lab"]
    make_private(*levels)
    levels[at].chmod(0o775)
    with pytest.raises(NotPrivateError, match=r"expected a folder of uid \d+, mode 700") as refused:
        make_private(*levels)
    assert "mode 775" in str(refused.value)
    subprocess.run(refused.value.hint, shell=True, check=True)
    make_private(*levels)


def test_what_is_above_is_not_judged(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    make_private(tmp_path / "state")


def test_a_link_a_file_and_anothers_folder_are_refused_without_a_command(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    refused = ["link", "file", "dangling"]
    if os.getuid() == 0:
        (tmp_path / "another").mkdir(mode=0o700)
        os.chown(tmp_path / "another", 65534, 65534)
        refused.append("another")
    for name in refused:
        with pytest.raises(NotPrivateError, match=f"{name} is not a folder of this user") as caught:
            make_private(tmp_path / name)
        assert not caught.value.hint


def test_a_full_disk_leaves_a_file_as_it_was_and_nothing_beside_it(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        for write in (replace_file, write_named):
            (disk / "file").write_bytes(b"earlier")
            with pytest.raises(OSError, match="No space left"):
                write(disk / "file", bytes(2 << 20))
            assert (disk / "file").read_bytes() == b"earlier"
            assert [path.name for path in disk.iterdir()] == ["file"]


def test_many_replace_one_file_at_once(tmp_path: Path) -> None:
    """As two nodes in one shared folder that nobody declared as such."""
    errors: list[BaseException] = []

    def write(data: bytes) -> None:
        try:
            for _ in range(200):
                replace_file(tmp_path / "file", data)
        except BaseException as error:  # noqa: BLE001  (a thread's error would be lost)
            errors.append(error)

    threads = [threading.Thread(target=write, args=(b"%d" % n * 4096,)) for n in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not errors
    assert len(set((tmp_path / "file").read_bytes())) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_that_the_user_named_keeps_its_mode_and_its_link(tmp_path: Path) -> None:
    (tmp_path / "real.html").write_text("earlier")
    (tmp_path / "real.html").chmod(0o640)
    (tmp_path / "latest.html").symlink_to("real.html")
    write_named(tmp_path / "latest.html", b"later")
    assert (tmp_path / "latest.html").is_symlink()
    assert (tmp_path / "real.html").read_text() == "later"
    assert mode(tmp_path / "real.html") == "0o640"
    with masked(0o022):
        write_named(tmp_path / "new.html", b"")
    assert mode(tmp_path / "new.html") == "0o644"


def test_a_pipe_that_the_user_named_is_written_to() -> None:
    script = "from clusterctl.own_files import write_named; write_named('/dev/stdout', b'facts')"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert done.stdout == b"facts"


@needs_root
def test_a_file_that_is_a_mount_is_written_in_place(tmp_path: Path) -> None:
    """As with `docker run -v $PWD/report.md:/report.md`."""
    (tmp_path / "outside.md").write_text("earlier and longer")
    (tmp_path / "report.md").touch()
    with mounted(tmp_path / "outside.md", tmp_path / "report.md"):
        write_named(tmp_path / "report.md", b"later")
    assert (tmp_path / "outside.md").read_text() == "later"
    assert {path.name for path in tmp_path.iterdir()} == {"outside.md", "report.md"}


@contextmanager
def mounted(source: Path, target: Path) -> Iterator[None]:
    subprocess.run(["mount", "--bind", source, target], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", target], check=True)


@needs_root
def test_a_file_in_a_folder_where_none_can_be_made_is_written_in_place() -> None:
    script = (
        "import os; from clusterctl.own_files import write_named\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534); write_named({!r}, b'later')"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        report = Path(folder) / "report.md"
        report.touch()
        os.chown(report, 65534, 65534)
        subprocess.run([sys.executable, "-c", script.format(str(report))], check=True)
        assert report.read_text() == "later"
        assert os.listdir(folder) == ["report.md"]  # noqa: PTH208  (it is a text)


@needs_root
def test_a_file_keeps_its_owner_and_its_group(tmp_path: Path) -> None:
    for uid, gid in ((65534, 65533), (0, 65533)):
        (tmp_path / "report.md").touch()
        os.chown(tmp_path / "report.md", uid, gid)
        write_named(tmp_path / "report.md", b"later")
        seen = (tmp_path / "report.md").stat()
        assert (seen.st_uid, seen.st_gid, seen.st_size) == (uid, gid, 5)
