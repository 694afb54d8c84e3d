"""The estimate of memory against what a training's tensors took on a CPU."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lazy_torch import torch
from tests.train.tiny import make_tokenizer, paragraphs
from tests.train.world import World

pytestmark = pytest.mark.torch

TOOK = "tensors took "


def counts(_rank: int) -> None:
    """Print the most bytes that tensors had at once while the model was there."""
    from torch.utils._python_dispatch import TorchDispatchMode

    import train.run
    from train.trainer import Trainer

    class Peak(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """Adds up the storages that operations make."""

        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.now = self.most = 0
            self.known: dict[int, int] = {}

        def gone(self, key: int) -> None:
            self.now -= self.known.pop(key)

        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = function(*args, **kwargs or {})
            for tensor in result if isinstance(result, tuple | list) else (result,):
                if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
                    storage = tensor.untyped_storage()
                    if (key := storage._cdata) not in self.known:
                        self.known[key] = storage.nbytes()
                        self.now += storage.nbytes()
                        weakref.finalize(storage, self.gone, key)
            self.most = max(self.most, self.now)
            return result

    peak = Peak()
    build: Callable[..., Any] = train.run.build_model
    run: Callable[..., Any] = Trainer.run

    def built(*args: Any, **how: Any) -> Any:
        peak.__enter__()  # type: ignore[no-untyped-call]
        return build(*args, **how)

    def steps(self: Any, progress: Any) -> Any:
        peak.most = peak.now
        update = Trainer.update

        def updated(*args: Any) -> Any:
            decision = update(*args)
            print(f"{TOOK}{peak.most}", flush=True)
            return decision

        Trainer.update = updated  # type: ignore[method-assign,assignment]
        return run(self, progress)

    train.run.build_model = built
    Trainer.run = steps  # type: ignore[method-assign]


HOW: dict[str, dict[str, Any]] = {
    "LoRA": {},
    "recomputed": {"activation_checkpointing": True},
    "DoRA": {"lora_use_dora": True},
    "eager": {"attn_implementation": "eager"},
    "all weights": {"method": "full"},
    "wide vocabulary": {"vocabulary": 32_000},
}


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_the_estimate_is_within_a_tenth_of_what_tensors_take(
    world: World, tmp_path: Path, how: dict[str, Any]
) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from train.model import load, memory

    make_tokenizer(tmp_path / "model")
    how = dict(how)
    shape = LlamaConfig(
        vocab_size=how.pop("vocabulary", 512), hidden_size=192, intermediate_size=512,
        num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=2,
    )  # fmt: skip
    LlamaForCausalLM(shape).save_pretrained(tmp_path / "model")
    data = tmp_path / "long.jsonl"
    data.write_text(json.dumps({"text": " ".join(paragraphs())[:20_000]}) + "\n")
    run = world.run(
        before=counts, name_or_path=str(tmp_path / "model"), dataset_path=str(data), seq_len=512,
        per_device_train_batch_size=1, global_batch_size=None, batching="plain", max_steps=2,
        parallel="single", **how,
    )  # fmt: skip
    took = max(int(line[len(TOOK) :]) for line in run.said().splitlines() if TOOK in line)
    folder = tmp_path / "model"
    weights = load.count_weights(run.config, folder)
    need = memory.memory(run.config, memory.shape(folder), weights, shards=1, gpu=False)
    assert need.total - need.overhead == pytest.approx(took, rel=0.1), need.words()
