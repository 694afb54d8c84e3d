"""Takes a dump as it was ordered. It runs in a process of its own: see `stacks`.

That is a child of the supervisor: the ranks allow its processes to read them.
"""

from __future__ import annotations

import contextlib
import os
import time

from clusterctl.node.file_io import list_folder
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.own_files import make_private, replace_file
from clusterctl.wire import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping

SECONDS, NATIVE_SECONDS = 4.0, 20.0
"""How long all of it may take; the symbols of torch's libraries take long to read."""
ANSWER = "answer-"
"""How the file begins that a dump is written to for one who waits for it."""
ANSWER_SECONDS = 600.0
"""After that, no one waits for it."""
SPARE_SECONDS = 6.0
"""What a dump may take beyond its own limit, on a busy machine."""


def take(paths: NodePaths, order: Mapping[str, Any], ranks: List[Dict[str, Any]]) -> Dict[str, Any]:
    """Return a dump as an order wants it: `only`, `native`, `locals`, `quiet`."""
    from clusterctl.node.hang.stacks import dump_ranks  # noqa: PLC0415  (the asker needs it not)

    native = bool(order.get("native"))
    return dump_ranks(
        paths,
        ranks,
        only=order.get("only"),
        quiet=order.get("quiet"),
        native=native,
        with_locals=bool(order.get("locals")),
        seconds=NATIVE_SECONDS if native else SECONDS,
    )


def take_to_file(
    paths: NodePaths, order: Mapping[str, Any], ranks: List[Dict[str, Any]]
) -> Dict[str, Any]:
    """Take a dump, and write it to the file that the order's `answer` names."""
    dump = take(paths, order, ranks)
    make_private(paths.hang)
    _remove_old_answers(paths)
    replace_file(answer_file(paths, order), to_json(dump))
    return {}


def limit_of(order: Mapping[str, Any]) -> float:
    """Return for how many seconds a dump is waited for."""
    return (NATIVE_SECONDS if order.get("native") else SECONDS) + SPARE_SECONDS


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
