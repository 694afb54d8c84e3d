"""Data sets in an object store: downloaded to the cache, once a node, then read as files.

All files are downloaded before the training, or, if they are streamed, each as it is reached.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from train.config.config import Config
from train.data.files import paths
from train.data.progress import Phase, Reporter
from train.errors import ConfigError, counted
from train.files import measure, write_text
from train.lock import Lock
from train.object_store import Folder, ask

LIST = "downloaded.json"
"""Written last: the files of a data set, with their sizes and hashes."""
Sizes = dict[str, tuple[int, str]]
"""By name, from the data set's folder on: bytes, and what changes if the file does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A file of a data set, which may be in a store."""

    path: Path
    """Where it is, or will be, on this node."""
    size: int = 0
    changes: str = ""
    """What changes if the file in the store does."""
    there: Folder | None = None
    """Where it is in a store."""

    def here(self) -> Path:
        """Return its path; what is only in the store is downloaded first, once a node."""
        if self.there:
            there, aside = self.there, self.path.with_name(f".{self.path.name}.part")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with Lock(self.path.with_name(f".{self.path.name}.owner")).held():
                if not self.path.exists():
                    ask(there, lambda: there.bring(aside), key="dataset_path", tell=_say)
                    aside.replace(self.path)
        return self.path

    def forget(self) -> None:
        """Remove what was downloaded."""
        if self.there:
            self.path.unlink(missing_ok=True)


def items(url: str, config: Config, *, key: str) -> Iterator[Item]:
    """Yield the files that a URL's data set is read from; nothing is downloaded."""
    there, files = find(url, key=key)
    label = hashlib.sha256(f"{there.url} {config.output_dir}".encode()).hexdigest()[:20]
    folder = config.tokens / "downloads" / f"stream-{label}"
    alone = is_file(there, files)
    every = {folder / name: name for name in files}
    chosen = [*every] if alone else paths.of_folder(folder, every, key=key, name=there.url)
    for path in chosen:
        size, changes = files[every[path]]
        part = there if alone else there / every[path]
        yield Item(path=path, size=size, changes=changes, there=part)


def fetch(url: str, config: Config, *, key: str) -> Path:
    """Return the folder, or the file, that a URL's data set was downloaded to.

    What changed in the store since is another data set, with a folder of its own.
    """
    there, files = find(url, key=key)
    label = hashlib.sha256(json.dumps([there.url, sorted(files.items())]).encode()).hexdigest()[:20]
    folder = config.tokens / "downloads" / label
    folder.mkdir(parents=True, exist_ok=True)
    with Lock(folder.with_name(f".{label}.owner")).held():
        if not (folder / LIST).exists():
            _download(there, files, folder, key)
    return folder / "data" / next(iter(files)) if is_file(there, files) else folder / "data"


def find(url: str, *, key: str) -> tuple[Folder, Sizes]:
    """Return where the files of a data set are, and which ones; nothing is downloaded."""
    there = Folder.at(url, key=key)
    above = there.path
    if "*" in there.path:
        found = ask(there, lambda: there.system.glob(there.path, detail=True), key=key, tell=_say)
        above = there.path.partition("*")[0].rpartition("/")[0]
        there = Folder(there.url, above, there.system)
    else:
        found = ask(there, lambda: there.system.find(there.path, detail=True), key=key, tell=_say)
    files: Sizes = {}
    for path, about in sorted(found.items()):
        name = path.removeprefix(above).lstrip("/") or there.name
        if about["type"] == "file" and _is_data(name):
            changes = about.get("ETag") or about.get("mtime") or about.get("LastModified")
            files[name] = int(about["size"]), str(changes)
    if not files:
        raise ConfigError(f"{key}: expected {paths.READ} files in {there.url}, found none")
    return there, files


def is_file(there: Folder, files: Sizes) -> bool:
    """Whether a URL is that of a file itself."""
    return [*files] == [there.name] and PurePosixPath(there.path).name == there.name


def in_words(files: Sizes) -> str:
    """Return how many files a data set has, and how large they are."""
    size = sum(size for size, _ in files.values())
    return f"{counted(len(files), 'file')}, {size / 2**20:.1f} MiB"


def _is_data(name: str) -> bool:
    parts = PurePosixPath(name).parts
    left = any(part.startswith(paths.LEFTOVER) for part in parts)  # "..", too
    return name.lower().endswith(paths.SUFFIXES) and not left


def _download(there: Folder, files: Sizes, folder: Path, key: str) -> None:
    size, free = sum(size for size, _ in files.values()), shutil.disk_usage(folder).free
    if free < size:
        wanted = f"{size / 2**30:.2f} GiB free in {folder} for {there.url}"
        raise ConfigError(f"{key}: expected {wanted}, found {free / 2**30:.2f}")
    _say(f"downloading {there.url} ({in_words(files)}) to {folder}")
    listed = {}
    with Reporter(dataset=there.url, report=_report).during("downloading", size=size):
        for name, (wanted_size, _) in files.items():
            file = folder / "data" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            part = there if is_file(there, files) else there / name
            ask(part, lambda: part.bring(file), key=key, tell=_say)  # noqa: B023  (called at once)
            found = measure(file)
            if found.size != wanted_size:
                said = f"expected {wanted_size} bytes of {part.url}, found {found.size}"
                raise ConfigError(f"{key}: {said}: was it changed meanwhile?")
            listed[name] = {"size": found.size, "sha256": found.sha256}
    write_text(folder / LIST, json.dumps({"url": there.url, "files": listed}, indent=1) + "\n")


def _say(text: str) -> None:
    print(text, flush=True)


def _report(phase: Phase) -> None:
    _say(phase.words())
