"""What a node sends of a training's steps: of metrics.jsonl, or of what it wrote instead."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, cast

import pytest

from clusterctl.logs.metrics import Metrics, read_metrics
from clusterctl.node.agent.call_channel import CallChannel
from clusterctl.node.history import metrics as module
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.wire import Message
from tests.node.checkpoints.test_origin import run_folder


def asked(folder: Path, *paths: str, **more: Any) -> Message:
    args: dict[str, Any] = {"workdir": str(folder), "paths": list(paths), **more}
    return module.metrics(args, b"", cast("CallChannel", None))


def test_the_first_file_that_exists_is_sent(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"st')
    found = asked(tmp_path, "absent", "out")
    assert found.head == {"file": str(tmp_path / "out" / "metrics.jsonl"), "every": 1}
    assert found.body == b'{"step": 1}\n{"step": 2}\n'
    assert asked(tmp_path, "out/metrics.jsonl").body == found.body
    assert asked(tmp_path, "absent").head == {"file": "", "every": 1}


def test_a_file_that_two_runs_may_have_written_to_counts_as_none(tmp_path: Path) -> None:
    state, now = tmp_path / "state", time.time()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    run_folder(state, "one", now - 100, now + 100, world_size=1)
    of_run = {"cluster": "c", "run": "one", "node": "n", "state": str(state), "printed": True}
    assert asked(tmp_path, ".", **of_run).head["file"] != ""
    run_folder(state, "two", now - 50, now + 100, world_size=1)
    assert asked(tmp_path, ".", **of_run).head["file"] == ""


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    assert asked(tmp_path, ".").head["file"] == ""


def test_a_step_with_an_evaluation_stays_in_its_place(tmp_path: Path) -> None:
    rows = [{"step": 1, "loss": 3}, {"step": 2, "loss": 2, "eval_loss": 2}, {"step": 3, "loss": 1}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = read_metrics(asked(tmp_path, ".").body)
    assert read.curve("loss") == ((1, 3), (2, 2), (3, 1))
    assert read.curve("eval_loss") == ((2, 2),)


def test_a_long_file_is_thinned_evenly_and_keeps_its_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES", 2000)
    with (tmp_path / "metrics.jsonl").open("w") as file:
        for step in range(1000):
            file.write(json.dumps({"step": step, "loss": 1.0}) + "\n")
            if step % 250 == 0:
                file.write(json.dumps({"kind": "eval", "step": step, "eval_loss": 2.0}) + "\n")
        file.write("x" * 200_000 + "\n")
    found = asked(tmp_path, ".")
    read = read_metrics(found.body)
    every = found.head["every"]
    assert len(found.body) <= 4000
    assert [step for step, _ in read.curve("loss")] == list(range(0, 1000, every))
    assert [step for step, _ in read.curve("eval_loss")] == [0, 250, 500, 750]


def printed(folder: Path, log: str, **job: Any) -> Metrics:
    """Return what is read of a run that printed a line every second, in out/ or its log."""
    paths = NodePaths.of({"state": str(folder), "cluster": "c", "run": "r", "node": "n"})
    if not Path(paths.folder).exists():
        paths.create()
    Path(paths.job).write_text(json.dumps({"run": "r", **job}))
    os.utime(paths.job, (1000, 1000))
    file = Path(paths.folder, "ranks", "0.log")
    file.write_text(log)
    ends = [at + 1 for at, letter in enumerate(log) if letter == "\n"]
    notes = (f"{1000 + second}.000 {end}\n" for second, end in enumerate(ends))
    file.with_suffix(".times").write_text("".join(notes))
    run = {"state": str(folder), "cluster": "c", "run": "r", "node": "n"}
    found = asked(folder, "out", printed=True, **run)
    return read_metrics(found.body, file=found.head["file"], every=found.head["every"])


BAR = "\r {0:2}%|#    | {0}/40 [00:10<02:00,  1.00s/it]"
EVALUATED = "\r 50%|#    | 1/2 [00:00<00:00,  9.00it/s]\n{'eval_loss': '2.5', 'epoch': '0.1'}\n"


def test_steps_are_read_from_what_the_trainer_printed(tmp_path: Path) -> None:
    # tqdm prints the loss, then draws its bar again; the bar before it may be older.
    shown = [BAR.format(n - 1) + f"\r{{'loss': {5 - n}, 'epoch': 0.1}}\n{BAR.format(n)}" for n in
             range(1, 5)]  # fmt: skip
    read = printed(tmp_path, "".join(shown) + EVALUATED)
    assert read.curve("loss") == ((1, 4), (2, 3), (3, 2), (4, 1))
    assert (read.last_step, read.file.rsplit("/", 1)[1]) == (4, "0.log")
    again = printed(tmp_path, "".join(shown) + BAR.format(1) + "\r{'loss': 9}\n" + BAR.format(2))
    assert again.curve("loss") == ((1, 4), (2, 9))


def test_steps_are_read_from_what_ms_swift_printed(tmp_path: Path) -> None:
    line = "{{'loss': '{0}.5', 'epoch': '0.1', 'global_step/max_steps': '{0}/8'}}"
    shown = [f"\rTrain: 12%|# | {n}/8 [00:02<00:12]\n{line.format(n)}\n" for n in range(1, 9)]
    end = "{'train_runtime': '18.7', 'train_loss': '5.6', 'global_step/max_steps': '8/8'}\n"
    assert printed(tmp_path, "".join(shown) + end).curve("loss")[-1] == (8, 8.5)


def test_steps_are_read_by_the_patterns_of_the_job(tmp_path: Path) -> None:
    log = "".join(f"seen {n} of 20; cost={n / 10}, {n * 100} t/s, tps: 7\n" for n in range(1, 21))
    pattern = r"seen (?P<step>\d+) of (?P<total>\d+); cost=(?P<loss>[\d.]+), (?P<tokens_per_s>\d+)"
    read = printed(tmp_path, log, progress=[pattern])
    assert read.curve("loss")[-1] == (20, 2.0)
    assert (read.tokens_per_s, read.step_median_s) == (1100, 1.0)
    assert printed(tmp_path, "Step 3/9 | tps: 700\n").curve("tokens_per_s") == ()
    assert not printed(tmp_path, "hello\n").steps


def test_losses_are_those_of_the_trainers_newest_state_of_this_run(tmp_path: Path) -> None:
    history = [{"step": 5, "loss": 3.0}, {"step": 10, "loss": 2.0}, {"step": 10, "eval_loss": 2.5}]
    for number, written in ((10, 1100), (99, 900)):
        folder = tmp_path / "out" / f"checkpoint-{number}"
        folder.mkdir(parents=True)
        end = {"step": number, "train_loss": 2.5, "train_runtime": 9.0}
        state = folder / "trainer_state.json"
        state.write_text(json.dumps({"log_history": [*history, {"step": 4, "loss": number}, end]}))
        os.utime(state, (written, written))
    read = printed(tmp_path, "".join(f"{BAR.format(n)}\n" for n in range(1, 12)))
    assert read.curve("loss") == ((4, 10), (5, 3), (10, 2))
    assert read.curve("eval_loss") == ((10, 2.5),)
    assert (read.last_step, read.step_median_s) == (11, 1.0)
    assert read.file.endswith("checkpoint-10/trainer_state.json")
