"""A rank that prints without end fills no disk: its oldest lines are dropped, and that is shown."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterctl.node.run.files.run_files import RunFiles
from clusterctl.node.run.files.run_paths import NodePaths, dropped_of
from clusterctl.node.supervisor import log_space
from clusterctl.node.supervisor.log_space import LogSpace
from clusterctl.verbs.runs.event_warnings import warning_of
from tests.node.conftest import Run
from tests.small_disk import small_disk
from tests.waiting import wait_until

MakeRun = Callable[..., Run]

LINE = 64

CHATTER = """
import os, sys, time
for n in range(0, int(sys.argv[1]), 1024):
    os.write(1, b"".join(b"%063d\\n" % each for each in range(n, n + 1024)))
    time.sleep(0.04)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 64 MiB; takes root."""
    with small_disk(tmp_path / "disk", 64) as folder:
        yield folder


def test_a_job_outlives_a_log_that_is_larger_than_its_disk(make_run: MakeRun, disk: Path) -> None:
    (disk / "filler").write_bytes(bytes(54 << 20))
    lines = 256 * 1024  # 16 MiB, at 1.6 MB/s
    run = make_run(CHATTER, str(lines), state=disk).start()
    heads, read, end = [], 0, 0
    for message in run.tail(follow=True):
        if message.head.get("data") != "ranks/0.log":
            continue
        heads.append(message.head)
        start_supervisor = message.head["offset"]
        assert start_supervisor == end + message.head.get("dropped", 0)
        assert start_supervisor % LINE == 0
        assert len(message.body) == message.head["next"] - start_supervisor
        first, last = start_supervisor // LINE, message.head["next"] // LINE
        assert message.body == b"".join(b"%063d\n" % n for n in range(first, last))
        end = message.head["next"]
        read += len(message.body)
    assert end == lines * LINE
    assert run.ended()["state"] == "finished"
    kinds = [event["kind"] for event in run.events()]
    assert kinds.count("room-low") == 1
    dropped = [event for event in run.events() if event["kind"] == "log-dropped"]
    assert dropped
    assert all(event["free_bytes"] < 8 << 20 for event in dropped)
    # A reader that comes later is told of the hole.
    later = [m for m in run.tail() if m.head.get("data") == "ranks/0.log"]
    assert later[0].head["dropped"] == later[0].head["offset"] > 0
    assert later[0].body.startswith(b"%063d\n" % (later[0].head["offset"] // LINE))
    assert Path(run.paths().folder, "ranks/0.log").stat().st_size == lines * LINE


def test_a_log_beyond_its_limit_keeps_its_newest_half(disk: Path) -> None:
    (disk / "ranks").mkdir()
    paths = NodePaths(str(disk))
    log = Path(paths.folder, "ranks/0.log")
    room = LogSpace(RunFiles(paths), limit=1 << 20)
    log.write_bytes(b"a" * (1 << 20))
    room.check()
    assert log.stat().st_blocks * 512 == 1 << 20
    with log.open("ab") as file:
        file.write(b"b" * (1 << 20))
    room.check()
    assert log.stat().st_size == 2 << 20
    assert log.stat().st_blocks * 512 == 1 << 19
    assert log.read_bytes()[-(1 << 19) :] == b"b" * (1 << 19)
    assert Path(paths.events).read_text().count("larger than its limit") == 1
    room.check()
    assert Path(paths.events).read_text().count("log-dropped") == 1
    assert '"free_bytes": null' in Path(paths.events).read_text().replace(":null", ": null")
    dropped = Path(paths.folder, dropped_of("ranks/0.log")).read_bytes()
    LogSpace(RunFiles(paths), limit=1 << 20).check()  # of the next attempt
    assert Path(paths.folder, dropped_of("ranks/0.log")).read_bytes() == dropped
    assert int(dropped) > 0


def test_a_filesystem_without_holes_is_reported(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (disk / "log").write_bytes(b"x" * 8192)
    assert log_space.punch_hole(str(disk / "log"), 4096) == ""
    monkeypatch.setattr(log_space, "_HOLE", 0x7F)  # no filesystem knows that mode
    assert "not supported" in log_space.punch_hole(str(disk / "log"), 4096)


def test_a_folder_that_was_deleted_disturbs_nothing(tmp_path: Path) -> None:
    LogSpace(RunFiles(NodePaths(str(tmp_path / "gone")))).check()


TICKS = """
import time
from pathlib import Path
print("before" + "." * 100, flush=True)
for n in range(2):
    while not Path(f"go{n}").exists():
        time.sleep(0.01)
    print("after", n, flush=True)
