"""The data sets of a training: where each is, and how often an epoch has its samples."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from train.config import columns
from train.errors import ConfigError

KEYS = ("path", "weight", "columns", "roles")
"""Of a data set in the list."""
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
            raise ConfigError((f"expected a list of paths, found {raw!r}",)) from None
    if isinstance(raw, str):
        return expanded(raw)
    if not isinstance(raw, Sequence):
        raise ConfigError((f"expected a path, or a list of paths, found {raw!r}",))
    found: list[Dataset] = []
    problems: list[str] = []
    for item in raw:
        try:
            found.append(_dataset(item))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(tuple(problems))
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
        raise ConfigError((f"expected a path, or path and weight, found {item!r}",))
    path = item["path"]
    if unknown := [str(key) for key in item if key not in KEYS]:
        wanted = ", ".join(KEYS[:-1]) + f" and {KEYS[-1]}"
        raise ConfigError((f"expected {wanted}, found {', '.join(unknown)} in {path}",))
    found: dict[str, Any] = {"path": expanded(path)}
    for key, reader in (
        ("weight", _weight), ("columns", columns.read_columns), ("roles", columns.read_roles),
    ):  # fmt: skip
        try:
            found |= {key: reader(item[key])} if key in item else {}
        except ValueError as error:
            wanted = f"expected {error} as the {key} of {found['path']}"
            raise ConfigError((f"{wanted}, found {item[key]!r}",)) from None
    return Dataset(**found)


def _weight(raw: Any) -> float:
    try:
        return float(str(raw))
    except ValueError:
        raise ValueError("a number") from None


def expanded(path: str) -> str:
    """Return a path with the values of `$NAME`, `${NAME}` and `~`; a hub id stays as it is.

    Raises:
        ConfigError: a variable is not set, or there is no such user: a folder of that name, made
            by mistake, would never be found.
    """
    return VARIABLE.sub(_variable, HOME.sub(_home, path))


def _variable(match: re.Match[str]) -> str:
    name = match[1] or match[2]
    if value := os.environ.get(name):
        return value
    found = "empty" if name in os.environ else "unset"
    raise ConfigError((f"expected the variable {name} to be set, found it {found}",))


def _home(match: re.Match[str]) -> str:
    try:
        return str(Path(match[1]).expanduser())
    except RuntimeError:
        raise ConfigError((f"expected a user's home, found no user {match[1]}",)) from None
