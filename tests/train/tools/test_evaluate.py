"""What is measured of a model on data is what an evaluation in a training measures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.train.tiny import LONGEST
from tests.train.world import World
from train.tools import evaluate

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")]


def test_the_loss_is_that_of_the_training(
    world: World, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = world.run(max_steps=2, eval_steps=2)
    words = [str(tiny / "model"), str(tiny / "eval.jsonl"), "--seq-len", str(LONGEST)]
    words += ["--max-new-tokens", "4", "--answers", "1", "--adapter", str(run.output / "adapter")]
    assert evaluate.main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["loss"] == pytest.approx(run.evaluations()[2], abs=1e-5)
    assert found["tokens"] == run.evaluations("eval_tokens")[2]
    (answer,) = found["answers"]
    assert answer.keys() == {"prompt", "answer", "expected"}


def test_what_cannot_be_measured_is_told(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        evaluate.main(["m"])
    assert evaluate.main(["m", "--tasks", "hellaswag"]) == 2
    assert "hint: pip install lm_eval" in capsys.readouterr().err
