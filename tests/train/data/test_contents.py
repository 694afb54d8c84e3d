"""A file that is something else is named once, with a command that makes a data set of it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from train.__main__ import main
from train.config.config import Config
from train.data import dataset
from train.data.files import contents
from train.distributed.env import RankEnv
from train.errors import ConfigError

pytestmark = pytest.mark.torch
ROWS = [{"text": f"some wörds {number}"} for number in range(5)]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)


@pytest.fixture
def config(tiny: Path, tmp_path: Path) -> Config:
    return Config(
        name_or_path=str(tiny / "model"), dataset_path="-", output_dir=str(tmp_path / "output")
    )


def refused(config: Config, path: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        dataset.prepare(replace(config, dataset_path=str(path)), RankEnv())
    assert len(str(caught.value).splitlines()) <= 3, "said once"
    assert "max_bad_lines=" not in str(caught.value)
    return caught.value


def typed(hint: str | None) -> None:
    """Type a hint."""
    assert hint
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # of an activated environment
    subprocess.run(["bash", "-c", hint], check=True, env=os.environ | {"PATH": path})


def make(path: Path, name: str) -> Path:
    """Write a file that is something else; return where its hint puts what can be read."""
    if name.endswith((".arrow", ".feather")):
        made = pa.Table.from_pylist(ROWS)
        new = pa.ipc.new_stream if name.endswith(".arrow") else pa.ipc.new_file
        with pa.OSFile(str(path), "wb") as sink, new(sink, made.schema) as writer:
            writer.write_table(made)
        return path.with_suffix(".rows.parquet")
    if name.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as zipped:
            zipped.writestr("a.jsonl", LINES)
        return path.with_name(f"{path.stem}.files")
    if ".tar" in name:
        content = LINES.encode()
        about = tarfile.TarInfo("inner.jsonl")
        about.size = len(content)
        with tarfile.open(path, "w:gz" if name.endswith(".gz") else "w") as archive:
            archive.addfile(about, io.BytesIO(content))
        return path.parent / "inner.jsonl"
    path.write_text("some wörds\nmore words\n")
    return path.with_suffix(".rows.jsonl")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("it's.txt", "found text: 'some wörds'"),
        ("words.jsonl", "found text: 'some wörds'"),
        ("a.arrow", "found an Arrow stream"),
        ("a.feather", "found an Arrow file"),
        ("a.zip", "found a ZIP archive"),
        ("a.tar", "found a tar archive"),
        ("a.tar.gz", "found a tar archive"),
    ],
)
def test_the_hint_makes_a_data_set_when_it_is_typed(
    config: Config, tmp_path: Path, name: str, found: str
) -> None:
    path = tmp_path / name
    target = make(path, name)
    error = refused(config, path)
    assert found in str(error)
    before = path.read_bytes()
    typed(error.hint)
    assert path.read_bytes() == before
    assert len(dataset.prepare(replace(config, dataset_path=str(target)), RankEnv()).train) >= 2


def test_the_start_of_an_archive_tells_what_it_is(config: Config, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    make(path, "a.zip")
    assert "found a ZIP archive" in str(refused(config, path))
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert "found a pointer of Git LFS\nhint: git -C " in str(refused(config, path))
    path.write_text("<!DOCTYPE html>\n<html>\n")
    assert "found HTML or XML" in str(refused(config, path))
    path.write_bytes(b"\x80\x04\0\0")
    assert "found binary data" in str(refused(config, path))
    path.write_text('not JSON\n{"text": "some words"}\n')
    corpus = dataset.prepare(replace(config, dataset_path=str(path), max_bad_lines=1), RankEnv())
    assert len(corpus.train) == 1, "one bad line does not make it another file"


@pytest.mark.parametrize("ending", [".jsonl", ".json", ".csv"])
@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("utf-16", "UTF-16"), ("utf-32", "UTF-32"), ("utf-16-le", "UTF-16LE"),
        ("utf-16-be", "UTF-16BE"), ("utf-32-le", "UTF-32LE"), ("utf-32-be", "UTF-32BE"),
    ],
)  # fmt: skip
def test_another_encoding_is_named_and_iconv_reads_it(
    config: Config, tmp_path: Path, written: str, found: str, ending: str
) -> None:
    path = tmp_path / f"a{ending}"
    text = {".jsonl": LINES, ".json": json.dumps(ROWS), ".csv": "text\nsome wörds\n"}[ending]
    path.write_bytes(text.encode(written))
    error = refused(config, path)
    assert f"expected UTF-8 text in {path}, found {found}\n" in str(error)
    typed(error.hint)
    target = path.with_suffix(f".utf8{ending}")
    assert len(dataset.prepare(replace(config, dataset_path=str(target)), RankEnv()).train) >= 1


@pytest.mark.parametrize("ending", [".jsonl", ".json", ".csv"])
@pytest.mark.parametrize("some", [False, True])
def test_windows_1252_is_named_and_iconv_reads_it(
    config: Config, tmp_path: Path, *, ending: str, some: bool
) -> None:
    path = tmp_path / f"a{ending}"
    rows = [*ROWS, *([{"text": "plain words"}] if some else [])]
    text = {
        ".jsonl": "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows),
        ".json": json.dumps(rows, ensure_ascii=False),
        ".csv": "\n".join(["text", *(row["text"] for row in rows)]),
    }[ending]
    path.write_bytes(text.encode("windows-1252"))
    with pytest.raises(ConfigError, match=r"found byte 0xf6 \(Windows-1252 or") as caught:
        dataset.prepare(replace(config, dataset_path=str(path)), RankEnv())
    typed(caught.value.hint)
    target = path.with_suffix(f".utf8{ending}")
    made = dataset.prepare(replace(config, dataset_path=str(target)), RankEnv()).train
    assert len(made) == len(rows)


def test_a_fault_of_all_lines_is_said_once_and_not_to_be_left_out(
    config: Config, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"txt": "a"}\n' * 50)
    said = str(refused(config, path))
    assert said.startswith(f"{path}:1: expected text, messages, ")
    assert said.endswith("found the keys txt (50 lines, which is all)")
    path.write_text('{"txt": "a"}\n' * 50 + "{\n" * 2)
    said = str(refused(config, path))
    assert "found the keys txt (50 lines)\n" in said
    assert f"{path}:51: expected a JSON object" in said


def test_check_names_what_a_file_is(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES.encode("utf-16"))
    given = ["--name-or-path", config.name_or_path, "--dataset-path", str(path)]
    assert main([*given, "--check", "--output-dir", str(tmp_path)]) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert f"fail data dataset_path: expected UTF-8 text in {path}, found UTF-16" in said
    assert "hint: iconv -f UTF-16 -t UTF-8" in said


def test_every_way_out_is_of_a_file_that_people_take_for_data() -> None:
    assert set(contents.OTHER) <= set(contents.WAYS_OUT)
