"""Other programs' spellings of the keys: taken where they mean the same, refused where not."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from train.config import foreign
from train.config.config import TRACKERS, Config

if TYPE_CHECKING:
    from collections.abc import Iterable

_OTHER_SECTIONS = (
    "training train trainer optim optimizer dataset eval validation output fsdp parallel "
    "fsdp_config special_tokens"
)

_VALUES: dict[str, dict[str, str | None]] = {
    "dtype": {"bf16": "bfloat16", "fp32": "float32", "torch.bfloat16": "bfloat16"},
    "report_to": {"none": "", "false": "", "all": ",".join(TRACKERS)},
    "checkpoint_storage": {"true": "shared", "false": "per-node", "per_node": "per-node"},
    "learn": {"true": "last", "false": "all"},
    "lora_target_modules": {"true": "all-linear", "all": "all-linear"},
    "lr_scheduler_type": {"constant_with_warmup": "constant"},
    "max_steps": {"-1": None},
    "method": {"none": "full", "": "full", "false": "full"},
    "overlong": {"truncate": "cut", "right": "cut", "delete": "drop"},
    "parallel": {"fsdp2": "fsdp", "none": "single", "hybrid": "hsdp"},
    "resume_from_checkpoint": {
        **dict.fromkeys(("true", "auto", "last"), "latest"),
        "false": None,
    },
}
"""Other spellings of values."""

_TRUE = {"true", "yes", "on", "1"}
_ATTENTION = {
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "flex_attention": "flex_attention",
    "eager_attention": "eager",
}
_SWITCHES = {
    "packing", "sample_packing", "balance", "group_by_length", "length_balance", "bf16", "bfloat16",
    "use_lora", "lora", "recipe", "save_strategy", "eval_strategy", "evaluation_strategy",
    "saves_per_epoch", "evals_per_epoch", "lora_target_linear",
}  # fmt: skip
"""Keys without a value that say nothing; `adapter` without one means all weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """A spelling settled: the key's own name and the value as it is written there."""

    name: str
    value: Any
    weight: int = 2
    """Of two spellings of one key the higher one counts: what is switched off yields."""
    note: str = ""
    """What to print about the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoEffect:
    """A key that changes nothing here."""

    note: str = ""
    """What to print about it; nothing, where its value asks for what is done anyway."""


def expand(spelling: str, raw: Any) -> list[tuple[str, Any]]:  # noqa: ANN401  (a value as written)
    """Return the keys that one key of another program stands for."""
    tracker = {"wandb_project": "wandb", "mlflow_experiment_name": "mlflow"}.get(spelling)
    on = raw is not None and str(raw).lower() not in foreign.OFF
    return [(spelling, raw), *([("report_to", tracker)] if tracker and on else [])]


def settle(  # noqa: PLR0911  (one for each kind of answer)
    spelling: str,
    raw: Any,  # noqa: ANN401  (a value as written)
) -> Renamed | NoEffect | str:
    """Return our own key and value for a spelling, that it has no effect, or why it cannot be."""
    name = _plain(spelling)
    if raw is None and name.startswith("lora_"):
        return NoEffect()  # templates without LoRA leave its keys empty
    if name in _fields():
        return Renamed(name=name, value=_value(name, raw))
    switched = _switch(name, raw)
    if switched is not None:
        return switched
    if name in _aliases():
        return NoEffect() if raw is None else _renamed(name, raw)
    refused = foreign.why_refused(name, raw)
    if refused is not None:
        return refused or NoEffect()
    if note := foreign.why_no_effect(name):
        return NoEffect() if raw is None else NoEffect(note=note)
    close = nearest(name, (*_fields(), *_aliases()))
    return "unknown key" + (f"; nearest: {_aliases().get(close, close)}" if close else "")


def own_name(spelling: str) -> str:
    """Return the key that a spelling means, or the spelling."""
    name = _plain(spelling)
    return _aliases().get(name, name)


def _plain(spelling: str) -> str:
    """Return a spelling with underscores, and a key of axolotl's fsdp_config without its prefix."""
    name = spelling.replace("-", "_")
    known = name in foreign.REFUSED or name in foreign.NO_EFFECT
    return name if known else name.removeprefix("fsdp_")


def _renamed(spelling: str, raw: Any) -> Renamed | str:  # noqa: ANN401  (a value as written)
    name = _aliases()[spelling]
    if isinstance(raw, list) and name in {"dataset_path", "eval_dataset_path"}:
        try:
            value = foreign.read_datasets(raw)
        except ValueError as error:
            return str(error)
        if name == "eval_dataset_path" and not isinstance(value, str):
            if not all(isinstance(item, str) for item in value):
                said = (
                    "expected paths of evaluation samples alone, found a weight, columns or roles"
                )
                return f"{said} (keys columns and roles outside count for them, too)"
            value = ",".join(map(str, value))
        typed = any(isinstance(item, Mapping) and item.get("type") for item in raw)
        return Renamed(name=name, value=value, note=foreign.FORM_NOTE if typed else "")
    return Renamed(name=name, value=_value(name, raw))


