"""A base in FP8 trains as its plain twin does; other formats are refused by name."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.lazy_torch import torch
from tests.train.families import make_family
from tests.train.outcome import close
from tests.train.world import World
from train import preflight
from train.config.config import Config
from train.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

pytestmark = pytest.mark.torch


def fine_grained(*block: int) -> dict[str, Any]:
    """Return the configuration of DeepSeek's, Qwen's and GLM's FP8, of transformers' own class."""
    from transformers import FineGrainedFP8Config

    about: dict[str, Any] = FineGrainedFP8Config(weight_block_size=block or None).to_dict()
    return about


def compressed(strategy: str, **weights: Any) -> dict[str, Any]:
    """Return the configuration of compressed-tensors, as GLM-4.5-Air-FP8 has it."""
    about = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}
    group = {"targets": ["Linear"], "weights": about | {"strategy": strategy} | weights}
    return {
        "quant_method": "compressed-tensors", "format": "float-quantized",
        "quantization_status": "compressed", "ignore": ["lm_head"], "config_groups": {"0": group},
    }  # fmt: skip


def in_blocks(weight: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return a weight in FP8, a scale for each block, and the weight that they stand for."""
    high, wide = weight.shape
    scale = torch.empty(-(-high // rows), -(-wide // columns))
    small = torch.empty_like(weight, dtype=torch.float8_e4m3fn)
    plain = torch.empty_like(weight)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            part = (slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns))
            scale[i, j] = weight[part].abs().max() / 448 * (1 + i + 3 * j)  # unlike its neighbors
            small[part] = (weight[part] / scale[i, j]).to(torch.float8_e4m3fn)
            plain[part] = small[part].float() * scale[i, j]
    return small, scale, plain


def in_integers(weight: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return a weight in integers, a scale for each group of a row, and what they stand for."""
    high, wide = weight.shape
    most = (1 << bits - 1) - 1
    parts = weight.reshape(high, -1, group)
    scale = parts.abs().amax(-1) / most
    numbers = (parts / scale.unsqueeze(-1)).round()
    plain = (numbers * scale.unsqueeze(-1)).reshape(high, wide)
    return numbers.reshape(high, wide).to(torch.int8), scale, plain


def packed(numbers: Tensor, bits: int) -> Tensor:
    """Return integers as compressed-tensors packs them: the first one in the lowest bits."""
    each = 32 // bits
    parts = (numbers.to(torch.int64) + (1 << bits - 1)).reshape(len(numbers), -1, each)
    whole = (parts << torch.arange(each) * bits).sum(-1)
    return whole.where(whole < 1 << 31, whole - (1 << 32)).to(torch.int32)


def quantize(
    plain: Path, small: Path, about: dict[str, Any], block: tuple[int, int] | None
) -> None:
    """Write a model's copy in FP8, and put into the model what the copy's weights stand for.

    Args:
        plain: The model's folder.
        small: The copy's.
        about: The copy's quantization_config.
        block: What shares a scale; None for all of a weight.
    """
    from safetensors.torch import load_file, save_file

    shutil.copytree(plain, small)
    found = load_file(plain / "model.safetensors")
    stored, twin = dict(found), dict(found)
    suffix = "_scale_inv" if about["quant_method"] == "fp8" else "_scale"
    for name, weight in found.items():
        if not name.endswith("_proj.weight"):
            continue
        if about.get("format") in {"int-quantized", "pack-quantized"}:
            weights = about["config_groups"]["0"]["weights"]
            bits, group = weights["num_bits"], weights.get("group_size") or weight.shape[1]
            numbers, scale, twin[name] = in_integers(weight, bits, group)
            stored[name + suffix] = scale
            if about["format"] == "int-quantized":
                stored[name] = numbers
                continue
            del stored[name]
            stored[f"{name}_packed"] = packed(numbers, bits)
            stored[f"{name}_shape"] = torch.tensor(weight.shape)
            continue
        rows, columns = block or weight.shape
        columns = min(columns, weight.shape[1])
        stored[name], scale, twin[name] = in_blocks(weight, rows, columns)
        stored[name + suffix] = scale if block else scale.reshape(())
        stored[name.removesuffix("weight") + "input_scale"] = scale.reshape(-1)[:1].clone()
    assert len(stored) > len(found)
    save_file(stored, small / "model.safetensors", metadata={"format": "pt"})
    save_file(twin, plain / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps(config | {"quantization_config": about}))


PACKED = {"format": "pack-quantized"}
FORMS: dict[str, tuple[Callable[[], dict[str, Any]], tuple[int, int] | None]] = {
    "blocks": (lambda: fine_grained(10, 12), (10, 12)),
    "one scale": (fine_grained, None),
    "rows": (lambda: compressed("channel"), (1, 1 << 20)),
    "compressed blocks": (lambda: compressed("block", block_structure=[16, 16]), (16, 16)),
    "tensor": (lambda: compressed("tensor"), None),
    "int8": (lambda: compressed("channel", type="int") | {"format": "int-quantized"}, None),
    "packed int8": (lambda: compressed("channel", type="int") | PACKED, None),
    "packed int4": (
        lambda: compressed("group", num_bits=4, type="int", group_size=16) | PACKED,
        None,
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_read_as_the_weights_that_it_stands_for(
    tiny: Path, tmp_path: Path, form: str
) -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file

    from train.model.memory import shape
    from train.model.quantized import scheme, tensors

    about, block = FORMS[form]
    plain = shutil.copytree(tiny / "model", tmp_path / "plain")
    small = tmp_path / "small"
    quantize(plain, small, about(), block)
    twin = load_file(plain / "model.safetensors")
    with safe_open(small / "model.safetensors", framework="pt") as file:
        files = dict.fromkeys(file.keys(), file)
        found = tensors(files, scheme(small / "config.json", "small"))
        assert found.keys() == twin.keys()
        for name, weight in twin.items():
            assert torch.equal(found[name][:], weight), name
            assert torch.equal(found[name][3:7], weight[3:7]), name
            if weight.dim() > 1:
                assert torch.equal(found[name][1:5, 3:14], weight[1:5, 3:14]), name
    assert shape(small).parameters == shape(plain).parameters


# (each form is read above, and each slice compared below)
QUICK = {"packed int4"}


@pytest.mark.parametrize(
    "form", [pytest.param(f, marks=() if f in QUICK else pytest.mark.soak) for f in FORMS]
)
def test_it_trains_as_the_weights_that_it_stands_for(
    world: World, tiny: Path, tmp_path: Path, form: str
) -> None:
    """With experts that transformers stacks, on one rank and cut over three."""
    about, block = FORMS[form]
    plain = make_family(tmp_path / "plain", "glm4_moe", tiny / "model")
    quantize(plain, tmp_path / "Tiny-FP8", about(), block)
    how: dict[str, Any] = {"max_steps": 2, "lora_target_modules": ["q_proj", "o_proj"]}
    twin = world.run(name_or_path=str(plain), **how).losses()
    how["name_or_path"] = str(tmp_path / "Tiny-FP8")
    assert world.run(**how).losses() == twin
    cut = world.run(nodes=(3,), parallel="fsdp", **how)
    assert close(cut.losses(), twin)
    assert "read whole" not in cut.said()


@pytest.mark.parametrize("block", [(128, 128), (7, 5), (1, 33), (33, 65), (200, 200), None])
def test_each_slice_has_its_scales(tmp_path: Path, block: tuple[int, int] | None) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    from train.model.quantized import Dequantized

    weight = torch.randn(33, 65, generator=torch.Generator().manual_seed(0))
    small, scale, plain = in_blocks(weight, *(block or weight.shape))
    save_file({"w": small}, tmp_path / "w.safetensors")
    with safe_open(tmp_path / "w.safetensors", framework="pt") as file:
        read = Dequantized("w", file.get_slice("w"), scale, block)
        assert torch.equal(read[...], plain)
        assert torch.equal(read[5:6], plain[5:6])
        for rows in ((0, 33), (0, 1), (6, 8), (7, 14), (32, 33), (20, 20), (33, 33)):
            for columns in ((0, 65), (4, 6), (64, 65)):
                part = (slice(*rows), slice(*columns))
                assert torch.equal(read[part], plain[part]), part


def test_stacked_experts_have_theirs(tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    from train.model.quantized import Dequantized

    made = [in_blocks(torch.randn(9, 8), 4, 4) for _ in range(3)]
    small, scale, plain = (torch.stack(each) for each in zip(*made, strict=True))
    save_file({"w": small.view(torch.uint8).view(torch.float8_e4m3fn)}, tmp_path / "w.safetensors")
    with safe_open(tmp_path / "w.safetensors", framework="pt") as file:
        read = Dequantized("w", file.get_slice("w"), scale, (4, 4))
        part = (slice(1, 3), slice(3, 9), slice(0, 8))
        assert torch.equal(read[part], plain[part])


def test_a_scale_that_does_not_fit_is_no_weight(world: World, tiny: Path, tmp_path: Path) -> None:
    """It ends the start, with the reason: read whole, the base would be noise."""
    plain = shutil.copytree(tiny / "model", tmp_path / "plain")
    quantize(plain, tmp_path / "small", fine_grained(10, 12), (10, 10))
    run = world.start(name_or_path=str(tmp_path / "small"), max_steps=1)
    assert run.wait() == [2]
    assert re.search(r"expected a scale of \[\d, \d\], found \[\d, \d\]", run.said())
    assert "cannot be read in slices" in run.said()


REFUSED = {
    "Air-AWQ": {"quant_method": "awq", "bits": 4},
    "Air-GPTQ-Int4": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "Air-bnb-4bit": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "Air-w4a16": compressed("group", num_bits=4, type="int", symmetric=False) | PACKED,
    "Air-NVFP4": compressed("tensor_group", num_bits=4) | {"format": "nvfp4-pack-quantized"},
    "Air-quantized.w4a16": compressed("group", num_bits=4, type="int", actorder="group") | PACKED,
    "Air-FP8-sparse": compressed("channel") | {"sparsity_config": {"format": "sparse-24-bitmask"}},
    "Air-FP8": {"quant_method": "modelopt", "quant_algo": "FP8"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_formats_are_refused_with_their_twin(
    base: Config, tiny: Path, tmp_path: Path, name: str
) -> None:
    folder = shutil.copytree(tiny / "model", tmp_path / name)
    about = json.loads((folder / "config.json").read_text())
    about["quantization_config"] = REFUSED[name]
    (folder / "config.json").write_text(json.dumps(about))
    config = replace(base, name_or_path=str(folder))
    (finding,) = [
        each
        for each in preflight.check(config)
        if "quantized" in each.said or "bfloat16" in each.said
    ]
    assert finding.state == "fail"
    assert f"found {REFUSED[name]['quant_method']}" in finding.said
    assert f"(hint: name_or_path: {tmp_path / 'Air'}, the model in bfloat16" in finding.said


def test_all_of_it_is_not_trained(base: Config, tiny: Path, tmp_path: Path) -> None:
    from train.model.load import count_weights

    plain = shutil.copytree(tiny / "model", tmp_path / "plain")
    quantize(plain, tmp_path / "small", fine_grained(16, 16), (16, 16))
    config = replace(base, name_or_path=str(tmp_path / "small"))
    count_weights(config, tmp_path / "small")
    with pytest.raises(ConfigError, match="found method: full and fp8"):
        count_weights(replace(config, method="full"), tmp_path / "small")


def test_mxfp4_is_read_right_in_slices(world: World, tiny: Path, tmp_path: Path) -> None:
    """As gpt-oss is stored: two numbers in a byte, a power of two for each 32 of them."""
    from safetensors.torch import load_file, save_file
    from transformers import Mxfp4Config

    from train.model.memory import shape

    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = torch.cat((values, -values))
    generator = torch.Generator().manual_seed(0)
    plain = make_family(tmp_path / "plain", "gpt_oss", tiny / "model")
    small = shutil.copytree(plain, tmp_path / "small")
    twin = load_file(plain / "model.safetensors")
    stored = dict(twin)
    for name in [name for name in twin if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = twin[name].shape
        size = (experts, rows, columns // 32)
        blocks = torch.randint(256, (*size, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(120, 124, size, generator=generator, dtype=torch.uint8)
        pairs = torch.stack((values[(blocks & 15).long()], values[(blocks >> 4).long()]), -1)
        whole = pairs.flatten(-2) * 2.0 ** (scales.unsqueeze(-1).float() - 127)
        twin[name] = whole.flatten(-2).transpose(1, 2).contiguous()
        del stored[name]
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(stored, small / "model.safetensors", metadata={"format": "pt"})
    save_file(twin, plain / "model.safetensors", metadata={"format": "pt"})
    about = json.loads((small / "config.json").read_text())
    about["quantization_config"] = Mxfp4Config().to_dict()
    (small / "config.json").write_text(json.dumps(about))
    how: dict[str, Any] = {"max_steps": 2, "lora_target_modules": ["q_proj", "o_proj"]}
    how["attn_implementation"] = "eager"
    wanted = world.run(name_or_path=str(plain), **how).losses()
    found = world.run(name_or_path=str(small), nodes=(2,), parallel="fsdp", **how)
    assert close(found.losses(), wanted)
    assert "read whole" not in found.said()
    assert shape(small).parameters == shape(plain).parameters


def with_another(folder: Path, name: str) -> None:
    """Add a tensor to a model's file."""
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    save_file(load_file(path) | {name: torch.ones(32)}, path, metadata={"format": "pt"})


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.q_proj.bias", "model.layers.1.mlp.up_proj.weight_scale"]
)
def test_a_tensor_without_a_place_is_refused_before_any_is_read(
    base: Config, tiny: Path, tmp_path: Path, name: str
) -> None:
    from train.model import load, placement, slices

    folder = shutil.copytree(tiny / "model", tmp_path / "model")
    config = replace(base, name_or_path=str(folder))
    whole = load.make_on_meta(config, folder, torch.float32)
    with_another(folder, name)
    (finding,) = [each for each in preflight.check(config) if each.about == "trained"]
    assert finding.state == "fail"
    assert f"found none for {name} (and 0 others)" in finding.said
    # And by both ways to read it, if the names say nothing.
    with pytest.raises(slices.CannotSlice, match=f"{name} has no place"):
        slices.load_into(whole.to_empty(device="cpu"), config, folder)
    with pytest.raises(ConfigError, match=f"found none for {name}"):
        load.make(config, folder, torch.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "unplaced", lambda *_: [])
        load.make_on_meta(config, folder, torch.float32)


def test_tensors_that_the_model_has_no_use_for_are_dropped(
    base: Config, tiny: Path, tmp_path: Path
) -> None:
    from train.model.load import count_weights

    folder = make_family(tmp_path / "model", "glm4_moe", tiny / "model")
    config = replace(base, name_or_path=str(folder), lora_target_modules=("q_proj",))
    for name in (
        "model.layers.46.eh_proj.weight",  # GLM-4.5-Air's layer that predicts a second token
        "model.layers.0.self_attn.rotary_emb.inv_freq",
    ):
        with_another(folder, name)
        count_weights(config, folder)


@pytest.mark.parametrize("says_so", [True, False])
def test_a_weight_in_fp8_without_a_scale_is_refused(
    base: Config, tiny: Path, tmp_path: Path, *, says_so: bool
) -> None:
    """Also if config.json says nothing of FP8: it would be read as noise."""
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(tiny / "model", tmp_path / "model")
    path, name = folder / "model.safetensors", "model.layers.1.mlp.up_proj.weight"
    stored = load_file(path)
    save_file(stored | {name: stored[name].to(torch.float8_e4m3fn)}, path)
    if says_so:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(
            json.dumps(config | {"quantization_config": fine_grained()})
        )
    (finding,) = [
        each
        for each in preflight.check(replace(base, name_or_path=str(folder)))
        if each.about == "trained"
    ]
    assert finding.state == "fail"
    assert f"found {name} without a scale" in finding.said
