"""The paths that a run depends on, and the filesystems they are on."""

from __future__ import annotations

from clusterctl.values import dataclass


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
