"""Files for the node that is this machine: copied, so that no rsync is needed for it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from clusterctl.sync.rsync import TEMPORARY, PushResult

CHUNK = 1 << 20


def copy(
    *,
    source: Path,
    paths: list[bytes],
    workdir: str,
    temporary: str,
    alive: Callable[[int], object],
) -> PushResult:
    """Copy files and links of a folder to another, as `rsync.push` does."""
    target = Path(workdir).expanduser()
    part = target / TEMPORARY / temporary / "part"
    done = 0

    def copied(count: int) -> None:
        nonlocal done
        done += count
        alive(done)

    try:
        part.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in map(os.fsdecode, paths):
            copied(0)
            part.unlink(missing_ok=True)
            _copy_one(source / name, part, copied)
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            part.replace(target / name)
    except OSError as error:
        return PushResult(code=1, words=f"{error.filename}: {error.strerror}")
    return PushResult(code=0, words="")


def _copy_one(path: Path, part: Path, copied: Callable[[int], object]) -> None:
    """Copy a file or a link with its mode and times; holes stay holes."""
    if path.is_symlink():
        shutil.copy2(path, part, follow_symlinks=False)
        return
    with path.open("rb") as read, part.open("wb") as written:
        while data := read.read(CHUNK):
            copied(len(data))
            if data.count(0) == len(data):
                written.seek(len(data), os.SEEK_CUR)
            else:
                written.write(data)
        written.truncate()
    shutil.copystat(path, part)
