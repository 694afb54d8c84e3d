"""How far a job is, read from the last lines that a rank printed."""

from __future__ import annotations

import os
import re

from clusterctl.node.file_io import read_end
from clusterctl.node.run.files.run_paths import NodePaths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Match, Optional, Tuple

END_BYTES = (8 << 10, 64 << 10)
"""How much of the end of a log is read: more only where little has no step."""
STEP = re.compile(
    r"(?<![a-z])(?:step|iteration|iter)[\"']?[ \t]{0,9}[:=#]?[ \t]{0,9}(\d{1,12})"
    r"(?:[ \t]{0,9}(?:/|of)[ \t]{0,9}(\d{1,12}))?(?![\w%]|[.,]\d)",
    re.IGNORECASE,
)
"""`Step 12/1502 | Loss`, `step: 12`, `"global_step": 12`, `iteration 12/ 1502`."""
_BAR = re.compile(r"(?:^|[\r\n])[ \t]{0,9}\d{1,3}%\|[^|\r\n]{0,500}\|[ \t](\d{1,12})/(\d{1,12}) \[")
"""A bar of tqdm without a title, as the Trainer of transformers has one for its steps."""


def run_progress(paths: NodePaths) -> Optional[Dict[str, Optional[int]]]:
    """Return `step` and `total` as the node's first rank printed them last; None: it did not."""
    for log in paths.logs()[1:2]:
        for size in END_BYTES:
            found = progress_in(read_end(os.path.join(paths.folder, log), size))
            if found:
                return found
    return None


def progress_in(printed: bytes) -> Optional[Dict[str, Optional[int]]]:
    """Return the last `step` in some lines, and the `total` if it is printed; None: no step is."""
    text = printed.decode("ascii", "replace")
    words = [numbers_of(found) for found in STEP.finditer(text)]
    # The steps' bar is the longest one: an evaluation has a bar of its own.
    bars = [(int(step), int(total)) for step, total in _BAR.findall(text) if int(total)]
    longest = max((total for _, total in bars), default=0)
    bars = [bar for bar in bars if bar[1] == longest]
    found = words or bars
    if not found:
        return None
    step, total = found[-1]
    if not total and bars:
        total = bars[-1][1]
    return {"step": step, "total": total if total and total >= step else None}


def numbers_of(found: Match[str]) -> Tuple[int, Optional[int]]:
    """Return the step that STEP found, and the total; None: it is not printed, or no total."""
    step, total = int(found[1]), int(found[2] or 0)
    return step, total if total and total >= step else None
