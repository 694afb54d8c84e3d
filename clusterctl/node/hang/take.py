"""Takes a dump in a process of its own, which the supervisor starts.

    python3 -X utf8 -I -S AGENT clusterctl.node.hang.take:main FOLDER ORDER

The ranks allow the supervisor's own processes to read them: see `allow_reading_by`.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Dict, List, Mapping, Optional

from clusterctl.node.file_io import list_folder, read_json
from clusterctl.node.hang.stacks import NATIVE_SECONDS, SECONDS, dump_ranks
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.own_files import make_private, replace_file
from clusterctl.wire import from_json, to_json

ANSWER = "answer-"
"""How the file begins that a dump is written to for one who waits for it."""
ANSWER_SECONDS = 600.0
"""After that, no one waits for it."""


def main(folder: str, order: str) -> int:
    """Take a dump as an order wants it, and write it to the file that `answer` names."""
    paths, wanted = NodePaths(folder), from_json(order.encode())
    dump = take(paths, wanted)
    make_private(paths.hang)
    _remove_old_answers(paths)
    replace_file(answer_file(paths, wanted), to_json(dump))
    return 0


def take(
    paths: NodePaths,
    order: Mapping[str, Any],
    ranks: Optional[List[Dict[str, Any]]] = None,
) -> Dict[str, Any]:
    """Return a dump as an order wants it: `only`, `native`, `locals`, `quiet`."""
    if ranks is None:
        ranks = read_json(paths.supervisor).get("ranks", [])
    native = bool(order.get("native"))
    return dump_ranks(
        paths,
        ranks,
        only=order.get("only"),
        quiet={int(rank): seconds for rank, seconds in (order.get("quiet") or {}).items()},
        native=native,
        with_locals=bool(order.get("locals")),
        seconds=NATIVE_SECONDS if native else SECONDS,
    )


def _remove_old_answers(paths: NodePaths) -> None:
    """Remove the answers whose asker left before they were there."""
    for name in list_folder(paths.hang):
        path = os.path.join(paths.hang, name)
        with contextlib.suppress(OSError):
            if name.startswith(ANSWER) and os.stat(path).st_mtime < time.time() - ANSWER_SECONDS:
                os.unlink(path)


def answer_file(paths: NodePaths, order: Mapping[str, Any]) -> str:
    """Return the file that an order's answer is written to; its name is no path."""
    return os.path.join(paths.hang, ANSWER + os.path.basename(str(order["answer"])))
