"""A log's times are noted when it grows, not only now and then."""

from __future__ import annotations

import time
from pathlib import Path

from clusterctl.node.event_loop import EventLoop
from clusterctl.node.run.files.run_files import RunFiles
from clusterctl.node.run.files.run_paths import NodePaths, times_of
from clusterctl.node.supervisor.watch.log_watch import LogWatch


def test_each_write_to_a_log_has_its_own_time(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "ranks").mkdir(parents=True)
    log, times = folder / "ranks/0.log", folder / times_of("ranks/0.log")
    log.touch()
    loop = EventLoop()
    LogWatch(loop, RunFiles(NodePaths(str(folder)))).look()  # once: only the watch is left
    noted: list[list[str]] = []
    before, limit = time.time(), time.monotonic() + 60
    for number in range(1, 4):
        with log.open("ab") as file:
            file.write(b"step\n")
        while len(noted) < number:
            assert time.monotonic() < limit
            loop.call_later(0.1, lambda: None)
            loop.run_once()
            noted = (
                [line.split() for line in times.read_text().splitlines()] if times.exists() else []
            )
    assert [int(size) for _, size in noted] == [5, 10, 15]
    assert before - 0.01 <= float(noted[0][0]) <= float(noted[1][0]) <= float(noted[2][0])
