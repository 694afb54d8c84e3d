"""How far a job is, from lines as frameworks really print them."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.logs.progress_line import JobProgress, progress_in, progress_of, with_total_of


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
            {"step": 12, "total": 100, "epoch": 0, "of_epoch": True, "steps_per_s": 1.1},
        ),
        (
            "      3/299   3.87G    0.10   214    640:  41%|####  | 12/29 [00:10<00:14,  2.5it/s]",
            {"step": 12, "total": 29, "epoch": 3, "of_epoch": True, "steps_per_s": 2.5},
        ),
        (
            "      1/100      2.1G      1.234        640: 41% ━━╸── 12/29 1.2it/s 10.1s<14.2s",
            {"step": 12, "total": 29, "epoch": 1, "of_epoch": True, "steps_per_s": 1.2},
        ),
        *(
            (line, {"step": 20, "total": 391, "epoch": 3, "of_epoch": True})
            for line in (
                "Epoch: [3]  [ 20/391]  eta: 0:05:11  lr: 0.1  loss: 1.45 (1.51)  time: 0.75",
                "Epoch: [3][ 20/391]\tTime  0.100 ( 0.200)\tLoss 6.9443e+00 (7.0021e+00)",
                "Epoch: [3/100]  [   20/391]  eta: 0:12:34  loss: 10.9 (10.9)",
                "INFO Train: [3/300][20/391]\teta 0:12:34 lr 0.000001\tloss 6.9 (6.9)",
                "Train: 3 [   20/391 (  1%)]  Loss: 6.94 (6.95)  Time: 0.456s,  561.40/s",
                "Train Epoch: 3 [20/391 (1%)]\tLoss: 2.301234",
                "| epoch   3 |    20/  391 batches | lr 20.00 | loss  6.87",
                "Epoch [3/10], Step [20/391], Loss: 2.30",
            )
        ),
        (
            "- INFO - Epoch(train) [3][ 20/391]  lr: 1.0e-03  eta: 1 day, 0:05:41  loss: 2.3",
            {"step": 20, "total": 391, "epoch": 3, "of_epoch": True, "eta_s": 86741.0},
        ),
        (
            "- INFO - Iter(train) [  100/80000]  lr: 1.0e-03  eta: 10:05:41  loss: 2.3021",
            {"step": 100, "total": 80000, "eta_s": 36341.0},
        ),
        (
            "step 00012/05000 (0.24%) | loss: 10.1 | tok/sec: 12,345 | epoch: 1 | eta: 12.5m",
            {"step": 12, "total": 5000, "eta_s": 750.0},
        ),
        (
            "Epoch 1 | iter 10 step 5 | loss train: 4.0 | remaining time: 0:01:00",
            {"step": 5, "eta_s": 60.0},
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
        ("Step 43,000 | Loss: 1.790 | tok/s: 1.2M", {"step": 43000}),
        ("Step 1,200/43,000 | Loss: 1.790", {"step": 1200, "total": 43000}),
        ('{"epoch": 2, "step": 45, "total_steps": 200}', {"step": 45, "total": 200}),
        ("global_step=36 max_steps=200", {"step": 36, "total": 200}),
        ("Epoch 1 | Step 48/50 | Global Step 98/200 | Loss 2", {"step": 98, "total": 200}),
        ("Checkpoint [1]\tUpdates=50 Epoch=1 Samples=400 Updates/sec=5.344", {"step": 50}),
    ],
)
def test_known_lines(line: str, found: dict[str, Any]) -> None:
    progress = progress_in(line)
    assert progress is not None
    expected = JobProgress(**found)
    for name in ("step", "total", "of_epoch", "steps_per_s", "eta_s"):
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
        "num_epochs: 12",
        "valid epoch 2",
        "Epoch(val) [1][10/79]    eta: 0:00:01",
        "Test: [  10/195]  Time: 0.1 (0.2)  Loss:   6.9 ( 6.9)",
        "at step 50% done",
    ],
)
def test_other_lines_tell_nothing(line: str) -> None:
    assert progress_in(line) is None


@pytest.mark.parametrize(
    ("line", "epoch", "epochs"),
    [
        ("Epoch 2/3", 2, 3),
        ("Epoch [12/30], Loss: 0.5123", 12, 30),
        ("epoch 1: {'accuracy': 0.5}", 1, None),
        ("epoch: 3, lr: 2.0e-03 - train loss: 2.34 - valid loss: 2.3", 3, None),
        ("2026-11-30,04:23:36 | INFO | open_clip_train.main | Start epoch 2", 2, None),
        ("Checkpoint [1]\tTime-cost=9.4 Epoch=1 Samples=400", 1, None),
    ],
)
def test_an_epoch_without_a_step(line: str, epoch: int, epochs: int | None) -> None:
    assert progress_in(line) == JobProgress(epoch=epoch, epochs=epochs)
    assert progress_of([line, "saving"]) == JobProgress(epoch=epoch, epochs=epochs)
    assert progress_of(["step 3/100", line]) == JobProgress(step=3, total=100)


def test_a_step_that_begins_again_with_each_epoch_has_its_epoch() -> None:
    lines = [f"[RANK0] Epoch {epoch} | Iter 10 | Train Loss 2.5" for epoch in (1, 2)]
    assert progress_in(lines[1]) == JobProgress(step=10, epoch=2)
    assert progress_of([lines[1]], [lines[0].replace("10", "5")], 10.0) == progress_in(lines[1])


def test_a_bar_under_one_of_epochs_is_of_an_epoch() -> None:
    above = "Epochs:  25%|##        | 1/4 [00:12<00:37, 12.50s/it]"
    steps = "Batches:  76%|#######   | 38/50 [00:09<00:03,  4.00it/s]"
    expected = JobProgress(step=38, total=50, epoch=1, of_epoch=True, steps_per_s=4.0)
    assert progress_of([above, steps]) == progress_of([steps, above]) == expected
    assert progress_of([above]) == JobProgress(epoch=1, epochs=4)


def test_a_file_named_after_the_step_hides_no_total() -> None:
    found = progress_of(["step 7/60", "step 8/60", "saved out/p/step8.pt"], ["step 3/60"], 10.0)
    assert found == JobProgress(step=8, total=60, steps_per_s=0.5, eta_s=104.0)
    assert progress_of(["eval step 5/10", "step 8"]) == JobProgress(step=8)


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
    # A resumed run's bar counts what it skipped, as if that had been computed in no time.
    bars = [
        f" 38%|###  | {step}/60 [00:00<00:00, {rate}it/s]" for step, rate in ((17, 180), (23, 112))
    ]
    found = progress_of(bars[1:], bars[:1], 3.0)
    assert found == JobProgress(step=23, total=60, steps_per_s=2.0, eta_s=18.5)
    assert progress_of([bars[1].replace("112", "3")], bars[:1], 3.0) == JobProgress(
        step=23, total=60, steps_per_s=3.0, eta_s=0.0
    )
    now, before = "Epoch: [3][ 20/391]", "Epoch: [3][ 10/391]"
    found = progress_of([now], [before], 10.0)
    assert found == JobProgress(step=20, total=391, epoch=3, of_epoch=True, steps_per_s=1.0)
    assert progress_of([now], [before.replace("3", "2")], 10.0) == progress_in(now)


@pytest.mark.parametrize("words", ["--max_iters=400", "--max-steps 400", "trainer.max_steps=400"])
def test_the_command_tells_the_last_step(words: str) -> None:
    found = JobProgress(step=100, steps_per_s=2.0)
    command = ("train.py", *words.split(), "--steps", "9")
    expected = JobProgress(step=100, total=400, steps_per_s=2.0, eta_s=150.0)
    assert with_total_of(command, found) == expected
    assert with_total_of(("--max_iters", "99"), found) == found
    printed = JobProgress(step=100, total=200)
    assert with_total_of(command, printed) == printed


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


@pytest.mark.parametrize(
    "part",
    [
        "step ",
        "1/1 [",
        "1",
        "iteration\t",
        "'epoch': 1",
        ":",
        "<00",
        "epoch: [",
        "train 1 ",
        "% \u2501",
    ],
)
def test_a_line_made_to_be_slow_is_not(part: str) -> None:
    """Milliseconds; the limit is for a busy machine."""
    began = time.process_time()
    progress_in(part * (4_000_000 // len(part)))
    assert time.process_time() - began < 5
