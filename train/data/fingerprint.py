"""What the data is and where its parts begin: found in one pass, by one process of each node.

Hashing 50 GB takes a minute, so the first process of a node leaves what it found in the cache
folder; its neighbours, and later runs, take it as long as the files are untouched.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from train.data.claims import beating, wait_for
from train.data.jsonl import Mark
from train.errors import ConfigError
from train.files import write_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCK = 1 << 22
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
    """Read the files once: their digest, and where each of so many parts begins.

    Raises:
        ConfigError: somebody writes to them meanwhile.
    """
    began, before = time.time_ns(), identity(files)
    size = sum(path.stat().st_size for path in files)
    targets = iter([part * size // parts for part in range(parts)])
    target: int | None = next(targets)
    whole = hashlib.sha256()
    marks: list[Mark] = []
    start = lines = 0
    for number, path in enumerate(files):
        digest = hashlib.sha256()
        offset, within, last = 0, 0, b"\n"
        while target is not None and target <= start:
            marks.append(Mark(file=number, offset=0, line=lines, within=0))
            target = next(targets, None)
        for block in _blocks(path):
            digest.update(block)
            while target is not None:
                # A part begins with the first line that starts at its target or after it.
                at = block.find(b"\n", max(0, target - 1 - start - offset)) + 1
                if not at:
                    break
                passed = within + block.count(b"\n", 0, at)
                begin = Mark(file=number, offset=offset + at, line=lines + passed, within=passed)
                marks.append(begin)
                target = next(targets, None)
            within += block.count(b"\n")
            offset += len(block)
            last = block[-1:]
        within += last != b"\n"
        lines, start = lines + within, start + offset
        whole.update(digest.digest())
    end = Mark(file=len(files), offset=0, line=lines, within=0)
    marks += [end] * (parts - len(marks))
    same(files, before)
    return Scan(digest=whole.hexdigest(), marks=tuple(marks), identity=before, began=began)


def same(files: tuple[Path, ...], before: Identity) -> None:
    """Refuse files that are no longer what they were.

    Raises:
        ConfigError: they are not.
    """
    if identity(files) != before:
        raise ConfigError(
            (f"{files[0].parent}: expected data that stays as it is, found it changed meanwhile",),
            hint="start again when it is whole",
        )


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            yield block


def shared(files: tuple[Path, ...], parts: int, cache: Path, *, local_rank: int) -> Scan:
    """Return what the node's first process finds, or has found in files still untouched.

    Args:
        files: The data.
        parts: How many parts there are to be.
        cache: Where the processes of a node leave each other what they find.
        local_rank: The first one, 0, does the work.

    Raises:
        ConfigError: the first process found nothing, and has ended.
    """
    names = "\0".join([socket.gethostname(), str(parts), *(str(path.absolute()) for path in files)])
    path = cache / f"scan-{hashlib.sha256(names.encode()).hexdigest()[:20]}.json"
    if local_rank == 0:
        found = _left(path, files)
        if found is None or not found.sure:
            with beating(path.with_suffix(".alive")):  # the others see that somebody is at it
                found = scan(files, parts)
            write_text(path, json.dumps(dataclasses.asdict(found)))
        return found
    wait_for(lambda: _left(path, files) is not None, cache, what=path)
    return _left(path, files) or scan(files, parts)  # (changed within this moment)


def _left(path: Path, files: tuple[Path, ...]) -> Scan | None:
    """Return what was found before, if it is of the files as they are now."""
    try:
        about = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    if about["identity"] != identity(files):
        return None
    return Scan(**about | {"marks": tuple(Mark(**mark) for mark in about["marks"])})
