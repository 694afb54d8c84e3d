"""How far a job is, from lines as real programs print them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.model.from_json import invalid
from clusterctl.model.node_run import Step
from clusterctl.node.run.files.progress import END_BYTES, progress_in, run_progress
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.operations.status import last_printed_line

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
        (b"\rTrain:  38%|# | 3/8 [00:06<00:09]\n{'global_step/max_steps': '3/8'}\n", 3, 8),
        (b"Epoch: [1]  [ 30/90]  eta: 0:05:11  loss: 1.4 (1.5)\n", 120, None),
        (b"Epoch(train) [1][30/90]  eta: 0:05:11  loss: 1.4\n", 30, None),
        (b"Train: [1/10][30/90]\teta 0:12:34\tloss 6.9 (6.9)\n", 120, 900),
        (b"Epoch [1/10], Step [30/90], Loss: 2.3\nEpoch [2/10], Step [1/90]", 91, 900),
        (b"Epoch [0/10], Step [30/90], Loss: 2.3\nEpoch [2/10], Step [1/90]", 181, 900),
        (b"Train: [9/10][30/90]\nTrain: [10/10][30/90]", 840, 900),
        (b"Train Epoch: 1 [32/640 (5%)]\tLoss: 0.4", 32, None),
        (b"| epoch   2 |   200/ 2983 batches | lr 20.00", 3183, None),
        (b"step 9/60 loss 1\neval step 10/10 eval_loss 9.1\n", 9, 60),
        (b"step 9/60 loss 1\n[*] attempt 2 of 3, from checkpoint step 5\n", 9, 60),
        (b"epoch 2, step 30/90\n", 30, 90),
        (b"epoch 2 step 30 of 90: loss 1\nTraceback (most recent call last):\n", 30, 90),
        (b"Checkpoint [1]\tUpdates=50 Epoch=1 Samples=400 Updates/sec=5.344\n", 50, None),
        (BARS, 380, 1000),
        (b"Step 1,200 | Loss: 1.79\n", 1200, None),
        (b'{"step": 44}\n{"step": 45, "total_steps": 200}\n', 45, 200),
        (b'{"step": 45}\nmax_steps=200\n', 45, None),
        (b"step 7/60\nstep 8/60\nsaved out/step8.pt\n", 8, 60),
        (b"eval step 5/10\nstep 8\n", 8, None),
        (b"step=100\n\r 10%|#         | 100/1000 [00:10<00:16]", 100, 1000),
    ],
)
def test_the_last_step_that_was_printed(text: bytes, step: int, total: int | None) -> None:
    found = progress_in(text) or {}
    assert (found["step"], found["total"]) == (step, total)


@pytest.mark.parametrize(
    ("text", "loss", "tokens"),
    [
        (
            b"Step 3/50 | Epoch: 0.1 | Loss: 2.9838 | 2.50s | 1812 tok/s | Mem: 1 GiB\n",
            2.9838,
            1812,
        ),
        (b"Step 3/50 | Loss: 2.5 | 2s\nStep 3/50 | Eval Loss: 9.1 | Perplexity: 3\n", 2.5, None),
        (
            b"[rank 0] Step: 22 | Loss: 3.4989 | Tokens/s:   5.11K | Tokens/s/GPU: 2.56K\n",
            3.4989,
            5110,
        ),
        (b"epoch: 1, lr: 2e-03 - train loss: 2.34 - valid loss: 2.5, valid WER: 9\n", 2.34, None),
        (b"{'loss': 1.2, 'grad_norm': 3.1, 'learning_rate': 5e-05, 'epoch': 0.4}\n", 1.2, None),
        (b"{'loss': '1.2', 'epoch': '0.4'}\n{'eval_loss': '7', 'eval_runtime': '3'}\n", 1.2, None),
        (
            b"{'loss': 0.91, 'tokens_per_second_per_gpu': 1234.5, 'epoch': 0.01}\n",
            0.91,
            1234.5,
        ),
        (b"{'loss': 0.91, 'tokens/train_per_sec_per_gpu': 88.25, 'ppl': 3}\n", 0.91, 88.25),
        (
            b"Epoch 0:  12%|#2 | 12/100 [00:10<01:20, 1.10it/s, v_num=0, train_loss=2.30]\r",
            2.3,
            None,
        ),
        (b"[titan] step: 10  loss: 8.1  grad_norm: 1  memory: 1.2GiB(1%)  tps: 1,234\n", 8.1, 1234),
        (b" iteration  40/ 5000 | lm loss: 1.034E+01 | loss scale: 1.0 |\n", 10.34, None),
        (b'{"global_step": 7, "loss": 1.5}\n', 1.5, None),
        (b"loss 3.5 tok/s\n", 3.5, 3.5),
        (b"loss: 10.1 | dt: 123.45ms | tok/sec: 12,345 | mfu: 0.1\n", 10.1, 12345),
        (b"iter 10 step 5 | loss train: 4.012, val: 3.0 |\n", 4.012, None),
        (b"Step 4/50 | Loss: 2.9\nStep 5/50 | Loss: nan\n", None, None),
        (b"saving lossless_3.bin, no loss at all, val_loss=3, total_loss/x 4\n", None, None),
    ],
)
def test_the_last_loss_and_rate_that_were_printed(
    text: bytes, loss: float | None, tokens: float | None
) -> None:
    found = progress_in(text) or {}
    assert (found.get("loss"), found.get("tokens_per_s")) == (loss, tokens)


_PARTS = st.sampled_from(
    [
        "step ",
        "loss",
        ": ",
        "1",
        "1,234",
        "e9999",
        "9" * 15,
        " tok/s",
        "tps=",
        "'",
        "%|",
        "\x00",
        "\n",
    ]
)


@given(st.lists(st.one_of(_PARTS, st.text(max_size=8)), max_size=40).map("".join))
def test_no_line_is_too_strange(text: str) -> None:
    found = progress_in(text.encode("utf-8", "surrogatepass")) or {}
    assert not invalid(Step, found)


@pytest.mark.parametrize(
    "part", [b"1,234", b"loss ", b"loss:'", b"tps ", b"1.", b"tokens_per_s", b"epoch [1]"]
)
def test_lines_made_to_be_slow_are_not(part: bytes) -> None:
    began = time.process_time()
    progress_in(part * ((64 << 10) // len(part)))
    assert time.process_time() - began < 1


def test_the_start_of_the_log_shows_from_where_epochs_are_counted(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    lines = [f"Epoch {n // 20}/30, step {n % 20}/20 loss 1" for n in range(500)]
    (tmp_path / "ranks" / "0.log").write_text("\n".join(lines) + "\n" + "x" * (50 << 10))
    found = run_progress(NodePaths(str(tmp_path)))
    assert found is not None
    assert (found["step"], found["total"]) == (499, 600)
    from_1 = [f"Epoch {n // 20 + 1}/30, step {n % 20}/20 loss 1" for n in range(500)]
    (tmp_path / "ranks" / "0.log").write_text("\n".join(from_1))
    found = run_progress(NodePaths(str(tmp_path)))
    assert found is not None
    assert found["step"] == 499


def test_a_pattern_of_the_job_counts_first(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "0.log").write_bytes(
        b"step 1 loss 9\nseen 12 batches of 90, cost 2,5.5 [1e3 t]\n" + b"a" * 40 + b"!\n"
    )
    own = [r"seen (?P<step>\d+) .* of (?P<total>\d+)", r"\[(?P<tokens_per_s>\S+) t\]"]
    found = {"step": 12, "total": 90, "loss": 9, "tokens_per_s": 1000}
    assert run_progress(NodePaths(str(tmp_path)), own) == found
    began = time.monotonic()
    slow = r"(?P<step>(a+)+)$"
    for _ in range(5):
        assert run_progress(NodePaths(str(tmp_path)), [slow, "(", *own]) == found
    assert time.monotonic() - began < 5, "it was tried once"


def test_what_was_printed_before_the_first_step_hides_no_rate_of_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    lines = [b"loading\n", *(b"%d of 200\n" % n for n in range(40, 66))]
    (tmp_path / "ranks" / "0.log").write_bytes(b"".join(lines))
    size, times = 0, []
    for number, line in enumerate(lines):
        size += len(line)
        times.append(b"%.3f %d\n" % (time.time() - 2 * (len(lines) - number), size))
    (tmp_path / "ranks" / "0.times").write_bytes(b"".join(times))
    last = last_printed_line(NodePaths(str(tmp_path)), [r"(?P<step>\d+) of (?P<total>\d+)"])
    assert last is not None
    assert (last["own"]["step"], last["earlier"]["own"]) == (65, {"step": 40, "total": 200})


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
