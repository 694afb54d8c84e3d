"""The files that a path stands for: of a format that is read, and of the split that is meant."""

from __future__ import annotations

import difflib
import glob
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from train.data.files import contents, streams
from train.errors import ConfigError

JSON_LINES = (".jsonl", ".ndjson")
PARQUET = ".parquet"
KINDS = (JSON_LINES, (PARQUET,), (".json",), (".csv",), (".tsv",), (".tar",))
"""Of a folder that has several, only the first is read: it may hold the same rows twice."""
PLAIN = tuple(ending for kind in KINDS for ending in kind)
SUFFIXES = (*PLAIN, *streams.SUFFIXES)
OF_FILES = frozenset((*SUFFIXES, *contents.OTHER))
"""Endings that a file has; a dot in the name of a hub data set is none of them."""
READ = "*.jsonl, *.parquet, *.json, *.csv, *.tsv or *.tar"

SPLIT = re.compile(r"(?<![a-z])(train|validation|valid|val|dev|eval|test)(?![a-z])")
"""How the files of a split are called."""
HELD_OUT = ("validation", "test")
"""Splits to evaluate on, the better one first."""
LEFTOVER = (".", "~", "#", "__")
"""How what editors, notebooks, Office and macOS leave behind is called."""
ABOUT_DATA = frozenset(
    {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
)
"""Files of the library `datasets` without rows."""
OF_A_RUN = ({"metrics.jsonl", "status.json"}, {"MANIFEST.json", "COMPLETE"})
"""Files of an output_dir; of a checkpoint, and of tokens."""
SCAN = re.compile(r"scan-[0-9a-f]{20}\.json")
"""A file of a cache_dir."""
SHOWN = 5


def find(path: Path, *, key: str) -> tuple[Path, ...]:
    """Return the files that a path stands for, those of a folder in the order of their names.

    A path is that of a file or folder, or a pattern of names (`*`).
    In a folder whose files are named by split, training takes those of `train` alone.
    """
    try:
        if path.is_dir():
            files = of_folder(path, below(path), key=key, name=str(path))
        elif path.is_file():
            files = (path,)
        elif glob.has_magic(str(path)) and not path.exists():
            files = _of_pattern(path, key)
        else:
            found = "found: it is no file" if path.exists() else _instead(path)
            raise ConfigError(f"{key}: expected a file or folder at {path}, {found}")
        for file in files:
            if ending(file) != PARQUET:
                contents.refuse_other(file, key=key, is_table=ending(file) in {".csv", ".tsv"})
    except OSError as error:
        problem = f"{key}: expected a file or folder that can be read at {path}, found: "
        raise ConfigError(problem + str(error.strerror)) from error
    return files


def ending(path: Path) -> str:
    """Return how a file's name ends, without the ending of a compressed one: `.csv` of a.csv.gz."""
    name = Path(path.stem) if path.suffix.lower() in streams.SUFFIXES else path
    return name.suffix.lower()


def below(folder: Path) -> list[Path]:
    """Return the files in a folder and in those below it, in the order of their names.

    Hidden files and leftovers are none of them, nor is what a training has written there. An
    OSError names a folder that cannot be read.
    """

    def fail(error: OSError) -> None:
        raise error

    found: list[Path] = []
    seen: set[str] = set()
    for name, folders, files in os.walk(folder, onerror=fail, followlinks=True):
        of_run = _of_a_run({*folders, *files})
        if (real := os.path.realpath(name)) in seen or (of_run and Path(name) != folder):
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(each for each in folders if not each.startswith(LEFTOVER))
        found += [Path(name, each) for each in files if each not in of_run and _is_data(each)]
    return sorted(found)


def _of_a_run(names: set[str]) -> set[str]:
    """Return which files of a folder a training has written there."""
    found = {name for name in names if SCAN.fullmatch(name)}
    return found.union(*(written for written in OF_A_RUN if written <= names))


def _is_passed(path: Path, folder: Path) -> bool:
    """Whether a file or folder that is in another is left out when that one is read."""
    if folder not in path.parents:
        return False
    if path.is_dir() and _of_a_run(set(os.listdir(path))):  # noqa: PTH208
        return True
    return not _is_data(path.name) or path.name in _of_a_run(set(os.listdir(path.parent)))  # noqa: PTH208


def _is_data(name: str) -> bool:
    return not name.startswith(LEFTOVER) and name not in ABOUT_DATA


def _of_pattern(path: Path, key: str) -> tuple[Path, ...]:
    """Return the files that a pattern means, of the folders that it means those in them."""
    folder = next(parent for parent in path.parents if not glob.has_magic(str(parent)))
    items: list[Path] = []
    for item in map(Path, glob.glob(str(path), recursive=True)):  # noqa: PTH207  (Path's leave hidden files in)
        if not any(_is_passed(part, folder) for part in (item, *item.parents)):
            items += below(item) if item.is_dir() else [item]
    if not items:
        raise ConfigError(f"{key}: expected files that match {path}, {_instead(path)}")
    items = sorted(set(items))
    return of_folder(folder, items, key=key, name=str(path), chosen=True)


def _instead(path: Path) -> str:
    """Return what is there instead of a path, and what in it has the nearest name."""
    wanted, above = path.name, path.parent
    while not above.exists():
        wanted, above = above.name, above.parent
    if not above.is_dir():
        return f"found that {above} is no folder"
    names = sorted(name for name in os.listdir(above) if _is_data(name))  # noqa: PTH208
    near = difflib.get_close_matches(wanted, names, n=1)
    if near:
        return f"found none; nearest: {above / near[0]}"
    return f"found none; in {above.absolute()} there {_listed(names)}"


def _listed(names: list[str]) -> str:
    if not names:
        return "is nothing"
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    verb = "is" if len(names) == 1 else "are"
    return f"{verb} {', '.join(names[:SHOWN])}{more}"


def of_folder(
    folder: Path, items: Iterable[Path], *, key: str, name: str, chosen: bool = False
) -> tuple[Path, ...]:
    """Return the items of a folder that a key means: of its own split, if they are named by split.

    If a user has `chosen` the files by a pattern, and all are of another split, those are meant.
    """
    items = list(items)
    files = next((of_kind for kind in KINDS if (of_kind := tuple(_of_kind(kind, items)))), ())
    if not files:
        other = next((item for item in items if item.suffix.lower() in contents.OTHER), None)
        there = _listed([item.name for item in items])
        raise ConfigError(
            f"{key}: expected {READ} files in {name}, found that there {there}",
            hint=contents.way_out(other, other.suffix.lower()) if other else None,
        )
    splits = {path: _split(path.relative_to(folder)) for path in files}
    for wanted in ("train",) if key == "dataset_path" else HELD_OUT:
        of_split = tuple(path for path in files if splits[path] == wanted)
        if of_split:
            return of_split
    unnamed = tuple(path for path in files if splits[path] is None)
    if not unnamed and not chosen:
        found = ", ".join(path.name for path in files)
        wanted = "train" if key == "dataset_path" else " or ".join(HELD_OUT)
        raise ConfigError(
            f"{key}: expected files named {wanted} in {name}, found {found}",
            hint="give the path of the file that is meant",
        )
    return unnamed or files


def _of_kind(kind: tuple[str, ...], items: list[Path]) -> Iterator[Path]:
    """Yield the files of a kind; a compressed one that lies next to itself only once."""
    there = set(items)
    for item in items:
        packed = item.suffix.lower() in streams.SUFFIXES
        if ending(item) in kind and not (packed and item.with_suffix("") in there):
            yield item


def _split(path: Path) -> str | None:
    """Return the split that a file's name, or a folder's that it is in, stands for."""
    for word in (path.stem, *reversed(path.parent.parts)):
        if found := SPLIT.search(word.lower()):
            return {"train": "train", "test": "test"}.get(found[1], "validation")
    return None
