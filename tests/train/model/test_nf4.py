"""A base in 4 bits is that of transformers' own QLoRA, in one process and cut over ranks."""

from __future__ import annotations

import importlib.util
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.lazy_torch import torch
from tests.train.outcome import close
from tests.train.world import World, context
from train.config.config import Config
from train.errors import ConfigError

pytestmark = pytest.mark.torch
needs_it = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed"
)


@needs_it
def test_its_weights_are_those_of_transformers(base: Config, tiny: Path) -> None:
    from bitsandbytes.functional import dequantize_4bit
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    from train.model import load, nf4, slices

    theirs = AutoModelForCausalLM.from_pretrained(
        tiny / "model",
        dtype=torch.float32,
        device_map="cpu",
        quantization_config=BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.float32,
        ),
    )
    config = replace(base, load_in_4bit=True)
    network = load.make_on_meta(config, tiny / "model", torch.float32).to_empty(device="cpu")
    slices.load_into(network, config, tiny / "model")
    ours = {
        name.replace("base_layer.", "").removesuffix(".weight"): layer
        for name, layer in nf4.layers(load.base_of(network)).items()
    }
    wanted = {n: m for n, m in theirs.named_modules() if type(m).__name__ == "Linear4bit"}
    assert ours.keys() == wanted.keys()
    for name, layer in wanted.items():
        weight = dequantize_4bit(layer.weight.data, layer.weight.quant_state)
        assert torch.equal(nf4.plain(ours[name]), weight), name


@needs_it
def test_it_trains_the_same_cut_over_ranks(world: World) -> None:
    """As on one rank, which resumes it: the base is made again."""
    how: dict[str, Any] = {"load_in_4bit": True, "max_steps": 3}
    # Each rank imports bitsandbytes, for seconds.
    cut = world.run(nodes=(2,), parallel="fsdp", save_steps=2, **how)
    one = world.run(resume_from_checkpoint=str(cut.output / "step-000002"), **how)
    assert close(one.losses(), {3: cut.losses()[3]})


@needs_it
def test_its_weights_are_counted(base: Config, tiny: Path) -> None:
    from train.model import load, memory

    plain = load.count_weights(base, tiny / "model")
    small = load.count_weights(replace(base, load_in_4bit=True), tiny / "model")
    assert small == replace(plain, shrunk=small.shrunk)
    shape = memory.shape(tiny / "model")
    need = [
        memory.memory(base, shape, weights, shards=1, gpu=False).weights
        for weights in (plain, small)
    ]
    # Half a byte, and a 64th and a bit for the scales, of four.
    assert need[1] == pytest.approx(need[0] - small.shrunk * (4 - 0.516), rel=1e-3)


def test_it_is_refused_without_its_package(
    base: Config, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.model import load

    monkeypatch.setitem(sys.modules, "bitsandbytes.functional", None)
    with pytest.raises(ConfigError, match="expected the package bitsandbytes for load_in_4bit"):
        load.count_weights(replace(base, load_in_4bit=True), tiny / "model")
    with pytest.raises(ConfigError, match="load_in_4bit: expected method: lora, found full"):
        replace(base, load_in_4bit=True, method="full")


@needs_it
def test_only_a_base_of_4_bits_makes_a_rank_import_bitsandbytes() -> None:
    with ProcessPoolExecutor(1, mp_context=context()) as pool:
        assert pool.submit(_found_with_adapters).result() == (False, True)


def _found_with_adapters() -> tuple[bool, bool]:
    """Return whether a LoRA rank has imported it, and whether PEFT finds it afterwards."""
    from peft.import_utils import is_bnb_available

    from train.model.peft import LoraConfig, get_peft_model, without_bitsandbytes

    layers: Any = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with without_bitsandbytes():
        get_peft_model(layers, LoraConfig(target_modules=["0"]))
    return "bitsandbytes" in sys.modules, is_bnb_available()
