"""What a run printed last on a node."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.operations.status import last_printed_line
from tests.node.conftest import Run

MakeRun = Callable[..., Run]

TALK = """
import os, sys, time
rank = int(os.environ["RANK"])
print(f"first of {rank}", flush=True)
if rank == 0:
    open("printed", "w").close()
if rank == 1:
    while not os.path.exists("printed"):
        time.sleep(0.01)
    time.sleep(0.3)
    sys.stdout.write("10%\\r20%\\r")
    sys.stdout.flush()
"""


def test_status_has_the_line_that_was_printed_last_on_a_node(make_run: MakeRun) -> None:
    run = make_run(TALK, procs=2).start()
    run.ended()
    last = run.asked_status()["last"]
    assert (last["rank"], last["line"]) == (1, "20%")
    assert 0 <= last["age_s"] < 600


def test_the_age_is_that_of_the_log_and_a_long_line_is_cut(make_run: MakeRun) -> None:
    run = make_run("print('x' * 100_000)").start()
    run.ended()
    paths = run.paths()
    log = Path(paths.folder) / "ranks/0.log"
    os.utime(log, (time.time() - 100, time.time() - 100))
    found = last_printed_line(paths)
    assert found is not None
    assert found["line"] == "x" * 500
    assert 99 < found["age_s"] < 160


def test_a_ruler_below_the_last_words_tells_nothing(make_run: MakeRun) -> None:
    run = make_run(r"print('exit code 1\n====\n----')").start()
    run.ended()
    found = last_printed_line(run.paths())
    assert found is not None
    assert found["line"] == "exit code 1"


def test_the_rhythm_of_lines_and_earlier_ones_come_from_the_times_of_the_log(
    tmp_path: Path,
) -> None:
    (tmp_path / "ranks").mkdir()
    paths, log = NodePaths(str(tmp_path)), tmp_path / "ranks" / "0.log"
    lines = [b"step %d/100\n" % step for step in range(2000)]
    log.write_bytes(b"".join(lines))
    now, size = time.time(), 0
    times = []
    for step, line in enumerate(lines):
        size += len(line)
        times.append(b"%.3f %d\n" % (now - 2 * (2000 - step), size))
    (tmp_path / "ranks" / "0.times").write_bytes(b"".join(times))
    found = last_printed_line(paths)
    assert found is not None
    assert (found["lines"][-1], found["every_s"]) == ("step 1999/100", 2.0)
    earlier = found["earlier"]
    step = int(earlier["lines"][-1].split()[1].partition("/")[0])
    assert 1000 < step < 1999
    assert earlier["age_s"] == pytest.approx(2 * (2000 - step), abs=60)
    patterns = [r"step (?P<step>\d+)/(?P<total>\d+)"]
    own = last_printed_line(paths, patterns)
    assert own is not None
    assert own["own"] == {"step": 1999, "total": 100}
    assert own["earlier"]["own"] == {"step": step, "total": 100}
    Path(paths.job).write_text("{}")  # another attempt begins, 20 s ago
    os.utime(paths.job, (now - 20, now - 20))
    again = last_printed_line(paths)
    assert again is not None
    assert int(again["earlier"]["lines"][-1].split()[1].partition("/")[0]) >= 1990
    Path(paths.job).unlink()
    bursts = b"".join(
        b"%.3f %d\n" % (now + t + n / 100, n) for t in range(-60, 0, 6) for n in (1, 2)
    )
    (tmp_path / "ranks" / "0.times").write_bytes(bursts)
    found = last_printed_line(paths)
    assert found is not None
    assert found["every_s"] == 6.0
    (tmp_path / "ranks" / "0.times").write_bytes(b"\0\0\0 7\n1.0 2\nnonsense\n")
    found = last_printed_line(paths)
    assert found is not None
    assert (found["every_s"], found["earlier"]) == (None, None)
