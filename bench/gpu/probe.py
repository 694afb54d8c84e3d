"""Figures that only a card can give, one JSON line each: casts, loss, attention, noise."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


def main() -> int:
    failed = 0
    for work in (trial_noise, activations, loss, attention, events, nccl_with_a_bound_device):
        try:
            work()
        except Exception as error:  # noqa: BLE001  (the others are still worth having)
            say(work.__name__, error=f"{type(error).__name__}: {error}"[:400])
            failed += 1
        if CUDA:
            torch.cuda.empty_cache()
    return int(failed > 0)


def say(about: str, **found: Any) -> None:
    print(json.dumps({"about": about, **found}), flush=True)


def timed(work: Callable[[], Any], times: int, warm: int) -> float:
    """Return the median of the seconds that the device worked."""
    seconds = []
    for number in range(warm + times):
        if CUDA:
            torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        if CUDA:
            torch.cuda.synchronize()
        if number >= warm:
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def peak_of(work: Callable[[], Any]) -> int:
    if not CUDA:
        return 0
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    return torch.cuda.max_memory_allocated() - before


def activations() -> None:
    """Bytes kept per token, width and layer, with PEFT's casts to float32 and without."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    width, layers, tokens, batch = (2048, 8, 2048, 4) if CUDA else (64, 2, 64, 1)
    shape = LlamaConfig(
        vocab_size=32000, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64), num_key_value_heads=max(1, width // 256),
        max_position_embeddings=tokens,
    )  # fmt: skip
    with torch.device(DEVICE):
        base: Any = LlamaForCausalLM(shape).bfloat16()
    base.config.use_cache = False
    lora = LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model: Any = get_peft_model(base, lora)
    ids = torch.randint(32000, (batch, tokens), device=DEVICE)

    def forward() -> Any:
        with torch.autocast(DEVICE, torch.bfloat16):
            return model.base_model.model.model(input_ids=ids, use_cache=False).last_hidden_state

    def step() -> None:
        forward().float().square().mean().backward()

    for casts in (True, False):
        for module in model.modules():
            if hasattr(module, "cast_input_dtype_enabled"):
                module.cast_input_dtype_enabled = casts
        seconds = timed(step, 8, 3)
        before = torch.cuda.memory_allocated() if CUDA else 0
        hidden = forward()
        kept = torch.cuda.memory_allocated() - before if CUDA else 0
        del hidden
        say(
            "activations",
            casts=casts,
            bytes=kept / (batch * tokens * width * layers),
            step_s=seconds,
        )


def loss() -> None:
    """The chunked loss against one cross entropy of all logits."""
    for shape in ((16384, 2048, 32000), (8192, 4096, 151552)) if CUDA else ((64, 32, 101),):
        compare_losses(*shape)


def compare_losses(rows: int, width: int, words: int) -> None:
    from train.model.chunked_loss import Head

    layer = torch.nn.Linear(width, words, bias=False, device=DEVICE, dtype=torch.bfloat16)
    layer.requires_grad_(False)
    hidden = torch.randn(1, rows, width, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    wanted = torch.randint(words, (rows,), device=DEVICE)

    def whole() -> None:
        hidden.grad = None
        logits = functional.linear(hidden[0], layer.weight).float()
        functional.cross_entropy(logits, wanted, reduction="sum").backward()  # type: ignore[no-untyped-call]

    whole_s, whole_peak = timed(whole, 5, 2), peak_of(whole)
    head = Head(layer)

    def chunked() -> None:
        hidden.grad = None
        head.set(torch.arange(rows, device=DEVICE), wanted)
        head.sums(layer(hidden))[0].backward()  # type: ignore[no-untyped-call]

    chunked_s, chunked_peak = timed(chunked, 5, 2), peak_of(chunked)
    say(
        "loss", rows=rows, width=width, words=words, whole_s=whole_s, chunked_s=chunked_s,
        whole_peak=whole_peak, chunked_peak=chunked_peak,
    )  # fmt: skip


def attention() -> None:
    """Packed rows: SDPA with the mask of eight documents, against causal attention without one."""
    heads, kv_heads, tokens, width = (32, 8, 8192, 128) if CUDA else (4, 2, 64, 16)
    query, key, value = (
        torch.randn(
            1, count, tokens, width, device=DEVICE, dtype=torch.bfloat16, requires_grad=True
        )
        for count in (heads, kv_heads, kv_heads)
    )
    document = torch.arange(tokens, device=DEVICE) // (tokens // 8)
    mask = (document[:, None] == document[None]).tril()[None, None]

    def causal() -> None:
        functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        ).sum().backward()  # type: ignore[no-untyped-call]

    def masked() -> None:
        # As transformers does: with a mask, keys and values are repeated for the query heads.
        keys, values = (x.repeat_interleave(heads // kv_heads, 1) for x in (key, value))
        functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask
        ).sum().backward()  # type: ignore[no-untyped-call]

    say("attention", causal_s=timed(causal, 5, 2), masked_s=timed(masked, 5, 2))


def trial_noise() -> None:
    """How much the trial of `check --deep` differs between four runs on one card."""
    from clusterctl.node.probe.trial.gpu_trial import try_gpu

    for number in range(4 if CUDA else 2):
        found = try_gpu("cuda:0" if CUDA else "cpu")
        say("trial", number=number, tflops=found["tflops"], gb_s=found["memory_gb_s"])
        time.sleep(2 if CUDA else 0)  # clocks fall while the card is idle


def events() -> None:
    """What it costs to record a CUDA event: a step is measured by them."""
    if not CUDA:
        return
    event_class: Any = torch.cuda.Event
    made = [event_class(enable_timing=True) for _ in range(2000)]
    began = time.perf_counter()
    for event in made:
        event.record()
    say("events", us=(time.perf_counter() - began) / len(made) * 1e6)


def nccl_with_a_bound_device() -> None:
    """Whether one rank can start NCCL with its device, and make a gloo group after that."""
    if not CUDA:
        return
    nccl: Any = torch.cuda.nccl
    dist: Any = torch.distributed  # its stores are not in its list of names
    dist.init_process_group(
        "cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1,
        device_id=torch.device("cuda", 0),
    )  # fmt: skip
    dist.new_group(backend="gloo")
    dist.destroy_process_group()
    say("nccl", version=".".join(map(str, nccl.version())))


if __name__ == "__main__":
    sys.exit(main())
