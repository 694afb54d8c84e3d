"""Files for the node that is this machine: copied, so that no rsync is needed for it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from clusterctl.transport.rsync import Pushed

TEMPORARY = Path(".clusterctl") / "tmp"


def copy(source: Path, paths: list[bytes], workdir: str) -> Pushed:
    """Copy files and links of a folder to another; each is replaced whole or not at all."""
    target = Path(workdir).expanduser()
    part = target / TEMPORARY / "part"
    try:
        part.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in map(os.fsdecode, paths):
            part.unlink(missing_ok=True)
            shutil.copy2(source / name, part, follow_symlinks=False)
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            part.replace(target / name)
    except OSError as error:
        return Pushed(code=1, words=f"{error.filename}: {error.strerror}")
    return Pushed(code=0, words="")
