"""Files and flags: where a value comes from, and where a mistake stands."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from train.__main__ import main
from train.config.config import Config
from train.config.datasets import IN_LINES, IN_MESSAGES
from train.config.foreign import FIELDS
from train.config.parse import TYPES, parse
from train.errors import USAGE, ConfigError

GUIDE = """\
model:
  name_or_path: "/workspace/models/GLM-4.5-Air"   # as the guides write it
  bf16: true
lora: {r: 8, alpha: 16, target_modules: [q_proj, v_proj]}
data:
  dataset_path: "/workspace/dataset/all_data.jsonl"
  sequence_len: 2048
  packing: true
per_device_train_batch_size: 4
gradient_accumulation_steps: 4
num_epochs: 3
learning_rate: 2e-5
warmup_steps: 100
save_steps: 20
save_total_limit: null
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def test_a_guides_file_is_understood(file: Path) -> None:
    file.write_text(GUIDE.replace("save_total_limit: null\n", ""))
    config = parse(["--config", str(file)]).config()
    assert config.name_or_path == "/workspace/models/GLM-4.5-Air"
    assert config.dtype == "bfloat16"
    assert (config.lora_r, config.lora_alpha) == (8, 16)
    assert config.lora_target_modules == ("q_proj", "v_proj")
    assert (config.seq_len, config.batching) == (2048, "packed")
    assert (config.num_train_epochs, config.learning_rate) == (3, 2e-5)


def test_flags_win_over_the_file_in_dashes_and_underscores(file: Path) -> None:
    file.write_text(GUIDE.replace("save_total_limit: null\n", ""))
    argv = ["--config", str(file), "--save-steps=5", "--resume_from_checkpoint", "latest"]
    argv += ["--set", "lora.r=32", "--set", "lr=1e-3", "--deterministic"]
    config = parse(argv).config()
    assert (config.save_steps, config.resume_from_checkpoint) == (5, "latest")
    assert (config.lora_r, config.learning_rate, config.deterministic) == (32, 1e-3, True)


def test_of_two_flags_the_last_one_holds() -> None:
    assert parse(["--seed=1", "--seed=2"]).given["seed"].value == 2


def test_every_mistake_has_its_file_and_line(file: Path) -> None:
    file.write_text(
        "learning_rte: 3\n"
        "lr: much\n"
        "num_nodes: 2\n"
        "seed: 1\n"
        "data_seed: 2\n"
        "extra: {a: 1}\n"
        "save_total_limit: null\n"
    )
    with pytest.raises(ConfigError) as caught:
        parse(["--config", str(file), "--nope=1", "word"])
    said = str(caught.value)
    assert f"{file}:1: learning_rte: unknown key; nearest: learning_rate" in said
    assert f"{file}:2: lr: expected a number, found 'much'" in said
    assert f"{file}:3: num_nodes: belongs to the launcher" in said
    assert f"{file}:5: data_seed: expected once, found again (first: {file}:4)" in said
    assert f"{file}:6: extra: expected a value or a section, found a mapping" in said
    assert f"{file}:7: save_total_limit: expected a whole number, found None" in said
    assert "\n--nope: unknown key" in said
    assert "word: expected a flag" in said


