"""A model is whole if every shard of its index is there at its full length."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.node.probe import model_files
from clusterctl.node.probe.model_files import check_model
from clusterctl.node.probe.path_probe import probe_path

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def shard(tensor: str, *, cut: int = 0) -> bytes:
    header = json.dumps({tensor: {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}}).encode()
    whole = struct.pack("<Q", len(header)) + header + bytes(64)
    return whole[: len(whole) - cut]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Write a whole model of two shards."""
    for number, name in enumerate(SHARDS):
        (tmp_path / name).write_bytes(shard(f"t{number}"))
    index = {"metadata": {}, "weight_map": {f"t{n}": name for n, name in enumerate(SHARDS)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text('{"vocab_size": 9}')
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def checked(folder: Path) -> tuple[list[str], list[str]]:
    seen = probe_path({"path": str(folder), "digest": True})
    return seen["faults"], seen["lacks"]


def test_a_whole_model_has_no_fault(model: Path) -> None:
    assert checked(model) == ([], [])


def test_a_shard_that_the_index_names_is_missing(model: Path) -> None:
    (model / SHARDS[1]).unlink()
    fault = f"{SHARDS[1]} is missing, but model.safetensors.index.json names it"
    assert checked(model) == ([fault], [])


def test_a_link_to_a_file_that_was_never_downloaded_is_missing(model: Path) -> None:
    (model / SHARDS[0]).unlink()
    (model / SHARDS[0]).symlink_to("../blobs/abc")
    assert checked(model)[0][0].startswith(f"{SHARDS[0]} is missing")


@pytest.mark.parametrize("cut", [1, 64, 70])
def test_a_cut_shard_is_told_by_its_header(model: Path, cut: int) -> None:
    (model / SHARDS[0]).write_bytes(shard("t0", cut=cut))
    (fault,) = checked(model)[0]
    assert SHARDS[0] in fault


def test_a_model_below_the_needed_folder_is_checked_too(model: Path) -> None:
    inner = model / "inner"
    inner.mkdir()
    for path in list(model.glob("*.*")):
        path.rename(inner / path.name)
    (inner / SHARDS[0]).unlink()
    assert checked(model)[0][0].startswith(f"inner/{SHARDS[0]} is missing")


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": 3}', "[" * 5000])
def test_an_index_that_was_cut_is_a_fault(model: Path, text: str) -> None:
    (model / "model.safetensors.index.json").write_text(text)
    assert checked(model)[0] == ["model.safetensors.index.json is not a valid index"]


@pytest.mark.parametrize(
    ("removed", "lacks"),
    [("tokenizer.json", ["tokenizer files"]), ("config.json", ["config.json"])],
)
def test_what_belongs_beside_the_weights(model: Path, removed: str, lacks: list[str]) -> None:
    (model / removed).unlink()
    assert checked(model) == ([], lacks)


def test_a_model_of_images_needs_no_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    (model / "config.json").write_text('{"image_size": 224}')
    assert checked(model) == ([], [])


def test_an_adapter_needs_no_config(tmp_path: Path) -> None:
    (tmp_path / "adapter_model.safetensors").write_bytes(shard("a"))
    assert checked(tmp_path) == ([], [])


def test_a_data_set_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}")
    assert "faults" not in probe_path({"path": str(tmp_path), "digest": True})


def test_the_headers_of_many_shards_have_a_limit_of_time(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model / SHARDS[0]).write_bytes(b"")
    monkeypatch.setattr(model_files, "SECONDS", -1.0)
    assert checked(model) == ([], [])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
)


@given(index=JSON | st.fixed_dictionaries({"weight_map": JSON}), header=st.binary(max_size=80))
def test_any_index_and_any_header(
    index: Any, header: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("model")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").write_bytes(header)
    (folder / "config.json").write_text(json.dumps(index))
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    seen = check_model(str(folder), sizes)
    assert all(isinstance(text, str) for text in (*seen["faults"], *seen["lacks"]))
