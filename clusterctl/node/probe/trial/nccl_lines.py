"""Makes NCCL tell which network it uses, and keeps those lines of all that it prints."""

from __future__ import annotations

import re
from typing import Dict, List, MutableMapping

SETTINGS = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET",
    "NCCL_DEBUG_FILE": "/proc/self/fd/1",
}
"""Of the process of a trial alone. NCCL flushes each line only into a file that it opened."""
KEPT, LENGTH = 40, 400
"""Lines of a process, and letters of a line, that are kept at most."""
_LINE = re.compile(r"NCCL (?:INFO|WARN|version)\b.*")
_TELLS = re.compile(
    r"NET/\w+ : (?:Using|No device|GPU Direct)|Using network|Assigned NET plugin|NCCL version"
    r"|NCCL WARN|NET/OFI (?:Selected|Using)"
)
_VIA = re.compile(r" via ([A-Z][\w /-]*)")


def ask_nccl(environment: MutableMapping[str, str]) -> None:
    """Set NCCL's variables for this process, before NCCL reads them.

    The user's own are for the run: NCCL would truncate a file that they name, and a chatty level
    would print more than is kept.
    """
    environment.update(SETTINGS)


def kept_lines(output: str) -> List[str]:
    """Return the lines that tell of the network, each once and in their order."""
    found: Dict[str, None] = {}
    for line in output.splitlines():
        words = _LINE.search(line)
        if not words:
            continue
        via = _VIA.search(words[0])
        if via:
            found["via " + via[1].strip()[:LENGTH]] = None
        elif _TELLS.search(words[0]):
            found[words[0].strip()[:LENGTH]] = None
        if len(found) == KEPT:
            break
    return list(found)