def test_a_conflict_is_told_with_the_line_of_its_key(file: Path) -> None:
    file.write_text("name_or_path: m\ndataset_path: d\nlora_r: 0\n")
    with pytest.raises(ConfigError, match=re.escape(f"{file}:3: lora_r: expected 1 or more")):
        parse(["--config", str(file)]).config()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "found an empty file"),
        ("- a\n", "found no mapping"),
        ("model:\n\tname_or_path: m\n", ":2: expected YAML"),
        ("a: [1\n", "expected YAML"),
        ("a: " + "[" * 2000, "expected YAML, found: maximum recursion depth"),
        (
            "datasets: [{? [a, b] : c}]\n",
            ":1: datasets: expected plain values, found: found unhash",
        ),
        (
            "data:\n  datasets: [!!python/object:os.system {}]\n",
            ":2: datasets: expected plain values, found: could not determine a constructor",
        ),
        ("datasets: [{path: [a]}]\n", ":1: datasets: expected a path, or path and weight, found"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(file: Path, text: str, wanted: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        parse(["--config", str(file)])
    assert wanted in str(caught.value)


def test_a_missing_or_binary_file_is_refused(file: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        parse(["--config", str(file)])
    file.write_bytes(b"a: \xff\n")
    with pytest.raises(ConfigError, match="UTF-8"):
        parse(["--config", str(file)])


def test_modes_exclude_each_other() -> None:
    assert parse(["--check"]).mode == "check"
    assert parse(["--smoke"]).mode == "smoke"
    assert parse([]).mode == "train"
    with pytest.raises(ConfigError, match="--smoke: not allowed with argument --check"):
        parse(["--check", "--smoke"])


@pytest.mark.parametrize(
    "argv", [["--config"], ["--check=1"], ["--show-sample", "x"], ["--set"], ["--nope"], ["word"]]
)
def test_every_wrong_command_line_is_an_error_with_a_hint(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == USAGE
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.startswith("error: ")
    assert last.startswith("hint: ")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_no_text_is_answered_with_a_traceback(tmp_path_factory: Any, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8", errors="replace")
    with contextlib.suppress(ConfigError):
        parse(["--config", str(path)]).config()


WORDS = st.text("abcdefgh-_/. 0123456789", min_size=1, max_size=12).filter(
    lambda text: text.strip() == text and text.lower() not in {"null", "none", "~"}
)


def values(name: str) -> st.SearchStrategy[Any]:
    """Return values of a key's type, within its range."""
    kind: Any = TYPES[name]
    item = Config.__dataclass_fields__[name]
    if isinstance(kind, types.UnionType):
        kind = next(part for part in typing.get_args(kind) if part is not types.NoneType)
    least = item.metadata["least"] or 0
    if typing.get_origin(kind) is typing.Literal:
        return st.sampled_from(typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        word = st.text("abc_.", min_size=1, max_size=8)
        return st.lists(word, min_size=1, max_size=3).map(tuple)
    if name in {"columns", "roles"}:
        keys = st.sampled_from(sorted(IN_LINES | IN_MESSAGES)) if name == "columns" else WORDS
        return st.dictionaries(keys, WORDS, max_size=3)
    if typing.get_origin(kind) is Mapping:
        return st.dictionaries(WORDS, st.one_of(st.booleans(), st.integers(), WORDS), max_size=3)
    return {
        bool: st.booleans(),
        int: st.integers(int(least), 10**6),
        float: st.floats(max(least, 0), 0.99) if least < 0.99 else st.floats(least, 1e3),
        str: WORDS,
    }[kind]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_what_is_written_is_read_again(tmp_path_factory: Any, data: st.DataObject) -> None:
    names = [item.name for item in dataclasses.fields(Config)]
    chosen = data.draw(st.lists(st.sampled_from(names), unique=True, max_size=8))
    given_values = {name: data.draw(values(name), label=name) for name in chosen}
    required = {"name_or_path": "m", "dataset_path": "d", "output_dir": "o"}
    try:
        config = Config(**(required | given_values))
    except ConfigError:
        return  # keys that exclude each other
    path = tmp_path_factory.getbasetemp() / "written.yaml"
    path.write_text(yaml.safe_dump(config.to_dict()), encoding="utf-8")
    assert parse(["--config", str(path)]).config() == config


def test_a_mapping_is_written_as_yaml_in_the_file_and_in_a_flag(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    text = "name_or_path: m\ndataset_path: d\n"
    path.write_text(f"{text}data:\n  chat_template_kwargs:\n    enable_thinking: false\n")
    assert parse(["--config", str(path)]).config().chat_template_kwargs == {
        "enable_thinking": False
    }
    flag = ["--chat-template-kwargs", "{enable_thinking: true, n: 2}"]
    found = parse(["--config", str(path), *flag]).config().chat_template_kwargs
    assert found == {"enable_thinking": True, "n": 2}
    with pytest.raises(ConfigError, match="chat_template_kwargs: expected a mapping, found 'yes'"):
        parse(["--set", "chat_template_kwargs=yes"])
    path.write_text("seed: {a: 1}\n")
    with pytest.raises(ConfigError, match="seed: expected a value or a section, found a mapping"):
        parse(["--config", str(path)])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "hint: python -m train --config FILE"),
        (["demo/config.yaml"], "a file is given as --config demo/config.yaml"),
        (["--confg", "a.yaml"], "--confg: unknown flag; nearest: --config"),
        (["--chekc"], "--chekc: unknown flag; nearest: --check"),
    ],
)
def test_a_newcomers_slip_is_told_the_way(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(words).config()
    assert said in str(caught.value)


def test_a_toml_file_says_what_the_yaml_file_says(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        """
name_or_path = "model"   # a remark
[data]
seq_len = 4_096
[[data.dataset_path]]
path = "a.jsonl"
[[data.dataset_path]]
path = "b.jsonl"
weight = 0.5
[optimization]
learning_rate = 2e-5
num_train_epochs = 1.5
deterministic = true
[lora]
r = 8
target_modules = ["q_proj", "v_proj"]
"""
    )
    config = parse(["--config", str(file)]).config()
    assert [(each.path, each.weight) for each in config.datasets] == [
        ("a.jsonl", 1),
        ("b.jsonl", 0.5),
    ]
    assert (config.seq_len, config.learning_rate, config.num_train_epochs) == (4096, 2e-5, 1.5)
    assert config.deterministic
    assert (config.lora_r, config.lora_target_modules) == (8, ("q_proj", "v_proj"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('a = 1\nname_or_path "m"\n', ":2: expected TOML, found: Expected '='"),
        ("[lora]\nr = 8\n\n[optimization]\nlerning_rate = 1\n", ":5: lerning_rate: unknown key"),
        ('[lora]\nr = "much"\n', ":2: lora_r: expected a whole number"),
        ("lora.r = 8\nlora.rr = 9\n", ":2: rr: unknown key"),
        ("# nothing\n", ":1: expected `key: value` lines, found an empty file"),
    ],
)
def test_what_is_wrong_in_a_toml_file_is_told_with_its_line(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        parse(["--config", str(tmp_path / "config.toml")])
    assert f"{tmp_path}/config.toml{said}" in str(caught.value)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("stag", "objective"),
        ("max_sample", ""),
        ("dropout", "lora_dropout"),
        ("max_step", "max_steps"),
    ],
)
def test_only_a_slip_of_a_key_is_told_its_name(written: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse([f"--{written}", "1"])
    nearest = f"; nearest: {meant}" if meant else ""
    assert f"--{written}: unknown key{nearest}\n" in str(caught.value)


@pytest.mark.parametrize("word", ["latest", "auto", "last", "true"])
def test_several_words_mean_the_newest_checkpoint(word: str) -> None:
    given = parse(["--resume-from-checkpoint", word]).given
    assert given["resume_from_checkpoint"].value == "latest"


@pytest.mark.parametrize("value", ["all", "[all]"])
def test_report_to_all_is_all_trackers(value: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(f"report_to: {value}\n")
    given = parse(["--config", str(tmp_path / "config.yaml")]).given
    assert given["report_to"].value == ("tensorboard", "wandb", "mlflow")


def test_help_names_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    said = capsys.readouterr().out
    assert all(name in said.split() for name in FIELDS)
    assert max(map(len, said.splitlines())) <= 80
