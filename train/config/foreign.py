"""Keys of axolotl, Surogate and transformers' Trainer, as foreign.yaml lists them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

TABLES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def _by_key(table: str) -> dict[str, str]:
    """Return key → meaning; beginnings of keys end in `*`."""
    return {key: why for why, keys in TABLES[table].items() for key in keys.split()}


def _split(known: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return whole keys, and beginnings of keys."""
    starts = {key[:-1]: why for key, why in known.items() if key.endswith("*")}
    return {key: why for key, why in known.items() if key[-1] != "*"}, starts


SPELLINGS = _by_key("same")
"""Other spellings → the key that means the same; common ones are in Config."""
REFUSED, REFUSED_STARTS = _split(_by_key("refused"))
"""Key → why it is none here, and what to write instead. Values of OFF are taken."""
NO_EFFECT, _NO_EFFECT_STARTS = _split(_by_key("no_effect"))
"""Key → why its value changes no result here; it is taken with a note."""
ALWAYS = _by_key("always")
"""Keys that are refused only where they are off."""
NEUTRAL: dict[str, set[str]] = {}
"""Values of refused keys, besides OFF, that mean what is done here anyway."""
for _values, _keys in TABLES["neutral"].items():
    for _key in _keys.split():
        NEUTRAL.setdefault(_key, set()).update(_values.split())
ON = frozenset({"true", "yes", "on", "1"})
OFF = frozenset({"", "none", "null", "~", "false", "no", "off", "0", "[]", "{}"})
"""Values that leave another program's feature off, as it is here."""
FORM_NOTE = "type has no effect: each line is read by the keys in it"


def takes_structure(name: str) -> bool:
    """Whether a key's list or mapping is read whole, since no keys of this program are in it."""
    lists = {"datasets", "test_datasets", "validation_datasets", "fsdp"}
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

    Raises:
        ValueError: a key of an item asks for what is not done here; all are named.
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
