"""Data sets as a file or a flag names them: what is taken, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.config.config import Config
from train.config.datasets import Dataset
from train.config.parse import parse
from train.errors import ConfigError

REST = "name_or_path: m\n"


def read(folder: Path, text: str) -> Config:
    path = folder / "config.yaml"
    path.write_text(REST + text)
    return parse(["--config", str(path)]).config()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("dataset_path: a.jsonl\n", (Dataset(path="a.jsonl"),)),
        ("data:\n  dataset_path: [a.jsonl, '2']\n", (Dataset(path="a.jsonl"), Dataset(path="2"))),
        (
            "datasets:\n- path: org/a\n- path: ~/b\n  weight: 1e-1\n- c\n",
            (
                Dataset(path="org/a"),
                Dataset(path=str(Path("~/b").expanduser()), weight=0.1),
                Dataset(path="c"),
            ),
        ),
        (
            "dataset_path:\n- {path: a, columns: {text: body}, roles: {user: [guest], b: tool}}\n",
            (Dataset(path="a", columns={"text": "body"}, roles={"guest": "user", "b": "tool"}),),
        ),
    ],
)
def test_a_path_or_a_list_is_taken(tmp_path: Path, text: str, wanted: tuple[Dataset, ...]) -> None:
    config = read(tmp_path, text)
    assert config.datasets == wanted


def test_a_flag_has_the_list_as_yaml() -> None:
    flag = "dataset_path=[a.jsonl, {path: b.parquet, weight: 2}]"
    config = parse(["--set", flag, "--name-or-path=m"]).config()
    assert config.datasets == (Dataset(path="a.jsonl"), Dataset(path="b.parquet", weight=2))
    with pytest.raises(ConfigError, match=r"--set dataset_path: expected a list of"):
        parse(["--set", "dataset_path=[a"])


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    config = read(tmp_path, "dataset_path: [a, {path: b, weight: 0.5}]\n")
    again = parse(["--set", f"dataset_path={config.to_dict()['dataset_path']}"])
    assert again.config(name_or_path="m") == config


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ("{path: b, weight: 0}", "expected a weight above 0 for b, found 0"),
        ("{path: b, weight: -2}", "expected a weight above 0 for b, found -2"),
        ("{path: b, weight: .inf}", "expected a weight above 0 for b, found inf"),
        ("{path: b, weight: much}", "expected a number as the weight of b, found 'much'"),
        ("{path: b, weight: true}", "expected a number as the weight of b, found True"),
        ("{path: b, weight: [1]}", "expected a number as the weight of b, found [1]"),
        ("{path: b, columns: {texts: a}}", "expected keys out of answer, chat_template_kwargs"),
        ("{path: b, columns: {text: 1}}", "expected a mapping of keys to names of columns as"),
        ("{path: b, roles: [a]}", "expected a mapping as the roles of b, found ['a']"),
        ("{path: b, roles: {user: [1]}}", "expected a mapping of names to roles"),
        ("{path: b, type: alpaca}", "expected path, weight, columns and roles, found type in b"),
        ("{weight: 2}", "expected a path, or path and weight, found {'weight': 2}"),
        ("{path: ''}", "expected a path in each item of the list, found none"),
        ("./a", "expected ./a once (weight: 2 has its samples twice), found it again"),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(tmp_path: Path, items: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, f"dataset_path:\n- a\n- {items}\n")
    assert f"{tmp_path / 'config.yaml'}:2: dataset_path: {said}" in str(caught.value)


def test_an_empty_list_is_no_data(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dataset_path: expected a \.jsonl, "):
        read(tmp_path, "dataset_path: []\n")
