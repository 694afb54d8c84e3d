"""What a supervisor keeps survives a full disk, and never keeps a half."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterctl.node.file_io import read_json
from clusterctl.node.run.files import run_files as record_module
from clusterctl.node.run.files.run_files import RunFiles, write_json
from clusterctl.node.run.files.run_paths import NodePaths, times_of
from clusterctl.node.run.processes.processes import key_of
from tests.node.conftest import Run
from tests.small_disk import small_disk as mounted


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of one mebibyte, which the agent takes half of; takes root."""
    with mounted(tmp_path / "small", 1) as folder:
        yield folder


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    (tmp_path / "ranks").mkdir()
    return NodePaths(str(tmp_path))


def fill(folder: Path) -> None:
    with (folder / "filler").open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


def events(paths: NodePaths) -> list[str]:
    lines = Path(paths.events).read_text().splitlines()
    return [json.loads(line)["kind"] for line in lines]


def test_a_file_is_there_whole_or_as_before(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    assert read_json(str(path)) == {}
    write_json(str(path), {"a": 1})
    path.with_name("x.json.new").write_text('{"a": 2, "cut')
    assert read_json(str(path)) == {"a": 1}
    path.write_text("[1]")
    assert read_json(str(path)) == {}


def test_cleaners_leave_a_link_and_what_a_killed_writer_left_goes(
    paths: NodePaths, tmp_path: Path
) -> None:
    (tmp_path / "ray-short").symlink_to("/tmp")
    unfinished = [tmp_path / "end.json.0123456789ab.new", tmp_path / "ranks" / "0.times.a1.new"]
    for path in (*unfinished, tmp_path / "others.new", tmp_path / "ray-short"):
        if not path.is_symlink():
            path.touch()
        os.utime(path, (0, 0), follow_symlinks=False)
    recent = tmp_path / "end.json.0123456789ac.new"
    recent.touch()
    os.utime(recent, (before := time.time() - 3600, before))
    RunFiles(paths).keep_fresh()
    assert (tmp_path / "ray-short").lstat().st_mtime > before
    assert (recent.stat().st_mtime, (tmp_path / "others.new").exists()) == (before, True)
    assert not [path for path in unfinished if path.exists()]


def test_events_wait_for_room_and_are_written_in_order(small_disk: Path) -> None:
    (small_disk / "ranks").mkdir()
    paths = NodePaths(str(small_disk))
    record = RunFiles(paths)
    record.reserve_space()
    record.event("first")
    record.heartbeat()
    fill(small_disk)
    for _ in range(200):
        record.event("waiting", message="x" * 100)
    record.write_snapshot({"state": "running"})
    record.record_processes([(1, 2)])
    record.heartbeat()
    assert read_json(paths.supervisor) == {}
    assert record.end({"state": "finished"})
    assert read_json(paths.end) == {"state": "finished"}
    (small_disk / "filler").unlink()
    record.flush()
    assert events(paths) == ["first", *["waiting"] * 200]
    assert read_json(paths.supervisor) == {"state": "running"}
    assert Path(paths.processes).read_text() == "1 2\n"


def test_a_deleted_folder_is_no_reason_to_wait(tmp_path: Path) -> None:
    record = RunFiles(NodePaths(str(tmp_path / "gone")))
    record.event("first")
    record.heartbeat()
    record.log_times()
    assert record.end({"state": "finished"})


def test_a_line_of_an_attempt_never_continues_one_of_the_attempt_before(paths: NodePaths) -> None:
    logs = {0: b"step 1\nstep 2: 45%", 1: b"step 1\n", 2: b""}
    for rank, printed in logs.items():
        Path(paths.folder, f"ranks/{rank}.log").write_bytes(printed)
    record = RunFiles(paths)
    record.begin_attempt()
    kept = [Path(paths.folder, f"ranks/{rank}.log").read_bytes() for rank in logs]
    assert kept == [b"step 1\nstep 2: 45%\n", b"step 1\n", b""]
    assert [record.begins_at(f"ranks/{rank}.log") for rank in logs] == list(map(len, kept))


def test_the_time_index_grows_with_the_log_only(paths: NodePaths) -> None:
    record = RunFiles(paths)
    log = Path(paths.folder, "ranks/3.log")
    for size in (10, 10, 25):
        log.write_bytes(bytes(size))
        record.log_times()
    lines = [line.split() for line in log.with_suffix(".times").read_text().splitlines()]
    assert [int(size) for _, size in lines] == [10, 25]
    assert float(lines[0][0]) <= float(lines[1][0])


def test_a_start_on_a_full_disk_is_refused_with_the_way_out(
    small_disk: Path, make_run: Callable[..., Run]
) -> None:
    run = make_run("pass", state=small_disk)
    with (small_disk / "filler").open("wb") as file:
        file.write(bytes(250 * 1024))  # room for the agent, not for the end
    fill_all_but(small_disk, 40 * 1024)
    error = run.start_node(0)["error"]
    assert error["kind"] == "state-folder"
    assert "No space left on device" in error["message"]
    assert "make room there" in error["hint"]


def fill_all_but(folder: Path, left: int) -> None:
    fill(folder)
    with (folder / "filler").open("r+b") as file:
        file.truncate((folder / "filler").stat().st_size - left)


def test_a_run_on_a_full_disk_ends_and_says_so(
    small_disk: Path, make_run: Callable[..., Run]
) -> None:
    chatter = (
        "import os, sys, time\n"
        "try:\n"
        "  print('here', flush=True)\n"
        "  while True: os.write(1, b'x' * 4096)\n"
        "except OSError as error: sys.exit(error.errno)\n"
    )
    run = make_run(chatter, state=small_disk)
    run.start()
    node = run.ended()
    assert node["state"] == "failed"
    assert node["end"]["reason"] == "rank 0 ended with exit code 28"
    assert run.stop()["gone"]


def test_a_log_that_grows_for_a_week_has_few_times_and_its_latest_are_exact(
    paths: NodePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1_700_000_000.0]
    monkeypatch.setattr("clusterctl.node.run.files.run_files.time.time", lambda: clock[0])
    record, log = RunFiles(paths), Path(paths.folder, "ranks/0.log")
    log.touch()
    size = 0
    for _ in range(12_000):  # every 50 s, for a week
        size += 1
        os.truncate(log, size)
        record.log_times()
        clock[0] += 50
    noted = Path(paths.folder, times_of("ranks/0.log"))
    entries = [tuple(map(float, line.split())) for line in noted.read_text().splitlines()]
    assert len(entries) <= record_module.MAX_TIMES
    assert [entry[1] for entry in entries[-10:]] == [size - n for n in range(9, -1, -1)]
    assert [entry[1] for entry in entries] == sorted(entry[1] for entry in entries)
    now = clock[0]
    for (earlier, _), (later, _) in itertools.pairwise(entries):
        assert later - earlier <= max(50, 0.05 * (now - earlier))


def test_thinning_keeps_the_last_time_and_no_line_that_was_cut() -> None:
    lines = [b"%d %d\n" % (1000 + n, n) for n in range(100)] + [b"\0\0\0\n", b"1100 100\n"]
    kept = record_module.thin_times(lines, 1_000_000.0)
    assert kept[-1] == b"1100 100\n"
    assert len(kept) < 10
    assert record_module.thin_times([], 1.0) == []
    assert record_module.thin_times([b"\0\n"], 1.0) == [b"\0\n"]


def test_processes_that_have_ended_are_forgotten_in_the_end(paths: NodePaths) -> None:
    record = RunFiles(paths)
    here = key_of(os.getpid())
    first = [(4_000_000 + n, 1) for n in range(10)]
    record.record_processes(first)
    for n in range(0, 20_000, 100):
        record.record_processes([here, *((5_000_000 + n + each, 1) for each in range(100))])
    lines = Path(paths.processes).read_text().splitlines()
    assert len(lines) <= record_module.MAX_PROCESSES + 101
    assert {f"{pid} {start}" for pid, start in (here, *first)} <= set(lines)
    assert len(lines) == len(set(lines))
