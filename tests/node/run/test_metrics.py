"""What a node sends of a training's metrics.jsonl."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

import pytest

from clusterctl.logs.metrics import read_metrics
from clusterctl.node.agent.call_channel import CallChannel
from clusterctl.node.run.operations import metrics as module
from clusterctl.wire import Message


def asked(folder: Path, *paths: str) -> Message:
    args: dict[str, Any] = {"workdir": str(folder), "paths": list(paths)}
    return module.metrics(args, b"", cast("CallChannel", None))


def test_the_first_file_that_exists_is_sent(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"st')
    found = asked(tmp_path, "absent", "out")
    assert found.head == {"file": str(tmp_path / "out" / "metrics.jsonl"), "every": 1}
    assert found.body == b'{"step": 1}\n{"step": 2}\n'
    assert asked(tmp_path, "out/metrics.jsonl").body == found.body
    assert asked(tmp_path, "absent").head == {"file": "", "every": 1}


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
