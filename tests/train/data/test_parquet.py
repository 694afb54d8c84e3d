"""Parquet is read as the JSON lines that say the same: the same tokens, in parts of any size."""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from tests.train.data.test_dataset import contents
from train.__main__ import main
from train.config.config import Config
from train.data import dataset, fingerprint, token_cache
from train.data.files import lines
from train.data.files import parquet as own
from train.data.formats import record_of
from train.distributed.env import RankEnv
from train.errors import ConfigError

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"city": "a city"}}}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Bonn"}}}
ROWS: list[dict[str, Any]] = [
    {"text": "some words"},
    {"prompt": "Why? ", "completion": "So."},
    {"instruction": "Add.", "input": "1 and 2", "output": "3"},
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]},
    {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
    {
        "tools": [WEATHER],
        "messages": [
            {"role": "user", "content": "Rain?"},
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "name": "weather", "content": "no"},
            {"role": "assistant", "content": "It is dry."},
        ],
    },
]
"""A row of every form; in a table each has the columns of all, and each message all its fields."""
TEMPLATE = (
    "{% if tools %}{{ tools }}{% endif %}{% for m in messages %}[{{ m.role }}"
    "{% if 'name' in m %} {{ m.name }}{% endif %}]{{ m.content }}"
    "{% if 'tool_calls' in m %}{{ m.tool_calls }}{% endif %}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def write(path: Path, rows: list[dict[str, Any]], group: int | None = None) -> Path:
    parquet.write_table(pa.Table.from_pylist(_with_all(rows)), path, row_group_size=group)
    return path


def _with_all(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: row.get(key) for key in sorted({k for r in rows for k in r})} for row in rows]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def config(tiny: Path, tmp_path: Path) -> Config:
    model = tmp_path / "model"
    model.mkdir()
    for path in (tiny / "model").iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    (model / "chat_template.jinja").write_text(TEMPLATE)
    return Config(
        name_or_path=str(model), dataset_path="-", output_dir=str(tmp_path / "output"), seq_len=400
    )


@pytest.mark.torch
def test_rows_of_every_form_give_the_tokens_of_the_same_json_lines(
    config: Config, tmp_path: Path
) -> None:
    paths = (write(tmp_path / "a.parquet", ROWS), write_lines(tmp_path / "a.jsonl", ROWS))
    table, text = (
        dataset.prepare(replace(config, dataset_path=str(path)), RankEnv()) for path in paths
    )
    assert contents(table) == contents(text)
    assert len(contents(table)) == len(ROWS)
    assert table.key != text.key
    for number in range(len(ROWS)):
        ours, theirs = table.train.sample(number), text.train.sample(number)
        assert ours[1].tolist() == theirs[1].tolist()


@pytest.mark.torch
def test_tokens_and_key_depend_neither_on_shards_nor_on_the_number_of_nodes(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    rows = [{"text": f"row {number} " * (number % 7 + 1)} for number in range(200)]
    write(folder / "train-0.parquet", rows[:90], group=7)
    write(folder / "train-1.parquet", rows[90:], group=30)
    config = replace(config, dataset_path=str(folder))
    one = dataset.prepare(replace(config, cache_dir=config.output_dir + "/one"), RankEnv())
    monkeypatch.setattr(token_cache, "SHARD_BYTES", 300)
    many = dataset.prepare(config, RankEnv(node_rank=1, nodes=2))
    assert len(list((Path(config.output_dir) / "tokens").glob("*/shard-*"))) > 5
    assert contents(one) == contents(many)
    assert one.key == many.key
    strided = replace(config, node_data="strided")
    parts = [dataset.prepare(strided, RankEnv(node_rank=node, nodes=3)) for node in range(3)]
    assert [part.train.sets[0].column("line").tolist() for part in parts] == [
        list(range(node, 200, 3)) for node in range(3)
    ]


def test_columns_that_no_form_has_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    created = pa.array([1], pa.timestamp("ns"))  # Python's datetime cannot hold it
    parquet.write_table(pa.table({"text": ["a"], "created": created}), path)
    assert [line.content for line in lines.read((path,))] == [b'{"text": "a"}']


def test_mapped_columns_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    created = pa.array([1], pa.timestamp("ns"))
    columns = {"text": ["a"], "q": ["b"], "a": ["c"], "created": created}
    parquet.write_table(pa.table(columns), path)
    (line,) = lines.read((path,), columns=frozenset({"q", "a"}))
    assert record_of(line.content) == {"text": "a", "q": "b", "a": "c"}
    del columns["text"]
    parquet.write_table(pa.table(columns), path)
    (line,) = lines.read((path,), columns=frozenset({"q", "a"}))
    assert record_of(line.content) == {"q": "b", "a": "c"}


def test_a_value_that_python_cannot_hold_is_an_error_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"created": pa.array([1], pa.timestamp("ns"))}), path)
    with pytest.raises(ConfigError, match=r"a\.parquet: expected Parquet, found: Nanosecond"):
        list(lines.read((path,)))
    parquet.write_table(pa.table({"text": pa.array([1 << 30], pa.date32())}), path)
    with pytest.raises(ConfigError, match=r"a\.parquet: expected Parquet, found: days="):
        list(lines.read((path,)))


