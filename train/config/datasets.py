"""The data sets of a training: where each is, how often it comes, what its columns are called."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from train.errors import ConfigError

KEYS = ("path", "weight", "columns", "roles")
"""Of a data set in the list."""
IN_LINES = frozenset({
    "text", "prompt", "completion", "response", "messages", "conversations", "system", "tools",
    "functions", "chat_template_kwargs", "instruction", "input", "output", "history", "question",
    "answer", "images", "image", "chosen", "rejected",
})  # fmt: skip
"""All keys of a line that are read."""
IN_MESSAGES = frozenset({
    "role", "content", "name", "reasoning_content", "tool_calls", "tool_call_id", "train", "weight",
})  # fmt: skip
"""Keys of a message that may have other names; a template may know more."""
VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w*)\})")
HOME = re.compile(r"(?:^|(?<=,)) *(~[^/,]*)")
"""Of a user, at the beginning of a path, or of one in a list with commas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A data set to train on."""

    path: str
    """A file, a folder, or a hub id."""
    weight: float = 1.0
    """How many times an epoch has each of its samples."""
    columns: Mapping[str, str] | None = None
    """Keys that are read → the columns that have them; instead of the configuration's."""
    roles: Mapping[str, str] | None = None
    """Names of roles → roles; instead of the configuration's."""


def read(raw: Any) -> str | tuple[Dataset, ...]:
    """Return one path, or the data sets of a list; a flag has the list as YAML."""
    if isinstance(raw, str) and raw.startswith("["):
        try:
            raw = yaml.safe_load(raw)
        except yaml.YAMLError:
            raise ConfigError(f"expected a list of paths, found {raw!r}") from None
    if isinstance(raw, str):
        return expanded(raw)
    if not isinstance(raw, Sequence):
        raise ConfigError(f"expected a path, or a list of paths, found {raw!r}")
    found: list[Dataset] = []
    problems: list[str] = []
    for item in raw:
        try:
            found.append(_dataset(item))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)
    return tuple(found)


def conflicts(datasets: Sequence[Dataset]) -> Iterator[str]:
    """Yield what cannot be as written."""
    seen = set()
    for each in datasets:
        if not each.path:
            yield "dataset_path: expected a path in each item of the list, found none"
        if not (math.isfinite(each.weight) and each.weight > 0):
            weight = f"a weight above 0 for {each.path}"
            yield f"dataset_path: expected {weight}, found {each.weight:g}"
        if (path := os.path.normpath(each.path)) in seen:
            once = f"expected {each.path} once (weight: 2 has its samples twice)"
            yield f"dataset_path: {once}, found it again"
        seen.add(path)


def _dataset(item: Any) -> Dataset:
    if isinstance(item, str):
        return Dataset(path=expanded(item))
    if not (isinstance(item, Mapping) and isinstance(item.get("path"), str)):
        raise ConfigError(f"expected a path, or path and weight, found {item!r}")
    path = item["path"]
    if unknown := [str(key) for key in item if key not in KEYS]:
        wanted = ", ".join(KEYS[:-1]) + f" and {KEYS[-1]}"
        raise ConfigError(f"expected {wanted}, found {', '.join(unknown)} in {path}")
    found: dict[str, Any] = {"path": expanded(path)}
    for key, reader in (
        ("weight", _weight), ("columns", read_columns), ("roles", read_roles),
    ):  # fmt: skip
        try:
            found |= {key: reader(item[key])} if key in item else {}
        except ValueError as error:
            wanted = f"expected {error} as the {key} of {found['path']}"
            raise ConfigError(f"{wanted}, found {item[key]!r}") from None
    return Dataset(**found)


def read_columns(raw: Any) -> dict[str, str] | None:
    """Return our keys → the columns of a data set; a ValueError says what was wanted."""
    found = read_mapping(raw)
    if unknown := sorted((found or {}).keys() - IN_LINES - IN_MESSAGES):
        known = ", ".join(sorted(IN_LINES | IN_MESSAGES))
        raise ValueError(f"keys out of {known} (not {', '.join(unknown)})")
    return _of_names(found, "a mapping of keys to names of columns")


def read_roles(raw: Any) -> dict[str, str] | None:
    """Return a data set's names of roles → roles; axolotl's `{user: [visitor]}` means the same."""
    given = read_mapping(raw)
    if given is None:
        return None
    found: dict[str, Any] = {}
    for key, value in given.items():
        found |= dict.fromkeys(value, key) if isinstance(value, list) else {key: value}
    return _of_names(found, "a mapping of names to roles, such as {visitor: user}")


def read_mapping(raw: Any) -> dict[str, Any] | None:
    """Return a mapping that JSON can have; a flag writes it as YAML does: `{a: false}`."""
    try:
        value = yaml.safe_load(raw) if isinstance(raw, str) else raw
        json.dumps(value)
    except (yaml.YAMLError, TypeError):
        raise ValueError("a mapping") from None
    if value is None or str(value).lower() in {"", "none"}:  # Python's own None, written
        return None
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError("a mapping")
    return dict(value)


def _of_names(found: dict[str, Any] | None, wanted: str) -> dict[str, str] | None:
    words = (*(found or {}).keys(), *(found or {}).values())
    if not all(isinstance(word, str) and word for word in words):
        raise ValueError(wanted)
    return found


def _weight(raw: Any) -> float:
    try:
        return float(str(raw))
    except ValueError:
        raise ValueError("a number") from None


def expanded(path: str) -> str:
    """Return a path with the values of `$NAME`, `${NAME}` and `~`; a hub id stays as it is.

    What is not set is refused: a folder of that name, made by mistake, would never be found.
    """
    return VARIABLE.sub(_variable, HOME.sub(_home, path))


def _variable(match: re.Match[str]) -> str:
    name = match[1] or match[2]
    if value := os.environ.get(name):
        return value
    found = "empty" if name in os.environ else "unset"
    raise ConfigError(f"expected the variable {name} to be set, found it {found}")


def _home(match: re.Match[str]) -> str:
    try:
        return str(Path(match[1]).expanduser())
    except RuntimeError:
        raise ConfigError(f"expected a user's home, found no user {match[1]}") from None
