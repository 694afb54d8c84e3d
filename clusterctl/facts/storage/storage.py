"""The paths that a run depends on, and the filesystems they are on."""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from clusterctl.facts.answers import Answers
from clusterctl.facts.fact import Fact, Question, seconds, texts, typed
from clusterctl.facts.request import FactRequest
from clusterctl.values import dataclass

MOUNTS = "/proc/self/mountinfo"
NETWORK = re.compile(
    r"nfs4?|cifs|smb3|ceph|lustre|beegfs|gpfs|wekafs|panfs|orangefs|afs|9p|virtiofs"
    r"|fuse\.(?!lxcfs|snapfuse|gvfsd|portal|rclone|s3fs).*"
)
"""Types of filesystems that several machines can have mounted."""
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line of the table."""

    point: str
    source: str
    filesystem: str
    options: tuple[str, ...]
    root: str = ""
    """The folder of the filesystem that is mounted here."""

    @property
    def read_only(self) -> bool:
        """Nothing can be written through this mount."""
        return "ro" in self.options

    @property
    def lock_option(self) -> str:
        """Why the file server does not hear of a lock (nfs(5), mount.lustre(8)); empty: it does."""
        if self.filesystem.startswith("nfs"):
            local = ("nolock", "local_lock=all", "local_lock=flock", "local_lock=posix")
            return next((option for option in local if option in self.options), "")
        if self.filesystem == "lustre" and "flock" not in self.options:
            return "localflock" if "localflock" in self.options else "noflock"
        return ""


def read_mounts(answers: Answers) -> tuple[Mount, ...]:
    """Return the mounts of a node; empty if its table could not be read."""
    return parse_mounts(answers.text(MOUNTS) or "")


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """Parse the table; skip other lines."""
    mounts = []
    for line in text.splitlines():
        left, found, right = line.partition(" - ")
        fields, rest = left.split(" "), right.split(" ")
        if not found or len(fields) < 6 or len(rest) < 3:  # noqa: PLR2004  (proc(5))
            continue
        options = (*fields[5].split(","), *rest[2].split(","))
        mounts.append(
            Mount(
                point=_unescape(fields[4]),
                source=_unescape(rest[1]),
                filesystem=rest[0],
                root=_unescape(fields[3]),
                # An option of the mount wins over the one of the filesystem.
                options=tuple(dict.fromkeys(o for o in options if o not in {"", "rw"})),
            )
        )
    return tuple(mounts)


def mount_of(mounts: Iterable[Mount], path: str) -> Mount | None:
    """Return the mount of a path without links: the longest, of equal ones the last."""
    best = None
    for mount in mounts:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _unescape(text: str) -> str:
    """Undo the octal escapes of space, tab, newline and backslash."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), text)


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