"""


def test_a_log_that_another_program_cuts_off_is_followed_without_a_gap(make_run: MakeRun) -> None:
    run = make_run(TICKS).start()
    log, times = (Path(run.paths().folder, f"ranks/0.{what}") for what in ("log", "times"))
    with ThreadPoolExecutor() as beside:
        followed = beside.submit(run.tail, follow=True)
        run.wait_for_log(0, b"before")
        wait_until(lambda: times.exists() and b" 107" in times.read_bytes())
        os.truncate(log, 0)
        (run.workdir / "go0").touch()
        wait_until(lambda: log.stat().st_size == 107 + len("after 0\n"))
        (run.workdir / "go1").touch()
        pieces = [m for m in followed.result() if m.head.get("data") == "ranks/0.log"]
    assert b"".join(m.body for m in pieces) == b"before" + b"." * 100 + b"\nafter 0\nafter 1\n"
    assert (
        "another program cut ranks/0.log off, which had 107 bytes"
        in Path(run.paths().events).read_text()
    )


def test_a_log_that_grew_and_was_cut_off_between_two_looks_is_noticed(tmp_path: Path) -> None:
    """It is longer again than at the look before, but not than it was noted meanwhile."""
    log = tmp_path / "ranks" / "0.log"
    log.parent.mkdir()
    log.write_text("before")
    record = RunFiles(NodePaths(str(tmp_path)))
    room = LogSpace(record)
    room.check()
    log.write_text("x" * 107)
    record.log_times()
    log.write_text("after 0\n")
    room.check()
    assert log.stat().st_size == 107 + len("after 0\n")
    room.check()
    (event,) = Path(record.paths.events).read_text().splitlines()
    assert "another program cut ranks/0.log off, which had 107 bytes" in event


def test_a_log_that_another_program_takes_away_is_named_once(tmp_path: Path) -> None:
    paths = NodePaths(str(tmp_path))
    log = tmp_path / "ranks" / "0.log"
    log.parent.mkdir()
    log.write_text("x")
    room = LogSpace(RunFiles(paths))
    room.check()
    log.rename(tmp_path / "ranks" / "0.log.1")
    for _ in range(2):
        room.check()
        log.touch()  # as logrotate does
    (event,) = Path(paths.events).read_text().splitlines()
    assert "ranks/0.log was deleted or moved" in warning_of(json.loads(event))[0]


def test_a_log_on_a_disk_that_stays_short_is_not_dropped_a_little_at_every_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = SimpleNamespace(f_blocks=64 << 20, f_frsize=1, f_bavail=0)
    monkeypatch.setattr(os, "statvfs", lambda _folder: full)
    paths = NodePaths(str(tmp_path / "run"))
    (tmp_path / "run" / "ranks").mkdir(parents=True)
    log = tmp_path / "run" / "ranks" / "0.log"
    log.touch()
    record = RunFiles(paths)
    room = LogSpace(record)
    room.check()
    assert int((tmp_path / "run" / dropped_of("ranks/0.log")).read_text()) == 0
    for _ in range(400):
        with log.open("ab") as file:
            file.write(b"x" * 8192)
        room.check()
    events = Path(paths.events).read_text().count("log-dropped")
    assert 0 < events <= 10
