"""Other programs' spellings of the keys: taken where they mean the same, refused where not."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from train.config import foreign
from train.config.config import Config
from train.config.foreign import OFF, ON

FIELDS = {item.name: item for item in dataclasses.fields(Config)}
ALIASES: Mapping[str, str] = {
    also: name for name, item in FIELDS.items() for also in item.metadata["also"]
} | foreign.SPELLINGS
SECTIONS = (
    *dict.fromkeys(item.metadata["section"] for item in FIELDS.values()),
    "training", "train", "trainer", "optim", "optimizer", "dataset", "eval", "validation",
    "output", "fsdp", "parallel", "fsdp_config", "special_tokens",
)  # fmt: skip
"""Headings that keys may stand under; which one is the writer's own choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One key as it was written, under its own name, whatever the spelling was."""

    name: str
    value: Any
    """As it is written, and then of the key's type."""
    source: str = ""
    """`config.yaml:12` or the flag."""
    weight: int = 2
    """Of two spellings of one key in a file the higher one counts: what is switched off yields."""
    note: str = ""
    """What to print about the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoEffect:
    """A key that changes nothing here."""

    note: str = ""
    """What to print about it; nothing, where its value asks for what is done anyway."""


def _answer(meant: str | list[Any] | None) -> Given | NoEffect | str:
    """Return what foreign.yaml says of a switch: key, value and weight; a refusal; or nothing."""
    if isinstance(meant, list):
        return Given(name=meant[0], value=meant[1], weight=meant[2] if meant[2:] else 2)
    return meant or NoEffect()


_SWITCHES = {
    key: {value: _answer(meant) for value, meant in answers.items()}
    for keys, answers in foreign.TABLES["switches"].items()
    for key in keys.split()
}
"""Yes/no keys and words of other programs → value → what it means; `*` is any other value."""
_VALUES: Mapping[str, Mapping[str, str | None]] = foreign.TABLES["values"]
"""Our key → other spellings of its values."""


def expand(spelling: str, raw: Any) -> list[tuple[str, Any]]:
    """Return the keys that one key of another program stands for."""
    tracker = {"wandb_project": "wandb", "mlflow_experiment_name": "mlflow"}.get(spelling)
    on = raw is not None and str(raw).lower() not in OFF
    return [(spelling, raw), *([("report_to", tracker)] if tracker and on else [])]


def resolve(  # noqa: PLR0911  (one for each kind of answer)
    spelling: str, raw: Any
) -> Given | NoEffect | str:
    """Return train's key and value for a spelling, that it has no effect, or why it cannot be."""
    name = _plain(spelling)
    if raw is None and name.startswith("lora_"):
        return NoEffect()  # templates without LoRA leave its keys empty
    if name in FIELDS:
        return Given(name=name, value=_value(name, raw))
    switched = _switch(name, raw)
    if switched is not None:
        return switched
    if name in ALIASES:
        return NoEffect() if raw is None else _renamed(name, raw)
    refused = foreign.why_refused(name, raw)
    if refused is not None:
        return refused or NoEffect()
    if note := foreign.why_no_effect(name):
        return NoEffect(note="" if raw is None else note)
    close = nearest(name, (*FIELDS, *ALIASES))
    return "unknown key" + (f"; nearest: {ALIASES.get(close, close)}" if close else "")


def own_name(spelling: str) -> str:
    """Return the key that a spelling means, or the spelling."""
    name = _plain(spelling)
    return ALIASES.get(name, name)


def nearest(name: str, among: Iterable[str]) -> str:
    """Return the name that is meant but for a slip or a first word, or "": no other guess helps."""
    names = list(among)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
    return next(iter((*close, *(other for other in names if other.endswith(f"_{name}")))), "")


def _plain(spelling: str) -> str:
    """Return a spelling with underscores, and a key of axolotl's fsdp_config without its prefix."""
    name = spelling.replace("-", "_")
    known = name in foreign.REFUSED or name in foreign.NO_EFFECT
    return name if known else name.removeprefix("fsdp_")


def _switch(name: str, raw: Any) -> Given | NoEffect | str | None:
    """Return what a yes/no or a word of other programs stands for; None: it is none."""
    value = str(raw).lower()
    if name in {"fsdp", "ddp"}:
        if value in OFF:
            return NoEffect()
        if "offload" in value:
            return "nothing is moved to the CPU's memory; write parallel: fsdp"
        return Given(name="parallel", value="hsdp" if "hybrid_shard" in value else name)
    answers = _SWITCHES.get(name)
    if answers is None:
        return None
    if raw is None and name != "adapter":  # without a value that one means all weights
        return NoEffect()
    word = "on" if value in ON else "off" if value in OFF else "*"
    return answers.get(value, answers.get(word, answers.get("*")))


def _renamed(spelling: str, raw: Any) -> Given | str:
    name = ALIASES[spelling]
    if not (isinstance(raw, list) and name in {"dataset_path", "eval_dataset_path"}):
        return Given(name=name, value=_value(name, raw))
    try:
        value = foreign.read_datasets(raw)
    except ValueError as error:
        return str(error)
    if name == "eval_dataset_path" and not isinstance(value, str):
        if not all(isinstance(item, str) for item in value):
            return (
                "expected paths of evaluation samples alone, found a weight, columns or roles "
                "(keys columns and roles outside count for them, too)"
            )
        value = ",".join(map(str, value))
    typed = any(isinstance(item, Mapping) and item.get("type") for item in raw)
    return Given(name=name, value=value, note=foreign.FORM_NOTE if typed else "")


def _value(name: str, raw: Any) -> Any:
    known = _VALUES.get(name, {})
    alone = raw[0] if isinstance(raw, list) and len(raw) == 1 else raw
    return known.get(alone.lower(), raw) if isinstance(alone, str) else raw
