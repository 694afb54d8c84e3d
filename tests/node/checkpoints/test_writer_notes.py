"""Runs of other inventories are known by their notes next to the folder of checkpoints."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.node.checkpoints import filesystem
from clusterctl.node.checkpoints.filesystem import Mount
from clusterctl.node.checkpoints.origin import Origin
from clusterctl.node.checkpoints.writer_notes import (
    KEPT_SECONDS,
    checkpoint_writers,
    keep_note,
    noted_writers,
)
from tests.node.checkpoints.test_origin import run_folder

RUN, OTHER = "lab-20260102t000000-abcd", "ours-20260102t000000-efgh"
ABOUT = {"name": "base", "cluster": "ours", "user": "bob", "host": "gpu7"}


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "mount_of", lambda _folder: Mount("nfs4"))


def keep(folder: Path, run: str = OTHER, age: float = 100.0, *, over: bool = False) -> Path:
    assert keep_note("/", str(folder), run, age=age, over=over, about=ABOUT)
    return folder.parent / f".{folder.name}.{run}.clusterctl"


def set_back(note: Path, seconds: float) -> None:
    moment = time.time() - seconds
    os.utime(note, (moment, moment))


def test_a_note_tells_who_writes_since_when_and_until_when(tmp_path: Path) -> None:
    note = keep(tmp_path / "out", age=100.0)
    (found,) = noted_writers(str(tmp_path / "out"), 0.0)
    assert (found.run, found.folder, found.live) == (OTHER, str(tmp_path / "out"), True)
    assert found.began == pytest.approx(time.time() - 100, abs=5)
    assert found.about == ABOUT
    set_back(note, 3600.0)
    (found,) = noted_writers(str(tmp_path / "out"), 0.0)
    assert not found.live
    assert found.ended == pytest.approx(time.time() - 3590, abs=5)
    assert keep(tmp_path / "out", age=120.0, over=True) == note
    (found,) = noted_writers(str(tmp_path / "out"), 0.0)
    assert not found.live
    assert found.ended == pytest.approx(time.time(), abs=5)


def test_the_storages_clock_is_taken_into_account(tmp_path: Path) -> None:
    set_back(keep(tmp_path / "out"), -7200.0)
    (found,) = noted_writers(str(tmp_path / "out"), 7200.0)
    assert found.live
    assert found.began == pytest.approx(time.time() - 100, abs=5)


@pytest.mark.parametrize("looked", ["out", ".", "out/a", "out/a/step-5"])
def test_a_note_counts_for_folders_above_and_below(tmp_path: Path, looked: str) -> None:
    keep(tmp_path / "out")
    assert len(noted_writers(str(tmp_path / looked), 0.0)) == 1


@pytest.mark.parametrize("looked", ["out2", "ou", "other/out"])
def test_a_note_does_not_count_for_other_folders(tmp_path: Path, looked: str) -> None:
    keep(tmp_path / "out")
    assert noted_writers(str(tmp_path / looked), 0.0) == []


def test_no_note_is_kept_where_no_other_run_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept(folder: str) -> bool:
        return keep_note(str(tmp_path), folder, RUN, age=1.0, over=False, about=ABOUT)

    assert not kept(f"out/{RUN}")
    assert not kept("s3://bucket/out")
    assert not kept("")
    for mount, is_kept in (
        (Mount("ext4"), False),
        (Mount("ext4", "/var/lib/volumes/data"), True),
        (Mount("nfs4"), True),
    ):
        monkeypatch.setattr(filesystem, "mount_of", lambda _folder, found=mount: found)
        assert kept("out") is is_kept
    assert [path.name for path in tmp_path.iterdir()] == [f".out.{RUN}.clusterctl"]


def test_a_folder_above_that_cannot_be_written_to_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        keep(tmp_path / "file" / "out")


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    (tmp_path / f".out.{OTHER}.clusterctl").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"):
        keep(tmp_path / "out")
    assert (tmp_path / "precious").read_text() == "data"
    assert noted_writers(str(tmp_path / "out"), 0.0) == []


def test_notes_of_runs_that_are_long_over_go(tmp_path: Path) -> None:
    old = keep(tmp_path / "out")
    set_back(old, KEPT_SECONDS + 60)
    new = keep(tmp_path / "out", RUN)
    assert list(tmp_path.iterdir()) == [new]


@given(st.binary(max_size=300))
def test_any_content_of_a_note_is_survived(tmp_path_factory: Any, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("notes")
    (folder / f".out.{OTHER}.clusterctl").write_bytes(content)
    assert isinstance(noted_writers(str(folder / "out"), 0.0), list)


@pytest.mark.parametrize("age", ["-1", "1e999", "NaN", "true1", '"x"'])
def test_an_age_that_none_has_makes_no_note(tmp_path: Path, age: str) -> None:
    keep(tmp_path / "out").write_text(f'{{"age": {age}}}')
    assert noted_writers(str(tmp_path / "out"), 0.0) == []


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f".out.{OTHER}.clusterctl")
    assert noted_writers(str(tmp_path / "out"), 0.0) == []


def test_what_was_written_while_a_noted_run_lived_is_not_claimed(tmp_path: Path) -> None:
    now = time.time()
    run_folder(tmp_path / "state", RUN, now - 400, now)
    args = {"cluster": "c", "run": RUN, "node": "n", "state": str(tmp_path / "state")}
    note = keep(tmp_path / "out", age=200.0)
    found = Origin(args, str(tmp_path / "out"))
    assert found.writer(now - 250).run == RUN
    assert found.writer(now - 150).beside == (RUN, OTHER)
    set_back(note, 100.0)  # it was last seen then, and began 200 s before
    keep(tmp_path / "out", "x-20260102t000000-mnpq", age=50.0, over=True)
    found = Origin(args, str(tmp_path / "out"))
    assert found.writer(now - 120).beside == (RUN, OTHER)
    assert found.writer(now - 70).run == RUN
    assert found.writer(now - 20).beside == (RUN, "x-20260102t000000-mnpq")


def test_a_launch_hears_of_live_runs_alone(tmp_path: Path) -> None:
    keep(tmp_path / "out")
    keep(tmp_path / "out", RUN, over=True)
    args = {"workdir": str(tmp_path), "path": "out"}
    answer = checkpoint_writers(args, b"", cast("Any", None))
    assert answer.head == {"writers": [{"run": OTHER, **ABOUT}]}
