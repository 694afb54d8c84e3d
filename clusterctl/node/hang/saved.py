"""The dumps that a run's folder keeps: `hang/1.json` and so on, the newest few."""

from __future__ import annotations

import contextlib
import os

from clusterctl.node.file_io import list_folder, read_json
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.own_files import make_private, replace_file
from clusterctl.wire import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

KEPT = 5


def save_dump(paths: NodePaths, dump: Dict[str, Any]) -> str:
    """Write a dump, and remove the oldest; return its path. OSError: it cannot be written."""
    make_private(paths.hang)
    found = _kept(paths)
    path = os.path.join(paths.hang, "%d.json" % (found[-1][0] + 1 if found else 1))
    replace_file(path, to_json(dump))
    for _, old in found[: 1 - KEPT]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(old)
    return path


def newest_dump(paths: NodePaths) -> Dict[str, Any]:
    """Return the newest dump that is whole; an empty one if there is none."""
    for _, path in reversed(_kept(paths)):
        dump = read_json(path)
        if dump:
            return dump
    return {}


def _kept(paths: NodePaths) -> List[Tuple[int, str]]:
    """Return the number and path of each, the oldest first."""
    numbers = (name[:-5] for name in list_folder(paths.hang) if name.endswith(".json"))
    kept = sorted(int(number) for number in numbers if number.isdigit())
    return [(number, os.path.join(paths.hang, "%d.json" % number)) for number in kept]
