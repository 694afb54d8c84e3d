"""How far a job is, from lines as frameworks really print them."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.logs.progress_line import JobProgress, progress_in, progress_of


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "Step 3/50 | Loss: 2.9838 | 2.50s | 1812 tok/s | Mem: 1 GiB | ETA: 0:01:58",
            {"step": 3, "total": 50, "steps_per_s": 0.4, "eta_s": 118.0},
        ),
        (
            "  6%|\u258c         | 3/50 [00:10<02:00,  2.56s/it]",
            {"step": 3, "total": 50, "steps_per_s": 1 / 2.56, "eta_s": 120.0},
        ),
        (
            "Epoch 0:  12%|#2 | 12/100 [1:00:10<1:01:20, 1.10it/s, v_num=0, loss=2.3]",
            {"step": 12, "total": 100, "steps_per_s": 1.1, "eta_s": 3680.0},
        ),
        ("  0%|          | 0/50 [00:00<?, ?it/s]", {"step": 0, "total": 50}),
        ("100%|####| 50/50 [00:10<00:00]", {"step": 50, "total": 50, "eta_s": 0.0}),
        ("{'loss': 2.3, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.12}", {"epoch": 0.12}),
        ("{'loss': '2.3', 'epoch': '1.5'}", {"epoch": 1.5}),
        (
            " iteration       12/    1502 | consumed samples:  96 | time per iteration (ms): 9",
            {"step": 12, "total": 1502},
        ),
        ("step 18 loss 16.8606 626 samples/s", {"step": 18}),
        ('{"global_step": 40, "loss": 2.1}', {"step": 40}),
        ("step: 12 of 100", {"step": 12, "total": 100}),
        ("Step 60/50", {"step": 60}),
    ],
)
def test_known_lines(line: str, found: dict[str, Any]) -> None:
    progress = progress_in(line)
    assert progress is not None
    expected = JobProgress(**found)
    for name in ("step", "total", "steps_per_s", "eta_s"):
        value = getattr(expected, name)
        assert getattr(progress, name) == (value if value is None else pytest.approx(value)), name


@pytest.mark.parametrize(
    "line",
    [
        "",
        "saving step_120.pt",
        "footstep 12",
        "Writing model shards: 100%|████| 1/1 [00:00<00:00, 62.43it/s]",
        "Loading checkpoint shards:  25%|██  | 1/4 [00:09<00:28,  9.43s/it]",
        "Map (num_proc=4):  50%|█▌  | 200/400 [00:01<00:01, 190.2 examples/s]",
        "Fetching 12 files: 8%|8   | 1/12 [00:00<00:09,  1.18it/s]",
        "Loss 2.3",
        "time 12/100 [x",
        "step 1.5 of the plan",
        "downloading 3/4 files",
        "Epoch 2/3",
        "at step 50% done",
    ],
)
def test_other_lines_tell_nothing(line: str) -> None:
    assert progress_in(line) is None


def test_two_lines_and_their_times_tell_the_rate() -> None:
    found = progress_of(["step 30/100", "saving"], ["step 10/100"], 10.0)
    assert found == JobProgress(step=30, total=100, steps_per_s=2.0, eta_s=35.0)
    for earlier, seconds in (
        (["step 10/90"], 10.0),
        (["step 30/100"], 10.0),
        (["step 10/100"], 1.0),
    ):
        found = progress_of(["step 30/100"], earlier, seconds)
        assert found == JobProgress(step=30, total=100)
    assert progress_of(["loading"], ["step 1"], 10.0) is None


_PARTS = st.sampled_from(
    ["step", "iter ", "/", "1", "99999999999999", " [", "<", "?", ":", "s/it", "it/s", "|", "% ",
     "'epoch': ", "ETA: ", "0.0s", "\t", "\u0660", "\x00", "\ud800"]
)  # fmt: skip


@given(st.lists(st.one_of(_PARTS, st.text(max_size=8)), max_size=40).map("".join))
def test_no_line_is_too_strange(line: str) -> None:
    found = progress_in(line)
    assert found is None or all(
        value is None or value >= 0
        for value in (found.step, found.total, found.epoch, found.steps_per_s, found.eta_s)
    )
    progress_of([line], [line], 10.0)


@pytest.mark.parametrize("part", ["step ", "1/1 [", "1", "iteration\t", "'epoch': 1", ":", "<00"])
def test_a_line_made_to_be_slow_is_not(part: str) -> None:
    """Milliseconds; the limit is for a busy machine."""
    began = time.process_time()
    progress_in(part * (4_000_000 // len(part)))
    assert time.process_time() - began < 5
