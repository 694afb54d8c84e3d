"""A sample on a terminal: what is learned, and nothing that a terminal obeys."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from train.__main__ import main
from train.config.config import Config
from train.data import dataset, show_sample
from train.data.encoding import Sample

pytestmark = pytest.mark.torch


def test_a_sample_is_shown_with_its_line_and_what_is_learned(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data.jsonl"
    lines = [
        {"prompt": "Why?\n", "completion": f"So: \x1b[2J\u202e {'very ' * 30}中"},
        {"text": "long " * 200},
    ]
    data.write_text("\n".join(["{", *map(json.dumps, lines)]))
    model = str(tiny / "model")
    given = ["--name-or-path", model, "--dataset-path", str(data), "--seq-len", "300"]
    assert main([*given, "--show-sample"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"sample 1: {data}:2\n")
    assert "- Why?\\n\n+ So: \\x1b[2J\\u202e very" in said
    assert "last learned token: <eos> (0)" in said
    assert "\x1b" not in said
    assert all(len(line) <= 80 for line in said.splitlines()[1:])
    shown = said.split("\n\n")[1].splitlines()
    assert {line[0] for line in shown} == {"+", "-"}
    assert not list(tmp_path.glob("**/tokens")), "no cache is needed, none is made"
    assert main([*given, "--show-sample", "3"]) == 0
    assert f"sample 3: {data}:3\n" in capsys.readouterr().out
    assert main([*given, "--show-sample", "9"]) == 2
    said = capsys.readouterr().err
    assert f"{data}:1: expected a JSON object" in said
    wanted = "--show-sample: expected a number from 1 to "
    assert re.search(rf"{wanted}\d \(1 of 3 lines have no sample\), found 9\n", said)
    _shows_colors(Config(name_or_path=model, dataset_path=str(data), output_dir="o"))


@pytest.mark.parametrize("number", ["0", "-1"])
def test_a_number_below_1_is_refused_before_anything_is_read(
    number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--name-or-path", "nothing", "--dataset-path", "nothing"]
    assert main([*given, f"--show-sample={number}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: --show-sample: expected a number from 1 on, found {number}\n")


def test_lines_without_a_sample_are_named_with_the_reason(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data.jsonl"
    pair = {"prompt": "why " * 20, "completion": "so"}
    data.write_text(f"{json.dumps(pair)}\n{{\n")
    given = ["--name-or-path", str(tiny / "model"), "--dataset-path", str(data), "--seq-len=16"]
    assert main([*given, "--show-sample"]) == 2
    said = capsys.readouterr().err
    assert f"{data}:1: nothing to learn within seq_len 16" in said
    assert f"{data}:2: expected a JSON object" in said
    wanted = "expected lines that have a sample (2 of 2 lines have no sample), found none"
    assert f"--show-sample: {wanted}" in said
    assert main([*given, "--overlong=drop", "--show-sample"]) == 2
    assert re.search(r":1: dropped: \d+ tokens are more than seq_len 16", capsys.readouterr().err)


def test_columns_and_a_cut_are_those_of_the_training(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"q": "why ", "a": "so " * 20}))
    listed = f"[{{path: {data}, columns: {{prompt: q, completion: a}}}}]"
    given = ["--name-or-path", str(tiny / "model"), "--dataset-path", listed, "--seq-len=16"]
    assert main([*given, "--show-sample"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"16 tokens of seq_len 16, cut from \d\d: ", said)
    assert "- why \n+ so so" in said


def test_samples_are_counted_over_all_data_sets(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path in paths:
        path.write_text(f'{{"text": "first of {path.name}"}}\n{{"text": "second"}}\n')
    listed = f"[{paths[0]}, {{path: {paths[1]}, weight: 0.5}}]"
    given = ["--name-or-path", str(tiny / "model"), "--dataset-path", listed]
    assert main([*given, "--show-sample", "3"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"sample 3: {paths[1]}:1\n")
    assert "first of b.jsonl" in said


class Terminal(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def _shows_colors(config: Config) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("NO_COLOR", raising=False)
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", "40")
        colored = Terminal()
        assert show_sample.main(config, 1, colored) == 0
        patch.setenv("NO_COLOR", "1")
        plain = Terminal()
        assert show_sample.main(config, 1, plain) == 0
    found = colored.getvalue()
    assert "\x1b[2m- Why?\\n\x1b[0m\n\x1b[32m+ So: " in found
    without = found.replace("\x1b[2m", "").replace("\x1b[32m", "").replace("\x1b[0m", "")
    assert without == plain.getvalue(), "colors say nothing that signs do not"
    assert all(len(line) <= 40 for line in plain.getvalue().splitlines()[4:-2])


def test_a_wide_character_takes_two_columns_and_half_a_one_is_shown(tiny: Path) -> None:
    config = Config(name_or_path=str(tiny / "model"), dataset_path="d", output_dir="o")
    tokenizer: Any = dataset.load_tokenizer(tiny / "model", config)
    ids = tokenizer("中" * 10)["input_ids"]
    shown = show_sample.Shown(
        number=1, where="a:1", sample=Sample(ids=ids, loss_mask=[False] + [True] * (len(ids) - 1))
    )
    lines = list(show_sample.render(shown, tokenizer, 100, width=12))
    assert lines[4].startswith("- \ufffd")
    assert lines[-3][2:].count("中") <= 5
    assert sum(line.count("中") for line in lines[4:]) == 9
