"""The paths that a run depends on, and the filesystems they are on."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

from clusterctl.facts.answers import Answers
from clusterctl.facts.fact import Fact, Question, texts, typed
from clusterctl.facts.machine.machine_state import seconds
from clusterctl.facts.request import FactRequest
from clusterctl.facts.storage.mounts import MOUNTS, mount_of, read_mounts
from clusterctl.values import dataclass

Here = Literal["", "synced", "ignored", "absent"]
"""What the folder here has of a path; empty: not read, or a sync brings a part of it only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathFacts:
    """One path that the run depends on."""

    path: str
    exists: bool | None = None
    folder: bool | None = None
    writable: bool | None = None
    """Of a path that does not exist: its nearest folder that does."""
    size: int | None = None
    """Bytes of a file; of a folder, the sum of its files."""
    entries: int | None = None
    """Files of a folder, at any depth."""
    digest: str = ""
    """Equal if the sizes, and the ends of the largest files, are equal."""
    free_bytes: int | None = None
    total_bytes: int | None = None
    free_files: int | None = None
    """Inodes that are free."""
    total_files: int | None = None
    """0 if the filesystem has no fixed number."""
    write_rate: float | None = None
    """Bytes a second, of a small file that reached the disk."""
    read_rate: float | None = None
    file_s: float | None = None
    """Seconds to make a small file, look it up and remove it."""
    faults: tuple[str, ...] = ()
    """Of a model in it: shards that are missing or cut."""
    lacks: tuple[str, ...] = ()
    """Files that belong next to the weights of a model."""
    mount: str = ""
    """Where its filesystem is mounted."""
    source: str = ""
    """What is mounted there, such as `server:/export`."""
    filesystem: str = ""
    read_only: bool | None = None
    lock_option: str | None = None
    """The mount option by which locks fail or hold on this node only; empty: there is none."""
    problem: str = ""
    """The system's error, or that it did not answer in time."""
    here: Here = ""
    """Of a path in workdir: what a sync of the folder here would do for it."""


def _ask(wanted: FactRequest) -> Question:
    return Question(files=(MOUNTS,), paths=wanted.places)


@Fact("paths", _ask)
def parse_paths(answers: Answers) -> tuple[PathFacts, ...]:
    """Return each path that was asked for, with its mount."""
    return tuple(_path(answers, place.path) for place in answers.wanted.places)


def _path(answers: Answers, path: str) -> PathFacts:
    answer = answers.by_key.get("path:" + path)
    found = answers.object("path:" + path)
    if answer is None or not found:
        why = answer.why() if answer is not None else "not asked"
        return PathFacts(path=path, problem=why or "no answer")
    facts = PathFacts(
        path=path,
        exists=typed(bool, found.get("exists")),
        folder=typed(bool, found.get("folder")),
        writable=typed(bool, found.get("writable")),
        size=typed(int, found.get("size")),
        entries=typed(int, found.get("entries")),
        digest=str(found.get("digest", "")),
        free_bytes=typed(int, found.get("free")),
        total_bytes=typed(int, found.get("total")),
        free_files=typed(int, found.get("free_files")),
        total_files=typed(int, found.get("total_files")),
        write_rate=typed(float, found.get("write_rate")),
        read_rate=typed(float, found.get("read_rate")),
        file_s=typed(float, found.get("file_s")),
        faults=texts(found.get("faults")),
        lacks=texts(found.get("lacks")),
        problem=str(found.get("problem", "")),
    )
    mount = mount_of(
        answers.once(read_mounts), str(found.get("real" if facts.exists else "near") or path)
    )
    if mount is None:
        return facts
    return replace(
        facts,
        mount=mount.point,
        source=mount.source,
        filesystem=mount.filesystem,
        read_only=mount.read_only,
        lock_option=mount.lock_option,
    )


MOST = 20
"""Locks that count of a node's answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildLock:
    """One lock, which a build removes when it ends, but not if it is killed."""

    path: str
    age_s: float = 0.0
    held: bool = True
    """A process on the node has it open, so a build is at work; or it is not known."""


def _ask_locks(wanted: FactRequest) -> Question:
    return Question(build_locks=wanted.build_locks)


@Fact("build_locks", _ask_locks)
def parse_build_locks(answers: Answers) -> tuple[BuildLock, ...] | None:
    """Return the locks; None: they were not asked for, or could not be read."""
    listed = answers.object("build-locks").get("locks")
    patterns = answers.wanted.build_locks
    if not patterns or not isinstance(listed, list):
        return None
    ends = [re.escape(each.lstrip("~")).replace(r"\*", "[^/\n]+") for each in patterns]
    asked = re.compile(rf"(?:/[^\n]*)?(?:{'|'.join(ends)})")
    found = []
    for one in listed[:MOST]:
        path = one.get("path") if isinstance(one, dict) else None
        if isinstance(path, str) and asked.fullmatch(path):
            age = seconds(one.get("age_s")) or 0.0
            found.append(BuildLock(path=path, age_s=age, held=one.get("held") is not False))
    return tuple(found)
