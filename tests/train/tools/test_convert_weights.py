"""Weights in `.bin` files become safetensors, bit by bit, or the reason is printed."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest

from tests.lazy_torch import torch
from train.errors import ConfigError
from train.tools import convert_weights

pytestmark = pytest.mark.torch


def tensors() -> dict[str, Any]:
    """Return weights of several kinds, two of which share their storage."""
    embedding = torch.randn(6, 4)
    nothing = torch.tensor([float("nan"), 1.0], dtype=torch.bfloat16)
    return {
        "embed.weight": embedding,
        "lm_head.weight": embedding,
        "norm.weight": nothing,
        "step": torch.tensor(3),
        "turned.weight": torch.randn(3, 5).T,
    }


def same(folder: Path, wanted: dict[str, Any]) -> None:
    """Compare the safetensors of a folder with tensors."""
    from safetensors.torch import load_file

    found: dict[str, Any] = {}
    for path in folder.glob("*.safetensors"):
        found |= load_file(path)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.allclose(found[name], tensor, rtol=0, atol=0, equal_nan=True), name


def test_one_file_is_converted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = tensors()
    torch.save(wanted, tmp_path / "pytorch_model.bin")
    (tmp_path / "pytorch_model.bin").chmod(0o640)
    (tmp_path / ".convert-weights-killed").mkdir()
    assert convert_weights.main([str(tmp_path)]) == 0
    assert "wrote 1 file," in capsys.readouterr().out
    same(tmp_path, wanted)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"pytorch_model.bin", "model.safetensors"}
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o640, "who could read it can"
    assert convert_weights.main([str(tmp_path)]) == 2
    assert "nothing to convert" in capsys.readouterr().err


def test_a_file_of_an_old_torch_is_converted(tmp_path: Path) -> None:
    wanted = tensors()
    path = tmp_path / "pytorch_model.bin"
    torch.save(wanted, path, _use_new_zipfile_serialization=False)
    convert_weights.convert(tmp_path)
    same(tmp_path, wanted)


@pytest.mark.parametrize(
    "index", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"w": 1}}']
)
def test_an_index_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], index: str
) -> None:
    (tmp_path / "pytorch_model.bin.index.json").write_text(index)
    assert convert_weights.main([str(tmp_path)]) == 2
    assert "index.json: expected JSON with a weight_map, found none" in capsys.readouterr().err


def test_shards_are_converted_with_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert_weights, "SHARD", 100)
    wanted = tensors()
    names = ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin")
    torch.save({name: wanted[name] for name in ("embed.weight", "step")}, tmp_path / names[0])
    rest = {name: t for name, t in wanted.items() if name not in {"embed.weight", "step"}}
    torch.save(rest, tmp_path / names[1])
    index = {"weight_map": {name: names[name in rest] for name in wanted}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    written = convert_weights.convert(tmp_path)
    same(tmp_path, wanted)
    assert len(written) > 2
    assert written[-1].name == "model.safetensors.index.json"
    found = json.loads(written[-1].read_text())["weight_map"]
    assert {tmp_path / name for name in found.values()} == set(written[:-1])


class Harmful:
    """What would run a program where it is unpickled."""

    def __reduce__(self) -> Any:
        """Say which."""
        return print, ("harm",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "expected pytorch_model.bin, found none"),
        (b"x" * 64, "expected tensors as torch.save writes them"),
        (b"", "expected tensors as torch.save writes them"),
        ({"a": Harmful()}, "expected tensors as torch.save writes them"),
        ({"state_dict": {}}, "expected a tensor by each name, found 'state_dict'"),
        ([1], "expected a tensor by each name"),
        ({}, "pytorch_model.bin: expected tensors as torch.save writes them: found none"),
    ],
)
def test_what_cannot_be_converted_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: Any, said: str
) -> None:
    path = tmp_path / "pytorch_model.bin"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    assert convert_weights.main([str(tmp_path)]) == 2
    out, err = capfd.readouterr()
    assert said in err
    assert "\nhint: " in err
    assert "Traceback" not in err
    assert out == ""
    assert not list(tmp_path.glob("*.safetensors*"))


def test_a_disk_that_refuses_more_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"w": torch.ones(1 << 20)}, tmp_path / "pytorch_model.bin")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        assert convert_weights.main([str(tmp_path)]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "File too large" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["pytorch_model.bin"]


def test_a_tensor_that_was_written_wrong_gets_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    real = huggingface_hub.save_torch_state_dict

    def wrong(state: dict[str, Any], *args: Any, **how: Any) -> None:
        real(state | {"step": torch.tensor(4)}, *args, **how)

    monkeypatch.setattr(huggingface_hub, "save_torch_state_dict", wrong)
    torch.save(tensors(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="step is not what was written"):
        convert_weights.convert(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["pytorch_model.bin"]
