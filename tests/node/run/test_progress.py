"""How far a job is, from lines as real programs print them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from clusterctl.node.run.files.progress import END_BYTES, progress_in, run_progress
from clusterctl.node.run.files.run_paths import NodePaths

BARS = (
    b"Loading checkpoint shards: 100%|##########| 4/4 [00:02<00:00]\n"
    b"\r 38%|###8      | 380/1000 [00:10<00:16, 38.1it/s]\n"
    b"{'loss': 1.2, 'epoch': 0.4}\n"
    b"\r 50%|#####     | 2/4 [00:00<00:00,  9.1it/s]"
)


@pytest.mark.parametrize(
    ("text", "step", "total"),
    [
        (b"Step 12/1502 | Epoch: 0.02 | Loss: 3.6800 | 2.31s\n", 12, 1502),
        (b"step 1 loss 3\nstep 2 loss 2.5\n", 2, None),
        (b"[titan] step: 10  loss: 8.1  memory: 1.2GiB\n", 10, None),
        (b" iteration       40/    5000 | consumed samples: 320 |\n", 40, 5000),
        (b'{"global_step": 7, "loss": 1.5}\n', 7, None),
        (b"epoch 2 step 30 of 90: loss 1\nTraceback (most recent call last):\n", 30, 90),
        (BARS, 380, 1000),
        (b"step=100\n\r 10%|#         | 100/1000 [00:10<00:16]", 100, 1000),
    ],
)
def test_the_last_step_that_was_printed(text: bytes, step: int, total: int | None) -> None:
    assert progress_in(text) == {"step": step, "total": total}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"saved out/step_155.pt\n",
        b"max_steps 100\nstep 0.31 s\nsteps: 100\n",
        b"footstep 3\n",
        b"at step 50% done\n",
        b"Map: 100%|##########| 4/4 [00:02<00:00]\n",
    ],
)
def test_what_only_looks_like_a_step_is_none(text: bytes) -> None:
    assert progress_in(text) is None


def test_as_many_bars_as_a_log_can_hold_are_read_at_once() -> None:
    began = time.process_time()
    assert progress_in(b"0%|| 1/1 [" * 6000) == {"step": 1, "total": 1}
    assert time.process_time() - began < 1


def test_a_long_traceback_after_the_last_step_does_not_hide_it(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "1.log").write_bytes(b"step 9\n")
    paths = NodePaths(str(tmp_path))
    (tmp_path / "ranks" / "0.log").write_bytes(b"step 5\n" + b"  File x, line 3\n" * 1000)
    assert run_progress(paths) == {"step": 5, "total": None}
    (tmp_path / "ranks" / "0.log").write_bytes(b"step 5\n" + b"-" * END_BYTES[-1])
    assert run_progress(paths) is None
