"""The operation `checkpoints`: which checkpoints a folder on this node holds, and are they whole.

Runs on nodes: standard library only, Python 3.9.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Tuple

from clusterctl.node import checkpoint_formats as formats
from clusterctl.node.archives import Broken
from clusterctl.node.link import Link, OperationError
from clusterctl.wire import Message

_UNFINISHED = ".tmp"


def checkpoints(args: Dict[str, Any], _body: bytes, _link: Link) -> Message:
    """List the candidates, newest first, or judge the one that is asked for.

    Args: `workdir` and `path` (the job's checkpoint folder, relative to it or not, may be None),
    `which` ("latest", or a path: absolute, in workdir or in `path`), `verify` (check content,
    not only structure), `world_size` (of the run that wrote them, where known).
    """
    workdir = os.path.expanduser(args.get("workdir") or ".")
    folder = os.path.join(workdir, os.path.expanduser(args.get("path") or "."))
    look = formats.Look(content=bool(args.get("verify")), world_size=args.get("world_size"))
    which = args.get("which") or "latest"
    if which == "latest":
        paths = _found_in(folder)
    else:
        asked = _resolve(which, workdir, folder)
        folder = os.path.dirname(asked)
        paths = [asked]
    candidates = [_judge(path, look) for path in paths]
    candidates.sort(key=_age, reverse=True)
    return Message({"folder": folder, "candidates": candidates})


def _resolve(which: str, workdir: str, folder: str) -> str:
    which = os.path.expanduser(which)
    places = [os.path.join(workdir, which), os.path.join(folder, which)]
    for place in places:
        if os.path.exists(place):
            return os.path.normpath(place)
    raise OperationError("missing", "there is no %s" % " nor ".join(dict.fromkeys(places)))


def _found_in(folder: str) -> List[str]:
    """List what in a folder looks like a checkpoint; the folder itself where it is one."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise OperationError("missing", "cannot list %s: %s" % (folder, error.strerror)) from error
    paths = [os.path.join(folder, name) for name in names]
    inside = [path for path in paths if formats.kind_of(path) or _unfinished(path)]
    folders = [path for path in inside if os.path.isdir(path)]
    if formats.kind_of(folder) and not folders:
        return [os.path.normpath(folder)]
    return [os.path.normpath(path) for path in folders or inside]


def _unfinished(path: str) -> bool:
    return _UNFINISHED in os.path.basename(path) and os.path.isdir(path)


def _judge(path: str, look: formats.Look) -> Dict[str, Any]:
    """Say what one path is worth; whatever is wrong with it is part of the answer."""
    kind = formats.kind_of(path)
    answer: Dict[str, Any] = {
        "path": path,
        "name": os.path.basename(path),
        "format": kind or "unknown",
        "step": formats.step_of(path),
        "time": 0.0,
        "complete": False,
        "verified": look.content,
        "why": "",
        "hash": "",
        "part": None,
        "doubts": [],
        "bytes": 0,
    }
    try:
        answer["time"] = os.path.getmtime(path)
    except OSError:
        answer["why"] = "it was renamed or removed while we looked"
        return answer
    if _unfinished(path):
        answer["why"] = "it is being written, or its writer died"
        return answer
    if kind is None:
        answer["why"] = "it is none of the known kinds of checkpoint"
        return answer
    try:
        answer["bytes"] = sum(os.path.getsize(file) for file in formats.files_of(path))
        found = formats.verify(path, kind, look)
    except formats.PartOnly as part:
        found = part.found
        answer["why"] = str(part)
    except Broken as broken:
        answer["why"] = str(broken)
        return answer
    except OSError as error:
        answer["why"] = "it cannot be read: %s" % error
        return answer
    answer["complete"] = not answer["why"]
    answer["hash"] = found.identity
    answer["part"] = found.part
    answer["doubts"] = found.doubts
    return answer


def _age(answer: Dict[str, Any]) -> Tuple[int, float]:
    """Order by step, then by time; what says no step is older than what does."""
    step = answer["step"]
    return (-1 if step is None else step, answer["time"])
