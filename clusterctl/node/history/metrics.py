"""Operation `metrics`: the lines of a training's metrics.jsonl, every n-th if they are many."""

from __future__ import annotations

import io
import os
import stat

from clusterctl.node.agent.call_channel import CallChannel
from clusterctl.node.checkpoints.origin import Origin
from clusterctl.node.history.other_metrics import other_metrics
from clusterctl.node.run.operations.status import find_run
from clusterctl.wire import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO, Dict, List, Tuple

NAME = "metrics.jsonl"
KEPT_BYTES = 1 << 20
"""Of the lines of steps; those of evaluations may be as many."""
LINE_BYTES = 1 << 16
READ_BYTES = 1 << 30
"""Of the file; what is behind is not read."""


def metrics(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Send the lines of the first file that exists; else what the run printed of its steps.

    A file to which another run may have written at the same time counts as none.

    Args:
        args: `workdir`, and `paths` from there: files, or folders that may have a `metrics.jsonl`;
            with `printed`, also `cluster`, `run`, `node` and perhaps `state`.
    """
    del body, channel
    workdir = os.path.expanduser(args.get("workdir") or ".")
    folders = [os.path.join(workdir, os.path.expanduser(path)) for path in args["paths"]]
    for folder in folders:
        name = os.path.join(folder, NAME) if os.path.isdir(folder) else folder
        try:
            # A pipe must not block.
            descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            continue
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode) and not _has_two_writers(args, name, status.st_mtime):
                lines, every = _thinned(file)
                return Message({"file": name, "every": every}, b"".join(lines))
    file_name, rows = other_metrics(find_run(args), folders) if args.get("printed") else ("", [])
    lines, every = _thinned(io.BytesIO(b"".join(rows)))
    return Message({"file": file_name, "every": every}, b"".join(lines))


def _has_two_writers(args: Dict[str, Any], name: str, written: float) -> bool:
    if not args.get("printed"):
        return False
    return bool(Origin(args, os.path.dirname(name)).writer(written).beside)


def _thinned(file: BinaryIO) -> Tuple[List[bytes], int]:
    """Return whole lines in their order, at even distances, and every how many-th of the steps."""
    kept: Dict[bool, List[Tuple[int, bytes]]] = {False: [], True: []}
    sizes, seen, every = {False: 0, True: 0}, {False: 0, True: 0}, {False: 1, True: 1}
    while file.tell() < READ_BYTES:
        line = file.readline(LINE_BYTES)
        if not line.endswith(b"\n"):
            if len(line) < LINE_BYTES:
                break  # the end, or a line that is being written
            continue
        of_eval = b'"eval' in line
        if seen[of_eval] % every[of_eval] == 0:
            kept[of_eval].append((file.tell(), line))
            sizes[of_eval] += len(line)
        seen[of_eval] += 1
        if sizes[of_eval] > KEPT_BYTES:
            kept[of_eval] = kept[of_eval][::2]
            sizes[of_eval] = sum(len(one) for _, one in kept[of_eval])
            every[of_eval] *= 2
    # A line may have both, and steps that go back are steps that were done again.
    return [line for _, line in sorted(kept[False] + kept[True])], every[False]
