"""Files as people have them give the tokens of the JSON lines that say the same."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import itertools
import json
import lzma
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.train.data.test_dataset import contents
from train.__main__ import main
from train.config.config import Config
from train.data import dataset, fingerprint, token_cache
from train.data.files import csv_rows, json_values, lines, streams
from train.data.formats import Rules, record_of
from train.distributed.env import RankEnv
from train.errors import ConfigError

ROWS: list[dict[str, str]] = [
    {"prompt": 'Why "so"? ', "completion": "Bécause, of\nthis.\n"},
    {"prompt": "", "completion": "日本 \U0001f642 [{"},
    {"prompt": "a;b\tc, ", "completion": '{"x": ["\\"]"]}'},
]


def json_lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def array(rows: list[dict[str, Any]], indent: int | None = None) -> bytes:
    return json.dumps(rows, ensure_ascii=False, indent=indent).encode()


def objects(rows: list[dict[str, Any]]) -> bytes:
    return "\n".join(json.dumps(row, indent=2) for row in rows).encode()


def table(rows: list[dict[str, Any]], delimiter: str = ",") -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress, "zst": zstd, "bz2": bz2.compress, "xz": lzma.compress,
}  # fmt: skip
BOM = b"\xef\xbb\xbf"
FILES = {
    "array.json": array(ROWS),
    "pretty.json": array(ROWS, indent=2),
    "array.jsonl": array(ROWS),
    "with_a_mark.json": BOM + array(ROWS),
    "objects.json": objects(ROWS),
    "objects.jsonl": b"\n" + objects(ROWS) + b"\n\n",
    "lines.json": json_lines(ROWS),
    "table.csv": table(ROWS),
    "with_a_mark.csv": BOM + table(ROWS),
    "semicolons.csv": table(ROWS, ";"),
    "TABLE.TSV": table(ROWS, "\t"),
    **{f"lines.jsonl.{name}": pack(json_lines(ROWS)) for name, pack in PACKED.items()},
    **{f"two_frames.{name}": pack(json_lines(ROWS[:1])) + pack(json_lines(ROWS[1:]))
       for name, pack in PACKED.items()},
    "array.json.gz": gzip.compress(array(ROWS, indent=1)),
    "table.csv.zst": zstd(table(ROWS)),
    "compressed.jsonl": gzip.compress(json_lines(ROWS)),
}  # fmt: skip


@pytest.fixture
def config(tiny: Path, tmp_path: Path) -> Config:
    return Config(
        name_or_path=str(tiny / "model"),
        dataset_path="-",
        output_dir=str(tmp_path / "output"),
        seq_len=400,
    )


def samples(config: Config, path: Path) -> list[list[list[int]]]:
    corpus = dataset.prepare(replace(config, dataset_path=str(path)), RankEnv())
    return [[part.tolist() for part in corpus.train.sample(n)] for n in range(len(corpus.train))]


@pytest.mark.torch
def test_each_gives_the_tokens_of_the_same_json_lines(config: Config, tmp_path: Path) -> None:
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(json_lines(ROWS))
    wanted = samples(config, plain)
    assert len(wanted) == len(ROWS)
    for name, content in FILES.items():
        path = tmp_path / name
        path.write_bytes(content)
        assert samples(config, path) == wanted, name


@pytest.mark.torch
def test_a_person_sees_the_place_in_the_file(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--name-or-path", config.name_or_path, "--dataset-path"]
    for name, place in (("pretty.json", "item 2"), ("table.csv", "row 3"), ("lines.jsonl.gz", "2")):
        path = tmp_path / name
        path.write_bytes(FILES[name])
        assert main([*given, str(path), "--show-sample", "2"]) == 0
        assert capsys.readouterr().out.startswith(f"sample 2: {path}:{place}\n")
        main([*given, str(path), "--check", "--output-dir", str(tmp_path)])
        said = " ".join(capsys.readouterr().out.split())
        assert f"ok data dataset_path: {name}, 0.0 MiB, about" in said


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(
        st.lists(st.text('ab"\\\n,[é🙂', max_size=30), max_size=6), min_size=1, max_size=3
    ),
    kind=st.sampled_from(["jsonl", "json", "pretty.json", "csv", "tsv"]),
    packed=st.sampled_from(["", "gz", "zst"]),
    parts=st.integers(1, 9),
    block=st.integers(1, 40),
    places=st.integers(1, 8),
)
def test_parts_are_all_rows_once_wherever_blocks_end(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[list[str]],
    kind: str,
    packed: str,
    parts: int,
    block: int,
    places: int,
) -> None:
    folder = tmp_path_factory.mktemp("data")
    rows = [[{"text": text, "n": str(n)} for n, text in enumerate(of_file)] for of_file in texts]
    files = []
    for number, of_file in enumerate(rows):
        empty = [{"text": "", "n": ""}]
        content = {
            "jsonl": json_lines(of_file),
            "json": array(of_file),
            "pretty.json": array(of_file, indent=1),
            "csv": table(of_file or empty),
            "tsv": table(of_file or empty, "\t"),
        }[kind]
        if kind in {"csv", "tsv"} and not of_file:
            of_file.extend(empty)  # a table has a first row
        files.append(folder / f"{number}.{kind}{'.' if packed else ''}{packed}")
        files[-1].write_bytes(PACKED[packed](content) if packed else content)
    with (
        mock.patch.object(lines, "BLOCK", block),
        mock.patch.object(json_values, "BLOCK", block),
        mock.patch.object(streams, "BLOCK", block),
        mock.patch.object(streams, "MOST_PLACES", places),
    ):
        found = fingerprint.scan(tuple(files), parts)
        ends = (*found.marks[1:], None)
        read = [
            list(lines.read(tuple(files), begin, end))
            for begin, end in zip(found.marks, ends, strict=True)
        ]
    together = list(itertools.chain.from_iterable(read))
    assert together == list(lines.read(tuple(files)))
    assert [record_of(line.content) for line in together] == [*itertools.chain(*rows)]
    numbers = [line.number for line in together]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("name", ["a.json", "a.csv", "a.jsonl.gz", "a.json.zst", "a.csv.xz"])
def test_a_large_file_has_parts_of_about_the_same_size(tmp_path: Path, name: str) -> None:
    made = [{"text": f"{number * 7919 % 10007} {number}"} for number in range(20_000)]
    kind, *packed = name.split(".")[1:]
    content = array(made) if kind == "json" else table(made) if kind == "csv" else json_lines(made)
    path = tmp_path / name
    path.write_bytes(PACKED[packed[0]](content) if packed else content)
    marks = fingerprint.scan((path,), 4).marks
    sizes = [end.line - begin.line for begin, end in itertools.pairwise(marks)]
    assert min(sizes) > 4500, sizes
    with mock.patch.object(streams, "BLOCK", 1000):
        again = fingerprint.scan((path,), 4).marks
    assert again == marks, "nodes whose libraries read other blocks share the work"


@pytest.mark.torch
def test_tokens_do_not_depend_on_shards(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [{"text": f"row {number} é " * (number % 7 + 1)} for number in range(300)]
    for name, content in (("a.json", array(made, 1)), ("a.csv.gz", gzip.compress(table(made)))):
        path = tmp_path / name
        path.write_bytes(content)
        config = replace(config, dataset_path=str(path), output_dir=str(tmp_path / f"{name}.out"))
        one = dataset.prepare(replace(config, cache_dir=f"{config.output_dir}/one"), RankEnv())
        with monkeypatch.context() as patch:
            patch.setattr(token_cache, "SHARD_BYTES", 500)
            many = dataset.prepare(config, RankEnv(node_rank=1, nodes=2))
        assert len(list(Path(config.output_dir).glob("tokens/*/shard-*"))) > 2
        assert contents(one) == contents(many)
        assert len(contents(one)) == len(made)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    made = [{"text": f"{number} " * 2000} for number in range(3000)]
    for name, content in (
        ("a.json", array(made)),
        ("a.csv", table(made)),
        ("a.jsonl.gz", gzip.compress(json_lines(made), 1)),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        assert streams.size(path) > 20 << 20
        del content
        tracemalloc.start()
        found = sum(1 for _ in lines.read((path,)))
        fingerprint.scan((path,), 4)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert found == len(made)
        assert most < 10 << 20, (name, most)


@pytest.mark.torch
def test_structured_columns_of_a_table_hold_json(config: Config, tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    path = tmp_path / "a.csv"
    path.write_bytes(table([{"messages": json.dumps(chat), "tools": ""}]))
    (line,) = lines.read((path,))
    assert Rules().record_of(line.content) == {"messages": chat}
    path.write_bytes(table([{"messages": "[not JSON"}]))
    (line,) = lines.read((path,))
    assert Rules().record_of(line.content) == {"messages": "[not JSON"}


@pytest.mark.torch
def test_a_quote_that_swallows_rows_of_a_table_is_refused(config: Config, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text\nfirst\n"open\n' + "row\n" * 1000)
    with pytest.raises(ConfigError, match=r"a\.csv:row 3: .* 1001 lines are in one cell"):
        dataset.prepare(replace(config, dataset_path=str(path), max_bad_lines=5), RankEnv())


@pytest.mark.torch
def test_rows_of_a_table_that_cannot_be_used_are_named(config: Config, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(
        b'text,\n"two\nlines",1\n\nunquoted, comma,2\ngood,3\n"x"y,4\nl\xe9,5\nfew\n"open,6\n'
    )
    config = replace(config, dataset_path=str(path))
    with pytest.raises(ConfigError) as caught:
        dataset.prepare(config, RankEnv())
    said = str(caught.value)
    assert f"{path}:row 4: expected 2 cells as in row 1, found 3" in said
    assert f"{path}:row 6: expected a row of cells, found: ',' expected after" in said
    assert f"{path}:row 7: expected UTF-8 text, found byte 0xe9 (Windows-1252 or Latin-1?)" in said
    assert f"{path}:row 8: expected 2 cells as in row 1, found 1" in said
    assert f"{path}:row 9: expected a row of cells, found: unexpected end of data" in said
    assert len(dataset.prepare(replace(config, max_bad_lines=5), RankEnv()).train) == 2
    path.write_bytes(b"text,text\na,b\n")
    with pytest.raises(
        ConfigError, match=r"a\.csv:row 1: expected a name for .*, found text twice"
    ):
        dataset.prepare(config, RankEnv())


@pytest.mark.parametrize(
    ("content", "line", "found"),
    [
        (b'[\n{"text": "a"},\n{"text": b}\n]', 3, "Expecting value"),
        (b'[\n{"text": "a"}\n{"text": "b"}]', 3, "{, where , should be"),
        (b'[\n{"text": "a"},\n', 3, "Expecting value"),
        (b'[\n{"text": "a"}\n', 3, "the end, where , should be"),
        (b'[{"text": "a"}]\n[{"text": "b"}]', 2, "[, where the end should be"),
        (b'[\n{"text": "a', 2, "Unterminated string"),
        (b'[\n{"a": 1},\n' + b"[" * 200_000, 3, "too many brackets"),
        (b'{\n"text": "a"}\n{\n"text" "b"}', 4, "Expecting ':'"),
    ],
)
def test_json_that_ends_or_breaks_is_named_with_its_line(
    tmp_path: Path, content: bytes, line: int, found: str
) -> None:
    for name, whole in (("a.json", content), ("b.json", gzip.compress(content))):
        path = tmp_path / name
        path.write_bytes(whole)
        with pytest.raises(ConfigError) as caught:
            fingerprint.scan((path,), 2)
        assert str(caught.value).startswith(f"{path}:{line}: expected JSON, found")
        assert found in str(caught.value)


def test_a_number_is_read_whole_wherever_blocks_end(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[1234567, -1.5e10]")
    for block in range(1, 9):
        with mock.patch.object(json_values, "BLOCK", block):
            assert [line.content for line in lines.read((path,))] == [b"1234567", b"-1.5e10"]


@pytest.mark.parametrize("name", PACKED)
def test_a_compressed_file_that_is_cut_off_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"a.jsonl.{name}"
    content = PACKED[name](b"".join(b'{"text": "%d"}\n' % (n * 7919 % 10007) for n in range(9999)))
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ConfigError, match=rf"{path}: expected a whole \w+ file, found: \w+"):
        list(lines.read((path,)))


@pytest.mark.torch
def test_without_pyarrow_zstd_is_named_and_what_to_install(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(FILES["lines.jsonl.zst"])
    for name in [name for name in sys.modules if name.split(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"which reads zstd(?s:.*)hint: pip install pyarrow, on"):
        dataset.prepare(replace(config, dataset_path=str(path)), RankEnv())


@pytest.mark.torch
def test_the_key_is_of_the_content_and_not_of_its_time_or_name(
    config: Config, tmp_path: Path
) -> None:
    one, two, three = (tmp_path / name for name in ("a.json", "b.json", "c.csv"))
    one.write_bytes(array(ROWS))
    two.write_bytes(array(ROWS))
    three.write_bytes(table(ROWS))
    keys = [
        dataset.prepare(replace(config, dataset_path=str(path)), RankEnv()).key
        for path in (one, two, three)
    ]
    assert keys[0] == keys[1] != keys[2]


def test_a_long_cell_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(table([{"text": "x" * 300_000}]))
    (line,) = lines.read((path,))
    assert line.content == b'{"text": "' + b"x" * 300_000 + b'"}'
    assert csv_rows.LONGEST > 300_000
