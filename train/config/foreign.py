"""Other programs' spellings of the keys: taken if they mean the same, else refused.

foreign.yaml lists those of axolotl, LLaMA-Factory, Surogate and transformers' Trainer.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from train.config.config import Config

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The half in C is ten times as quick, at every start of a rank."""
TEXT = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
TABLES = yaml.load(TEXT, LOADER)  # noqa: S506  (a safe one)


def _by_key(table: str) -> dict[str, str]:
    """Return key → meaning; beginnings of keys end in `*`."""
    return {key: why for why, keys in TABLES[table].items() for key in keys.split()}


def _split(known: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return whole keys, and beginnings of keys."""
    starts = {key[:-1]: why for key, why in known.items() if key.endswith("*")}
    return {key: why for key, why in known.items() if key[-1] != "*"}, starts


ALIASES = _by_key("same")
"""Other spellings → the key that means the same."""
REFUSED, REFUSED_STARTS = _split(_by_key("refused"))
"""Key → why it is none here, and what to write instead. Values of OFF are taken."""
NO_EFFECT, _NO_EFFECT_STARTS = _split(_by_key("no_effect"))
"""Key → why its value changes no result here; it is taken with a note."""
ALWAYS = _by_key("always")
"""Keys that are refused only if they are off."""
NEUTRAL: dict[str, set[str]] = {}
"""Values of refused keys, besides OFF, that mean what is done here anyway."""
for _values, _keys in TABLES["neutral"].items():
    for _key in _keys.split():
        NEUTRAL.setdefault(_key, set()).update(_values.split())
ON = frozenset({"true", "yes", "on", "1"})
OFF = frozenset({"", "none", "null", "~", "false", "no", "off", "0", "[]", "{}"})
"""Values that leave another program's feature off, as it is here."""
TRAINS_ALL = {"base_model": "axolotl", "model_name_or_path": "TRL and the Trainer"}
"""Keys of programs that train all weights unless their file speaks of an adapter."""
FORM_NOTE = "type has no effect: each line is read by the keys in it"
FIELDS = {item.name: item for item in dataclasses.fields(Config)}
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
    spelling: str = ""
    """The key as it was written."""
    weight: int = 2
    """Of two spellings of one key in a file the higher one counts: what is switched off yields."""
    note: str = ""
    """What to print about the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoEffect:
    """A key that changes nothing here."""

    note: str = ""
    """What to print about it; nothing if its value asks for what is done anyway."""


def _answer(meant: str | list[Any] | None) -> Given | NoEffect | str:
    """Return what foreign.yaml says of a switch: key, value and weight; a refusal; or nothing."""
    if isinstance(meant, list):
        return Given(name=meant[0], value=meant[1], weight=meant[2] if meant[2:] else 2)
    return meant or NoEffect()


_SWITCHES = {
    key: {value: _answer(meant) for value, meant in answers.items()}
    for keys, answers in TABLES["switches"].items()
    for key in keys.split()
}
"""Yes/no keys and words of other programs → value → what it means; `*` is any other value."""
_VALUES: Mapping[str, Mapping[str, str | None]] = TABLES["values"]
"""Our key → other spellings of its values."""


def expand(spelling: str, raw: Any) -> list[tuple[str, Any]]:
    """Return the keys that one key of another program stands for."""
    tracker = {"wandb_project": "wandb", "mlflow_experiment_name": "mlflow"}.get(spelling)
    on = raw is not None and str(raw).lower() not in OFF
    if spelling in {"adapter", "finetuning_type"} and str(raw).lower() == "qlora":
        return [(spelling, "lora"), ("load_in_4bit", "true")]
    if spelling == "pretraining_dataset" and on:  # axolotl streams it
        return [(spelling, raw), ("stream", "true")]
    if spelling == "method" and raw in ("dpo", "orpo"):
        spelling = "objective"
    return [(spelling, raw), *([("report_to", tracker)] if tracker and on else [])]


def resolve(  # noqa: PLR0911  (one for each kind of answer)
    spelling: str, raw: Any
) -> Given | NoEffect | str:
    """Return train's key and value for a spelling, that it has no effect, or why it cannot be."""
    name = _plain(spelling)
    if raw is None and name.startswith("lora_"):
        return NoEffect()  # templates without LoRA leave its keys empty
    if raw is None and spelling in SECTIONS:
        return NoEffect()  # a heading without keys
    if name in FIELDS:
        return Given(name=name, value=_value(name, raw))
    switched = _switch(name, raw)
    if switched is not None:
        return switched
    if name in ALIASES:
        return NoEffect() if raw is None else _renamed(name, raw)
    refused = why_refused(name, raw)
    if refused is not None:
        return refused or NoEffect()
    if note := why_no_effect(name):
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
    known = name in REFUSED or name in NO_EFFECT
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
        value = read_datasets(raw)
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
    return Given(name=name, value=value, note=FORM_NOTE if typed else "")


def _value(name: str, raw: Any) -> Any:
    known = _VALUES.get(name, {})
    alone = raw[0] if isinstance(raw, list) and len(raw) == 1 else raw
    return known.get(alone.lower(), raw) if isinstance(alone, str) else raw


def takes_structure(name: str) -> bool:
    """Whether a key's list or mapping is read whole, since no keys of this program are in it."""
    lists = {"datasets", "pretraining_dataset", "test_datasets", "validation_datasets", "fsdp"}
    return name in lists or name in REFUSED or name in NO_EFFECT


def why_refused(name: str, raw: object) -> str | None:
    """Return why a key of another program cannot be taken; "": its value leaves it off."""
    value = str(raw).lower()
    if name in ALWAYS:
        return ALWAYS[name] if value in OFF and raw is not None else ""
    why = REFUSED.get(name) or _by_start(name, REFUSED_STARTS)
    return "" if why and value in OFF | NEUTRAL.get(name, set()) else why


def why_no_effect(name: str) -> str | None:
    """Return why a key of another program changes no result here."""
    return NO_EFFECT.get(name) or _by_start(name, _NO_EFFECT_STARTS)


def _by_start(name: str, starts: Mapping[str, str]) -> str | None:
    return next((why for start, why in starts.items() if name.startswith(start)), None)


def read_datasets(raw: list[Any]) -> str | list[str | dict[str, Any]]:
    """Return the paths of axolotl's or Surogate's list, with what else an item has.

    A ValueError names all keys of items that ask for what is not done here.
    """
    found: list[str | dict[str, Any]] = []
    problems: list[str] = []
    for item in raw:
        if not (isinstance(item, Mapping) and isinstance(item.get("path"), str)):
            found.append(item)  # a path alone, or what train.config.datasets refuses
            continue
        paths, rest = _paths(item)
        ours = {key: rest.pop(key) for key in ("weight", "roles") if rest.get(key) is not None}
        if columns := _columns(rest):
            ours["columns"] = columns
        problems += _unlike(item["path"], rest)
        found += [{"path": path, **ours} if ours else path for path in paths]
    if problems:
        raise ValueError("; ".join(problems))
    return found[0] if len(found) == 1 and isinstance(found[0], str) else found


def _paths(item: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return an item's paths and its other keys; `path: json` means its data_files."""
    rest = {str(key): value for key, value in item.items() if key != "path"}
    if item["path"] in {"csv", "json", "parquet"} and rest.get("data_files"):
        files = rest.pop("data_files")
        return [str(file) for file in (files if isinstance(files, list) else [files])], rest
    return [item["path"]], rest


def _columns(rest: dict[str, Any]) -> Any:
    """Take an item's names of columns out of its keys; return those that are not usual ones."""
    known = _by_key("columns").items()
    columns = {ours: name for key, ours in known if (name := rest.pop(key, None))}
    for key in ("columns", "message_property_mappings"):
        mapping = rest.pop(key, None) or {}
        if not isinstance(mapping, Mapping):
            return mapping
        columns |= mapping
    usual = TABLES["usual"]  # read under both names anyway
    return {ours: name for ours, name in columns.items() if name not in (ours, usual.get(ours))}


def _unlike(path: str, keys: Mapping[str, Any]) -> list[str]:
    """Return which keys of an item ask for what is not done here."""
    problems = []
    for key, value in keys.items():
        if str(value).lower() in OFF:
            continue
        known = TABLES["item"].get(key, "").split()
        if not known:
            problems.append(f"{key} of {path}: {REFUSED['shards']}")
        elif str(value) not in known:
            problems.append(f"{key} of {path}: expected {' or '.join(known)}, found {value}")
    return problems
