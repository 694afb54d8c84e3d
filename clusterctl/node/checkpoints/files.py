"""The files of a checkpoint: which there are, what they say, and whether each is whole."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from clusterctl.node.checkpoints import safetensors_files, torch_files
from clusterctl.node.checkpoints.torch_zip import CHUNK, Invalid, NoChecksum, Progress

TENSOR_SUFFIXES = (safetensors_files.SUFFIX, *torch_files.SUFFIXES)


def no_progress(_count: int) -> None:
    """Report to no one."""


class Inspection(NamedTuple):
    """How closely to look."""

    content: bool
    """Every byte that has a checksum, not only names, headers and sizes."""
    compare: bool = False
    """Sum up every byte, so that equal sizes do not pass for equal content."""
    world_size: Optional[int] = None
    """Of the run that wrote it, where known."""
    expected_world_size: Optional[int] = None
    """Of the run that is resumed, which may have been of another size."""
    progress: Progress = no_progress
    """Called with the size of every piece that was read."""

    def check_files(self, folder: str, names: Iterable[str]) -> Set[str]:
        """Return which files of a folder nothing proves; Invalid if one is cut or changed."""
        unproven = set()
        for name in sorted(names):
            try:
                self._file(os.path.join(folder, name), name)
            except NoChecksum:
                unproven.add(name)
        return unproven

    def _file(self, path: str, name: str) -> None:
        require_file(path, name)
        if name.endswith(safetensors_files.SUFFIX):
            safetensors_files.check_safetensors(path)
            raise NoChecksum(name)
        if name.endswith(torch_files.SUFFIXES):
            torch_files.check_torch_file(path, content=self.content, progress=self.progress)


class CheckpointContents:
    """What was seen of one checkpoint."""

    def __init__(self) -> None:
        self.identity = ""
        """Equal on two nodes that hold the same checkpoint."""
        self.files: Dict[str, str] = {}
        """Each file's size, or its digest if it was read: says which one differs."""
        self.part: Optional[Dict[str, Any]] = None
        """`ranks` held here of `world_size`, where each node may hold its own ranks' files."""
        self.doubts: List[str] = []
        """What speaks against it, though it proves nothing."""
        self.mixed = ""
        """Why it may be of two saves."""

    def add_unverified(self, unproven: Iterable[str]) -> None:
        """Doubt the content of files that nothing proves."""
        names = sorted(unproven)
        if names:
            more = " and %d more" % (len(names) - 3) if len(names) > 3 else ""  # noqa: PLR2004
            listed = ", ".join(names[:3]) + more
            self.doubts.append("structure read, content not checksummed: %s" % listed)


def require_file(path: str, name: str) -> None:
    """Raise Invalid unless it is a regular file and not empty: a pipe would block its reader."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        dangling = ": it is a link to nothing" if os.path.islink(path) else ""
        raise Invalid("%s is missing%s" % (name, dangling)) from None
    if not stat.S_ISREG(found.st_mode):
        raise Invalid("%s is not a file" % name)
    if found.st_size == 0:
        raise Invalid("%s is empty" % name)


def digest(path: str, progress: Progress = no_progress) -> str:
    """Return the SHA-256 of a file's bytes."""
    found = hashlib.sha256()
    with open(path, "rb") as stream:
        for chunk in iter(lambda: stream.read(CHUNK), b""):
            found.update(chunk)
            progress(len(chunk))
    return found.hexdigest()


def files_of(path: str, progress: Progress = no_progress) -> Iterator[Tuple[str, os.stat_result]]:
    """Yield a checkpoint's regular files, by their paths within it; links are followed.

    Links to nothing, pipes and the like are left out: a check that needs one finds it missing.
    """
    paths = [path] if not os.path.isdir(path) else _walk(path)
    for file in paths:
        progress(0)
        try:
            found = os.stat(file)
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode):
            name = os.path.basename(path) if file == path else os.path.relpath(file, path)
            yield name, found


def _walk(path: str) -> List[str]:
    return [
        os.path.join(folder, name) for folder, _, names in os.walk(path) for name in sorted(names)
    ]


def link_targets(path: str, progress: Progress = no_progress) -> List[str]:
    """Return where the path and its files really are, if links lead out of it."""
    real = os.path.realpath(path)
    found = {real}
    for file in [] if not os.path.isdir(path) else _walk(path):
        progress(0)
        target = os.path.realpath(file) if os.path.islink(file) else real + os.sep
        if not target.startswith(real + os.sep):
            found.add(target)
    return sorted(found)
