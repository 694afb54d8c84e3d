"""A GPU's memory ends before the first step or never, and the message says what to change."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from tests.train.outcome import weights
from tests.train.tiny import VOCABULARY, make_tokenizer, paragraphs
from tests.train.world import World
from train.config.config import Config

pytestmark = pytest.mark.torch


def rehearses(_rank: int) -> None:
    """Try memory first on a CPU too."""
    from train.trainer import Trainer

    patch.object(Trainer, "rehearses", True).start()


@pytest.mark.parametrize(
    "how",
    [
        {"parallel": "fsdp", "nodes": (2,), "batching": "balanced", "lora_dropout": 0.1},
        {"parallel": "ddp", "nodes": (2,), "batching": "plain", "lora_dropout": 0.1},
        pytest.param(
            {"parallel": "fsdp", "nodes": (2,), "method": "full", "global_batch_size": 4},
            marks=pytest.mark.soak,
        ),
        {"parallel": "single", "batching": "packed", "method": "full"},
    ],
    ids=["fsdp", "ddp", "full", "single"],
)
def test_the_largest_micro_batch_comes_first_and_changes_nothing(
    world: World, how: dict[str, Any]
) -> None:
    how = {**how, "max_steps": 3}
    plain = world.run(**how)
    tried = world.run(before=rehearses, **how)
    assert "GiB for the largest micro-batch, 4 x 48 tokens" in tried.said()
    assert tried.losses() == plain.losses()
    if how.get("method") != "full":
        assert weights(tried) == weights(plain)


def test_the_largest_micro_batch_is_one_of_the_longest_samples(world: World) -> None:
    how: dict[str, Any] = {"max_steps": 9, "before": sizes}
    said = world.run(**how).said()
    widths = [int(line.split()[1]) for line in said.splitlines() if line.startswith("width ")]
    largest, *others = widths
    assert len(others) >= 20
    assert largest == max(others)


def gives_back(_rank: int) -> None:
    """Let glibc return what is freed: it keeps large blocks, of which it finds few to use again."""
    import ctypes

    m_mmap_threshold = -3
    assert ctypes.CDLL(None).mallopt(m_mmap_threshold, 1 << 20)


@pytest.mark.soak  # test_preflight.py has the arithmetic
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"load_in_4bit": True},
        {
            "nodes": (2,),
            "parallel": "fsdp",
            "context_parallel": 2,
            "seq_len": 1024,
            "reshard_after_forward": True,
        },
    ],
    ids=["LoRA", "QLoRA", "context parallel"],
)
def test_the_estimate_is_near_what_ranks_on_cpus_took(world: World, how: dict[str, Any]) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from train.model import load, memory

    folder = world.folder / "model"
    make_tokenizer(folder)
    shape = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    LlamaForCausalLM(shape).save_pretrained(folder)
    data = world.folder / "long.jsonl"
    data.write_text(json.dumps({"text": " ".join(paragraphs())[:20_000]}) + "\n")
    keys = {
        "name_or_path": str(folder), "dataset_path": str(data), "seq_len": 512, "max_steps": 2,
        "per_device_train_batch_size": 1, "global_batch_size": 1,
        "parallel": "single",
    } | how  # fmt: skip
    run = world.run(before=gives_back, **keys)
    steps = map(json.loads, (run.output / "metrics.jsonl").read_text().splitlines())
    took = max(line["memory"] for line in steps if line["kind"] == "step")
    weights = load.count_weights(run.config, folder)
    ranks = run.config.context_parallel
    need = memory.memory(run.config, memory.shape(folder), weights, shards=ranks, gpu=False)
    assert took == pytest.approx(need.total, rel=0.1), need.words()


def test_the_longest_packed_rows_are_tried(base: Config) -> None:
    """Those of the first samples may be short: what is packed best comes first."""
    import numpy as np

    from train.config.batch_size import batch_size
    from train.data.batches import Pool
    from train.data.mixture import Share

    lengths = np.array([30] * 20 + [5] * 500)
    samples: Any = SimpleNamespace(
        lengths=lengths,
        targets=lengths,
        numbers=lengths * 0,
        shares=(Share(samples=520, weight=1.0),),
    )
    config = replace(base, batching="packed", seq_len=48)
    pool = Pool(samples, config, batch_size(config, 1).total)
    assert [lengths[row].sum() for row in pool.longest(2)] == [45, 45]


def sizes(rank: int) -> None:
    """Print the width of every micro-batch, the first one tried."""
    from train.trainer import Trainer

    rehearses(rank)
    forward: Any = Trainer.forward

    def printing(trainer: Trainer, batch: Any) -> Any:
        print(f"width {batch.input_ids.shape[1]}", flush=True)
        return forward(trainer, batch)

    patch.object(Trainer, "forward", printing).start()


def no_memory(*_: Any, **__: Any) -> Any:
    import torch

    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 32.00 MiB")


@pytest.mark.parametrize(
    ("text", "is_memory"),
    [
        ("NCCL error ... Cuda failure 2 'out of memory'", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("CUDA error: an illegal memory access was encountered", False),
    ],
)
def test_memory_that_other_libraries_lack_is_named_too(text: str, *, is_memory: bool) -> None:
    from train.errors import ConfigError, explain_oom

    with pytest.raises(ConfigError if is_memory else RuntimeError), explain_oom("the batch"):
        raise RuntimeError(text)


def ends_at_the_head(_rank: int) -> None:
    from train.model.model import Model

    patch.object(Model, "try_head", no_memory).start()


def ends_at_the_optimizer(_rank: int) -> None:
    from train import run

    patch.object(run, "Optimizer", no_memory).start()


def ends_at_first(rank: int) -> None:
    from train.data.batches import Batches

    rehearses(rank)
    largest = Batches.largest

    def then_nothing(batches: Batches) -> Any:
        from train.trainer import Trainer

        patch.object(Trainer, "forward", no_memory).start()
        return largest(batches)

    patch.object(Batches, "largest", then_nothing).start()


@pytest.mark.parametrize(
    ("ends", "named"),
    [
        (ends_at_the_head, "the base model"),
        (ends_at_the_optimizer, "the optimizer's state"),
        (ends_at_first, "the largest micro-batch"),
    ],
)
def test_memory_that_ends_is_named_without_a_traceback(
    world: World, ends: Callable[[int], None], named: str
) -> None:
    run = world.start(before=ends, batching="packed")
    assert run.wait() == [2], run.said()
    assert f"{named}: expected room in this GPU's memory, found: CUDA out of memory" in run.said()
    assert "hint: a smaller per_device_train_batch_size" in run.said()
    assert "Traceback" not in run.said()
    assert not list(Path(run.output).glob("step-*"))
