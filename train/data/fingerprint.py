"""What the data is and where its parts begin: found in one pass, by one process of each node.

Hashing 50 GB takes a minute, so the first process of a node leaves what it found in the cache
folder; its neighbors, and later runs, take it as long as the files are untouched.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from train.data.files import lines
from train.data.files.lines import Mark
from train.errors import ConfigError
from train.files import write_text

LOOK = 0.1
"""Seconds between two looks for what another process makes."""
UNSURE = 2_000_000_000
"""Nanoseconds after a change in which some file systems would show a second one as the same."""

Identity = list[list[int | str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What one pass over the files finds."""

    digest: str
    """SHA-256 of what the files hold, whatever they are called."""
    marks: tuple[Mark, ...]
    """Where each part begins, the parts being of about the same size."""
    lines: int
    """Of all files."""
    identity: Identity
    """The files as they were."""
    began: int
    """When, in nanoseconds."""

    @property
    def sure(self) -> bool:
        """Whether a change since would show: the last one was long enough before."""
        changed = max(int(about[-1]) for about in self.identity)
        return self.began - changed > UNSURE


def identity(files: tuple[Path, ...]) -> Identity:
    """Return what changes when a file is written to: a change time cannot be set back."""
    found: Identity = []
    for path in files:
        with path.open("rb") as file:  # NFS asks its server at an open, and not at a stat
            about = os.fstat(file.fileno())
        found.append([
            str(path.absolute()), about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns
        ])  # fmt: skip
    return found


def scan(files: tuple[Path, ...], parts: int) -> Scan:
    """Read the files once: their digest, and where each of so many parts begins."""
    began, before = time.time_ns(), identity(files)
    sizes = [path.stat().st_size for path in files]
    targets = [part * sum(sizes) // parts for part in range(parts)]
    whole = hashlib.sha256()
    marks: list[Mark] = []
    start = seen = 0
    for number, (path, size) in enumerate(zip(files, sizes, strict=True)):
        while len(marks) < parts and targets[len(marks)] <= start:
            marks.append(Mark(file=number, offset=0, line=seen, within=0))
        inside = [target - start for target in targets[len(marks) :]]
        found = lines.scan(path, inside)
        for offset, within in found.begins:
            marks.append(Mark(file=number, offset=offset, line=seen + within, within=within))
        seen, start = seen + found.lines, start + size
        whole.update(found.digest)
    end = Mark(file=len(files), offset=0, line=seen, within=0)
    marks += [end] * (parts - len(marks))
    same(files, before)
    return Scan(
        digest=whole.hexdigest(), marks=tuple(marks), lines=seen, identity=before, began=began
    )


def same(files: tuple[Path, ...], before: Identity) -> None:
    """Refuse files that are no longer what they were."""
    if identity(files) != before:
        raise ConfigError(
            f"{files[0].parent}: expected data that stays as it is, found it changed meanwhile",
            hint="start again when it is whole",
        )


def nothing() -> None:
    """Check nothing: there are no other ranks."""


def wait_for(ready: Callable[[], bool], check: Callable[[], None]) -> None:
    """Wait for what the first process of this node makes; `check` raises if that is vain."""
    while not ready():
        check()
        time.sleep(LOOK)


def shared(
    files: tuple[Path, ...],
    parts: int,
    cache: Path,
    *,
    local_rank: int,
    check: Callable[[], None] = nothing,
) -> Scan:
    """Return what the node's first process finds, or has found in files still untouched."""
    names = "\0".join([socket.gethostname(), str(parts), *(str(path.absolute()) for path in files)])
    path = cache / f"scan-{hashlib.sha256(names.encode()).hexdigest()[:20]}.json"
    if local_rank == 0:
        found = _left(path, files)
        if found is None or not found.sure:
            found = scan(files, parts)
            write_text(path, json.dumps(dataclasses.asdict(found)))
        return found
    wait_for(lambda: _left(path, files) is not None, check)
    return _left(path, files) or scan(files, parts)  # (changed within this moment)


def _left(path: Path, files: tuple[Path, ...]) -> Scan | None:
    try:
        about = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    if about["identity"] != identity(files) or "lines" not in about:  # (an earlier version's)
        return None
    return Scan(**about | {"marks": tuple(Mark(**mark) for mark in about["marks"])})
