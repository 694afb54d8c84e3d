"""Parses /proc/self/mountinfo: the filesystem of a path."""

from __future__ import annotations

import re
from collections.abc import Iterable

from clusterctl.facts.answers import Answers
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
