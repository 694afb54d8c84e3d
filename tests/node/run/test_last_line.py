"""What a run printed last on a node."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from clusterctl.node.run.status import last_printed_line
from tests.node.conftest import Run

MakeRun = Callable[..., Run]

TALK = """
import os, sys, time
rank = int(os.environ["RANK"])
print(f"first of {rank}", flush=True)
if rank == 1:
    time.sleep(0.3)
    sys.stdout.write("10%\\r20%\\r")
    sys.stdout.flush()
"""


def test_status_has_the_line_that_was_printed_last_on_a_node(make_run: MakeRun) -> None:
    run = make_run(TALK, procs=2).start()
    run.ended()
    last = run.status()["last"]
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
