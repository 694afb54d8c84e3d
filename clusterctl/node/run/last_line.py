"""The last line that a run has printed on a node, and how long ago: what `status` shows of it."""

from __future__ import annotations

import os
import time

from clusterctl.node.file_io import read_end
from clusterctl.node.run.run_paths import NodePaths, rank_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Tuple

END_BYTES = 8192
LINE_CHARACTERS = 500


def last_line(paths: NodePaths) -> Optional[Dict[str, Any]]:
    """Return `rank`, `line` and `age_s` of the log written last; None if nothing was printed.

    A launcher's log counts only while no rank has printed anything.
    """
    newest: Optional[Tuple[bool, float, str]] = None
    for log in paths.logs():
        try:
            known = os.stat(os.path.join(paths.folder, log))
        except OSError:
            continue
        found = (rank_of(log) is not None, known.st_mtime, log)
        if known.st_size and (newest is None or found > newest):
            newest = found
    if newest is None:
        return None
    _, written, log = newest
    line = _end_of(os.path.join(paths.folder, log))
    age = round(max(0.0, time.time() - written), 1)
    return {"rank": rank_of(log), "line": line[:LINE_CHARACTERS], "age_s": age}


def _end_of(path: str) -> str:
    """Return the last line of a file that is not empty; a progress bar's last state is one."""
    lines = read_end(path, END_BYTES).replace(b"\r", b"\n").split(b"\n")
    whole = [line.strip() for line in lines if line.strip()]
    return whole[-1].decode("utf-8", "backslashreplace") if whole else ""
