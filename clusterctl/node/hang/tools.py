"""py-spy on this node: in the state folder, where a controller put it, or the job's own.

Its name there is its hash, which is checked before each use. The agent of a dump only looks for
the name: to hash 8 MB, and to import what does, would take more of its time than all the rest.
"""

from __future__ import annotations

import contextlib
import os

from clusterctl.node.file_io import list_folder
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.own_files import make_private, replace_file, require_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Optional, Tuple

PREFIX = "py-spy-"
SIZE_LIMIT = 32 * 1024 * 1024
"""Bytes that the program may have."""


class WrongToolError(Exception):
    """What came is not the program that was announced."""


def has_tool(paths: NodePaths, digest: str) -> bool:
    """Tell whether a program with that name is there, this user's alone; no hash is checked."""
    folder = paths.tools
    try:
        require_private(folder)
    except OSError:
        return False
    return os.path.exists(os.path.join(folder, PREFIX + digest))


def _is_whole(path: str, digest: str) -> bool:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            return _hash(file.read(SIZE_LIMIT)) == digest
    except OSError:
        return False


def _hash(program: bytes) -> str:
    import hashlib  # noqa: PLC0415  (see above)

    return hashlib.sha256(program).hexdigest()


def keep_tool(paths: NodePaths, digest: str, program: bytes) -> None:
    """Write the program, and remove those of other versions.

    Raises:
        WrongToolError: it has another hash.
        OSError: it cannot be written.
    """
    if _hash(program) != digest:
        raise WrongToolError("what came is not py-spy with hash %s" % digest)
    folder = paths.tools
    make_private(os.path.dirname(folder), folder)
    own = PREFIX + digest
    replace_file(os.path.join(folder, own), program, mode=0o700)
    for name in list_folder(folder):
        if name.startswith(PREFIX) and not name.startswith(own):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))


def find_tool(paths: NodePaths, programs: Iterable[str]) -> Tuple[Optional[str], str]:
    """Return py-spy's path, or None and why there is none.

    One that has changed is removed: the next dump has it sent again.
    """
    folder = paths.tools
    problem = "py-spy is not on this node"
    for name in list_folder(folder):
        path, digest = os.path.join(folder, name), name[len(PREFIX) :]
        if not name.startswith(PREFIX) or not has_tool(paths, digest):
            continue
        if not _is_whole(path, digest):
            with contextlib.suppress(OSError):
                os.unlink(path)
        elif os.access(path, os.X_OK):
            return path, ""
        else:
            problem = "%s cannot be run from there: is it mounted noexec?" % path
    import shutil  # noqa: PLC0415  (takes long, and is needed where none was sent)

    for program in programs:
        found = shutil.which("py-spy", path=os.path.dirname(program))
        if os.path.isabs(program) and found:
            return found, ""
    return None, problem
