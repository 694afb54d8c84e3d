"""What is measured of a model on data is what an evaluation in a training measures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.train.tiny import LONGEST
from tests.train.world import World
from train.tools import evaluate, generate

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")]


def test_the_loss_is_that_of_the_training(
    world: World, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
    other = tmp_path / "other"
    shutil.copytree(tiny / "model", other)
    tokenizer = other / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    words[0] = str(other)
    assert (
        evaluate.main(words)
        == generate.main(["--model", str(other), "--adapter", words[-1], "--prompt", "one"])
        == 2
    )
    err = capsys.readouterr().err
    assert err.count(f"{other}: expected the files that {words[-1]} was trained on") == 2
    assert "--other-base takes this one" in err
    assert evaluate.main([*words, "--other-base"]) == 0


def test_what_cannot_be_measured_is_told(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        evaluate.main(["m"])
    assert evaluate.main(["m", "--tasks", "hellaswag"]) == 2
    assert "hint: pip install lm_eval" in capsys.readouterr().err
