"""The files that a path stands for: of a format that is read, and of the split that is meant."""

from __future__ import annotations

import re
from pathlib import Path

from train.errors import ConfigError

JSON_LINES = (".jsonl", ".ndjson")
PARQUET = ".parquet"
SUFFIXES = (*JSON_LINES, PARQUET)
WAY_OUT = {
    ".json": "one object a line: jq -c '.[]' FILE > FILE.jsonl",
    ".gz": "gunzip it first",
    ".csv": "python -c \"import pandas; pandas.read_csv('F').to_json('F.jsonl', "
    'orient="records", lines=True)"',
}
OF_FILES = frozenset((*SUFFIXES, *WAY_OUT))
"""Endings that a file has; a dot in the name of a hub data set is none of them."""

SPLIT = re.compile(r"(?<![a-z])(train|validation|valid|val|dev|eval|test)(?![a-z])")
"""How the files of a split are called."""
HELD_OUT = ("validation", "test")
"""Splits to evaluate on, the better one first."""


def find(path: Path, *, key: str) -> tuple[Path, ...]:
    """Return the files that a path stands for, in the order of their names.

    In a folder whose files are named by split, training takes those of `train` alone.

    Raises:
        ConfigError: there are none; `key` names the key that gave the path.
    """
    try:
        return _find(path, key)
    except OSError as error:
        problem = f"{key}: expected a file or folder that can be read at {path}, found: "
        raise ConfigError((problem + str(error.strerror),)) from error


def _find(path: Path, key: str) -> tuple[Path, ...]:
    """Return the files, as `find` does; what cannot be read is an OSError."""
    if path.is_dir():
        return of_folder(path, sorted(path.iterdir()), key=key, name=str(path))
    if not path.is_file():
        above = next(
            parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists()
        )
        found = (
            "it is no file" if above == path.absolute() else f"there is {above} and nothing below"
        )
        raise ConfigError((f"{key}: expected a file or folder at {path}, found: {found}",))
    with path.open("rb") as file:
        start = file.read(64).lstrip()
    if path.suffix == PARQUET:
        return (path,)
    if path.suffix in WAY_OUT and not start.startswith(b"{"):
        raise ConfigError(
            (f"{key}: expected JSON lines in {path}, found {path.suffix[1:]}",),
            hint=WAY_OUT[path.suffix],
        )
    if start.startswith(b"["):
        raise ConfigError(
            (f"{key}: expected JSON lines in {path}, found one JSON array",),
            hint=WAY_OUT[".json"],
        )
    return (path,)


def of_folder(folder: Path, items: list[Path], *, key: str, name: str) -> tuple[Path, ...]:
    """Return those files that a key means: of its own split, where files are named by split.

    Args:
        folder: That the data set is.
        items: What is in it.
        key: `dataset_path`, or that of the evaluation.
        name: What the data set is called.

    Raises:
        ConfigError: there are none.
    """
    lines = [item for item in items if item.suffix in JSON_LINES]
    # A folder that has both holds the same rows twice.
    files = lines or [item for item in items if item.suffix == PARQUET]
    if not files:
        other = next((item for item in items if item.suffix in WAY_OUT), None)
        found = "none" if other is None else f"{other.name}, which it cannot read"
        raise ConfigError(
            (f"{key}: expected *.jsonl or *.parquet files in {name}, found {found}",),
            hint=WAY_OUT[other.suffix] if other else None,
        )
    splits = {path: _split(path.relative_to(folder)) for path in files}
    for wanted in ("train",) if key == "dataset_path" else HELD_OUT:
        chosen = tuple(path for path in files if splits[path] == wanted)
        if chosen:
            return chosen
    unnamed = tuple(path for path in files if splits[path] is None)
    if not unnamed:
        found = ", ".join(path.name for path in files)
        wanted = "train" if key == "dataset_path" else " or ".join(HELD_OUT)
        raise ConfigError(
            (f"{key}: expected files named {wanted} in {name}, found {found}",),
            hint="give the path of the file that is meant",
        )
    return unnamed


def _split(path: Path) -> str | None:
    """Return the split that a file's name, or a folder's that it is in, stands for."""
    for word in (path.stem, *reversed(path.parent.parts)):
        if found := SPLIT.search(word.lower()):
            return {"train": "train", "test": "test"}.get(found[1], "validation")
    return None
