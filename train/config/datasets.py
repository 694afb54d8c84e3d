"""The data sets of a training: where each is, and how often an epoch has its samples."""

from __future__ import annotations

import math
import os.path
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from train.config import columns
from train.config.environment import expanded
from train.errors import ConfigError

KEYS = ("path", "weight", "columns", "roles")
"""Of a data set in the list."""


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


def listed(named: str | tuple[Dataset, ...]) -> tuple[Dataset, ...]:
    """Return the data sets that a configuration names; a path alone is one of weight 1."""
    return (Dataset(path=named),) if isinstance(named, str) else named


def read(raw: Any) -> str | tuple[Dataset, ...]:  # noqa: ANN401  (as written)
    """Return one path, or the data sets of a list; a flag has the list as YAML.

    Raises:
        ConfigError: it is neither; every problem is listed.
    """
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
        except ValueError as error:
            problems.append(str(error))
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


def _dataset(item: Any) -> Dataset:  # noqa: ANN401  (as written)
    if isinstance(item, str):
        return Dataset(path=expanded(item))
    if not (isinstance(item, Mapping) and isinstance(item.get("path"), str)):
        raise ValueError(f"expected a path, or path and weight, found {item!r}")  # noqa: TRY004  (the user's value)
    path = item["path"]
    if unknown := [str(key) for key in item if key not in KEYS]:
        wanted = ", ".join(KEYS[:-1]) + f" and {KEYS[-1]}"
        raise ValueError(f"expected {wanted}, found {', '.join(unknown)} in {path}")
    weight = item.get("weight", 1.0)
    path = expanded(item["path"])
    try:
        share = float(str(weight))
    except ValueError:
        wanted = f"expected a number as the weight of {path}"
        raise ValueError(f"{wanted}, found {weight!r}") from None
    names: dict[str, dict[str, str] | None] = {}
    for key, read_names in (("columns", columns.read_columns), ("roles", columns.read_roles)):
        try:
            names[key] = read_names(item.get(key))
        except ValueError as error:
            wanted = f"expected {error} as the {key} of {path}"
            raise ValueError(f"{wanted}, found {item[key]!r}") from None
    return Dataset(path=path, weight=share, columns=names["columns"], roles=names["roles"])