def _switch(name: str, raw: Any) -> Renamed | NoEffect | str | None:  # noqa: ANN401, C901, PLR0911, PLR0912  (a table)
    """Return the key that a yes/no or a word of other programs stands for; None: it is none."""
    value = str(raw).lower()
    on, off = value in _TRUE, value in foreign.OFF
    match name:
        case _ if raw is None and name in _SWITCHES:
            return NoEffect()
        case "packing" | "sample_packing":
            packed = "packed" if on else "balanced"
            return Renamed(name="batching", value=packed, weight=2 if on else 0)
        case "balance" | "group_by_length" | "length_balance":
            length = "balanced" if on else "plain"
            return Renamed(name="batching", value=length, weight=2 if on else 1)
        case "bf16" | "bfloat16":
            words = {"auto": "auto"} | dict.fromkeys(_TRUE, "bfloat16")
            return Renamed(name="dtype", value=words.get(value, "float32"), weight=1 if off else 2)
        case "use_lora" | "lora":
            return Renamed(name="method", value="lora" if on else "full")
        case "adapter":
            method = "full" if off else value
            no = "quantized bases are not trained here; write adapter: lora"
            return no if value == "qlora" else Renamed(name="method", value=method)
        case "lora_target_linear":
            return Renamed(name="lora_target_modules", value="all-linear") if on else NoEffect()
        case "tensorboard" | "use_tensorboard" | "use_wandb" | "use_mlflow":
            tracker = name.removeprefix("use_")
            return Renamed(name="report_to", value=tracker) if on else NoEffect()
        case "recipe":
            return _recipe(value)
        case "flash_attention" | "sdp_attention" | "flex_attention" | "eager_attention":
            return Renamed(name="attn_implementation", value=_ATTENTION[name]) if on else NoEffect()
        case "fsdp" | "ddp":
            return _sharding(name, value, off=off)
        case "auto_resume_from_checkpoints":
            return Renamed(name="resume_from_checkpoint", value="latest") if on else NoEffect()
        case "saves_per_epoch" if value != "1":
            return NoEffect() if off else "write save_steps, or save_epochs: 1"
        case "save_strategy" | "saves_per_epoch" if value in {"epoch", "1"}:
            return Renamed(name="save_epochs", value="1")
        case "eval_strategy" | "evaluation_strategy" | "evals_per_epoch" if value in {"epoch", "1"}:
            return Renamed(name="eval_epochs", value="1")
        case "evals_per_epoch":
            hint = "write eval_steps: steps of an epoch divided by it, or eval_epochs: 1"
            return NoEffect() if off else hint
        case "save_strategy" if value in {"no", "false"}:
            return Renamed(name="save_minutes", value="0")
        case "save_strategy" | "eval_strategy" | "evaluation_strategy":
            key = f"{name.partition('_')[0].replace('evaluation', 'eval')}_steps"
            return NoEffect() if value in {"steps", "no"} else f"expected the key {key}"
        case _:
            return None


def _recipe(value: str) -> Renamed | str:
    """Return the dtype of Surogate's recipe."""
    bf16 = Renamed(name="dtype", value="bfloat16")
    return bf16 if value == "bf16" else "FP8 and FP4 are not trained here; use dtype: bfloat16"


def _sharding(name: str, value: str, *, off: bool) -> Renamed | NoEffect | str:
    """Return the layout for axolotl's list of FSDP words, or for `ddp: true`."""
    if off:
        return NoEffect()
    if "offload" in value:
        return "nothing is moved to the CPU's memory; write parallel: fsdp"
    hybrid = "hybrid_shard" in value
    return Renamed(name="parallel", value="hsdp" if hybrid else name)


def _value(name: str, raw: Any) -> Any:  # noqa: ANN401  (a value as written)
    if isinstance(raw, list) and len(raw) == 1 and isinstance(raw[0], str):
        word = raw[0].lower()
        return _VALUES[name][word] if word in _VALUES.get(name, {}) else raw
    return _VALUES.get(name, {}).get(raw.lower(), raw) if isinstance(raw, str) else raw


def nearest(name: str, among: Iterable[str]) -> str:
    """Return the name that is meant but for a slip or a first word, or "": no other guess helps."""
    names = list(among)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
    return next(iter((*close, *(other for other in names if other.endswith(f"_{name}")))), "")


def section_names() -> tuple[str, ...]:
    """Return the headings that keys may stand under; which one is the writer's own choice."""
    ours = dict.fromkeys(item.metadata["section"] for item in dataclasses.fields(Config))
    return (*ours, *_OTHER_SECTIONS.split())


def _fields() -> tuple[str, ...]:
    return tuple(item.name for item in dataclasses.fields(Config))


def _aliases() -> dict[str, str]:
    ours = {
        also: item.name for item in dataclasses.fields(Config) for also in item.metadata["also"]
    }
    return ours | dict(foreign.SPELLINGS)