@pytest.mark.parametrize("parts", [1, 2, 5, 40])
def test_parts_are_all_rows_once(tmp_path: Path, parts: int) -> None:
    rows = [{"text": f"row {number}"} for number in range(100)]
    files = (
        write(tmp_path / "a.parquet", rows[:50], group=8),
        write_lines(tmp_path / "b.jsonl", rows[50:60]),
        write(tmp_path / "c.parquet", rows[60:], group=8),
    )
    found = fingerprint.scan(files, parts)
    ends = (*found.marks[1:], None)
    read = [
        list(lines.read(files, begin, end)) for begin, end in zip(found.marks, ends, strict=True)
    ]
    together = list(itertools.chain.from_iterable(read))
    assert together == list(lines.read(files))
    assert [record_of(line.content) for line in together] == rows
    assert [line.number for line in together] == list(range(100))
    assert together[49].where == f"{files[0]}:row 50"
    assert together[60].where == f"{files[2]}:row 1"
    assert sum(map(bool, read)) >= min(parts, 9)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 60),
    group=st.integers(1, 60),
    parts=st.integers(1, 12),
    batch=st.integers(1, 9),
)
def test_a_part_may_begin_within_a_row_group(
    tmp_path_factory: pytest.TempPathFactory, rows: int, group: int, parts: int, batch: int
) -> None:
    written = [{"text": f"row {number}"} for number in range(rows)]
    path = write(tmp_path_factory.mktemp("data") / "a.parquet", written, group=group)
    with mock.patch.object(own, "BATCH", batch):
        marks = fingerprint.scan((path,), parts).marks
        read = [
            list(lines.read((path,), begin, end))
            for begin, end in zip(marks, (*marks[1:], None), strict=True)
        ]
    assert [record_of(line.content) for part in read for line in part] == written
    assert max(map(len, read)) <= -(-rows // parts) + 1, "of about the same size"


def test_a_file_without_rows_is_no_fault(tmp_path: Path) -> None:
    empty, path = tmp_path / "a.parquet", write(tmp_path / "b.parquet", ROWS[:1])
    parquet.write_table(pa.table({"text": pa.array([], pa.string())}), empty)
    found = fingerprint.scan((empty, path), 2)
    read = [list(lines.read((empty, path), found.marks[0], found.marks[1]))]
    read.append(list(lines.read((empty, path), found.marks[1])))
    assert [record_of(line.content) for part in read for line in part] == ROWS[:1]


@pytest.mark.torch
def test_bad_rows_are_named(config: Config, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    cut = pa.array([b"some words", b"ab\xff", None, b"   "], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 4, cut.buffers())
    parquet.write_table(pa.table({"text": text}), path)
    config = replace(config, dataset_path=str(path))
    with pytest.raises(ConfigError) as caught:
        dataset.prepare(config, RankEnv())
    said = str(caught.value)
    assert f"{path}:row 2: expected UTF-8 text, found byte 0xff" in said
    assert f"{path}:row 3: expected text" in said
    assert f"{path}:row 4: text: expected some text" in said
    assert len(dataset.prepare(replace(config, max_bad_lines=3), RankEnv()).train) == 1


@pytest.mark.parametrize("damage", ["beginning", "pages"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path / "a.parquet", [{"text": f"row {number}"} for number in range(500)])
    content = path.read_bytes()
    if damage == "beginning":
        path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    else:
        path.write_bytes(content[:4] + b"\xff" * 2000 + content[2004:])
    with pytest.raises(ConfigError, match=rf"^{path}: expected Parquet, found: \w+"):
        list(lines.read((path,)))


def test_memory_does_not_grow_with_a_row_group(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = [f"{number} " * 500 for number in range(20_000)]
    table = pa.table({"text": rows})
    parquet.write_table(table, path, compression="none", use_dictionary=False)
    size = path.stat().st_size
    assert size > 40 << 20
    del table, rows
    before = pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - before for _ in lines.read((path,))]
    assert len(held) == 20_000
    assert max(held) < size / 4


@pytest.mark.torch
def test_without_pyarrow_the_file_is_named_and_what_to_install(
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write(tmp_path / "a.parquet", ROWS)
    for name in [name for name in sys.modules if name.split(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, name, None)
    given = ["--name-or-path", config.name_or_path, "--dataset-path", str(path)]
    assert main([*given, "--show-sample"]) == 2
    said = capsys.readouterr().err
    assert f"error: {path}: expected pyarrow" in said
    assert "hint: pip install pyarrow, on every node" in said
    assert main([*given, "--check", "--output-dir", str(tmp_path)]) == 2
    assert f"fail data {path}: expected pyarrow" in " ".join(capsys.readouterr().out.split())


@pytest.mark.torch
def test_check_and_show_sample_read_parquet(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.parquet", ROWS)
    given = ["--name-or-path", config.name_or_path, "--dataset-path", str(path)]
    assert main([*given, "--show-sample", "2"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"sample 2: {path}:row 2\n")
    assert "- Why? \n+ So.<eos>" in said
    main([*given, "--check", "--output-dir", str(tmp_path)])
    said = " ".join(capsys.readouterr().out.split())
    assert f"ok data dataset_path: a.parquet, 0.0 MiB, about {len(ROWS)} lines" in said
