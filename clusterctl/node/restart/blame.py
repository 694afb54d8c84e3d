"""Which node a failed attempt blames: only for what no program does by itself. Pure."""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from typing import Dict

from clusterctl.node.restart.judgement import AttemptEnd, Checks, first_cause
from clusterctl.node.restart.rules import RULES

XIDS = frozenset({
    46, 48, 54, 61, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, *range(144, 151), 155, 157,
    158, 161, 167, 171, 172,
})  # fmt: skip
"""The Xids that mean a fault of the GPU, as `checks/gpu/xid_catalog.py` explains them."""
FULL = (" MiB left", " no inode left", os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
"""How a check says that a folder is full: often the job's own doing."""
LOST = RULES["lost"].words
_KINDS = frozenset({"ecc", "gpu-lost", "driver-mismatch", "nvml", "fabric", "io-error"})
"""The kinds of printed causes that are a fault of the node.

Not here is what a program or its user may have done: a full disk or memory, busy or hidden GPUs.
"""
_XID = re.compile(r"\bxid \([^)]*\): (\d{1,5})\b", re.IGNORECASE)
_GPU_CHECKS = frozenset({"gpus", "gpu-memory", "xid"})
_SHOWN = 300
"""Characters of a printed line that a reason has."""


def faulty(kind: str, line: str) -> str:
    """Return what is wrong with a node on which a program ended with this line; empty: nothing."""
    words = RULES[kind].words if kind in _KINDS else ""
    xid = _XID.search(line)
    if kind == "ecc" and xid and int(xid[1]) not in XIDS:
        return ""  # a program's own error makes an Xid, too
    if kind == "io-error" and "input/output error" not in line.lower():
        return ""  # a folder may be read-only on purpose
    return "%s: %s" % (words, line[:_SHOWN]) if words else ""


def blamed(end: AttemptEnd, checks: Checks) -> Dict[str, str]:
    """Return the nodes that an attempt's end and the checks after it blame, each with why."""
    found: Dict[str, str] = {}
    cause = first_cause(end)
    # A master that answers alone may have been cut off itself: then nothing tells which it was.
    if cause.kind == "lost" and len(set(checks) - set(end.lost)) > 1:
        found.update(dict.fromkeys(end.lost, LOST))
    elif len(cause.nodes) == 1 and faulty(cause.kind, cause.line):
        found[cause.nodes[0]] = faulty(cause.kind, cause.line)
    failed = Counter(name for each in checks.values() for name, why in each.items() if why)
    for node, each in checks.items():
        reasons = [
            why
            for name, why in each.items()
            # What several nodes have at once, such as a server that is away, is no node's fault.
            if why and not why.endswith(FULL) and (name in _GPU_CHECKS or failed[name] == 1)
        ]
        if reasons:
            found[node] = "; ".join(reasons)
    return found
