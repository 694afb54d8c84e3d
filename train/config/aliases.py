"""Other people's spellings of the keys: taken where they mean the same, named where they do not."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from train.config.config import Config

if TYPE_CHECKING:
    from collections.abc import Iterable

_OTHER_SECTIONS = (
    "training train trainer optim optimizer dataset eval validation output fsdp parallel"
)

_LAUNCHER = "belongs to the launcher: nodes and GPUs stand in hosts.yaml; leave it out here"
_SECRET = "no secrets in a file; set the variable HF_TOKEN (env_from in hosts.yaml)"  # noqa: S105
_ELSEWHERE = {
    "ray_address": _LAUNCHER,
    "num_nodes": _LAUNCHER,
    "nnodes": _LAUNCHER,
    "gpus_per_node": _LAUNCHER,
    "gpus": _LAUNCHER,
    "num_gpus": _LAUNCHER,
    "nproc_per_node": _LAUNCHER,
    "node_rank": _LAUNCHER,
    "master_addr": _LAUNCHER,
    "master_port": _LAUNCHER,
    "local_rank": "is read from LOCAL_RANK, which every launcher sets; leave it out",
    "load_in_4bit": "quantised bases are not trained here; use dtype: bfloat16",
    "load_in_8bit": "quantised bases are not trained here; use dtype: bfloat16",
    "fp16": "float16 needs loss scaling and is not offered; use dtype: bfloat16",
    "tensor_parallel_size": "only data parallelism is done here; see parallel",
    "pipeline_parallel_size": "only data parallelism is done here; see parallel",
    "deepspeed": "sharding is FSDP2's work here; see parallel",
    "fsdp_config": "sharding follows the model's own blocks; see parallel",
    "hf_token": _SECRET,
    "token": _SECRET,
    "optim": "the optimiser is AdamW; leave it out",
    "optimizer": "the optimiser is AdamW; leave it out",
    "save_on_each_node": "is found out; see checkpoint_storage",
}
"""Keys that people bring along, and why they are not ours."""

_VALUES = {
    "dtype": {"bf16": "bfloat16", "fp32": "float32", "torch.bfloat16": "bfloat16"},
    "report_to": {"none": "", "false": ""},
    "checkpoint_storage": {"true": "shared", "false": "per-node", "per_node": "per-node"},
    "lora_target_modules": {"true": "all-linear", "all": "all-linear"},
    "parallel": {"fsdp2": "fsdp", "none": "single", "hybrid": "hsdp"},
}
"""Other spellings of values."""

_TRUE = {"true", "yes", "on", "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """A spelling settled: the key's own name and the value as it is written there."""

    name: str
    value: Any


def settle(spelling: str, raw: Any) -> Renamed | str:  # noqa: ANN401  (a value as written)
    """Return our own key and value for a spelling, or why not; "" means: nothing to do."""
    name = spelling.replace("-", "_")
    if name in _fields():
        return Renamed(name=name, value=_value(name, raw))
    switched = _switch(name, str(raw).lower())
    if switched is not None:
        return switched
    if name in _aliases():
        return Renamed(name=_aliases()[name], value=_value(_aliases()[name], raw))
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    close = nearest(name, (*_fields(), *_aliases()))
    return "unknown key" + (f"; nearest: {_aliases().get(close, close)}" if close else "")


def _switch(name: str, value: str) -> Renamed | str | None:  # noqa: PLR0911  (a table)
    """Return the key that a yes/no or a word of other programs stands for; None: it is none."""
    on = value in _TRUE
    match name:
        case "packing" | "sample_packing":
            return Renamed(name="batching", value="packed" if on else "balanced")
        case "balance" | "group_by_length" | "length_balance":
            return Renamed(name="batching", value="balanced" if on else "plain")
        case "bf16":
            words = {"auto": "auto"} | dict.fromkeys(_TRUE, "bfloat16")
            return Renamed(name="dtype", value=words.get(value, "float32"))
        case "use_lora" | "lora":
            return Renamed(name="method", value="lora" if on else "full")
        case "tensorboard" | "use_tensorboard":
            return Renamed(name="report_to", value="tensorboard") if on else ""
        case "fp16" | "load_in_4bit" | "load_in_8bit" if not on:
            return ""
        case "save_strategy" if value == "epoch":
            return Renamed(name="save_epochs", value="1")
        case "save_strategy" if value in {"no", "false"}:
            return Renamed(name="save_minutes", value="0")
        case "save_strategy" | "eval_strategy" | "evaluation_strategy":
            key = f"{name.partition('_')[0].replace('evaluation', 'eval')}_steps"
            return "" if value in {"steps", "no"} else f"expected the key {key}"
        case _:
            return None


def _value(name: str, raw: Any) -> Any:  # noqa: ANN401  (a value as written)
    return _VALUES.get(name, {}).get(raw.lower(), raw) if isinstance(raw, str) else raw


def nearest(name: str, among: Iterable[str]) -> str:
    """Return the likeliest meant of the names, or ""."""
    close = difflib.get_close_matches(name, list(among), n=1, cutoff=0.6)
    return close[0] if close else ""


def section_names() -> tuple[str, ...]:
    """Return the headings that keys may stand under; which one is the writer's own choice."""
    ours = dict.fromkeys(item.metadata["section"] for item in dataclasses.fields(Config))
    return (*ours, *_OTHER_SECTIONS.split())


def _fields() -> tuple[str, ...]:
    return tuple(item.name for item in dataclasses.fields(Config))


def _aliases() -> dict[str, str]:
    return {
        also: item.name for item in dataclasses.fields(Config) for also in item.metadata["also"]
    }
