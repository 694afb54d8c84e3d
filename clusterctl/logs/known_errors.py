"""What the last lines of a rank say about why it ended: the telling line, an echo, a remedy."""

from __future__ import annotations

import re
from collections.abc import Sequence

_ECHOES = re.compile(
    r"connection (?:reset|closed|refused|aborted) by (?:remote )?peer"
    r"|connection reset by peer|broken ?pipe|socket closed|remote process exited"
    r"|ncclremoteerror|nccl communicator was aborted|ncclsystemerror"
    r"|watchdog caught collective operation timeout|process group watchdog"
    r"|distnetworkerror|distbackenderror|rendezvousconnectionerror"
    r"|failed to recv, got 0 bytes|gloo/transport/tcp|timed out waiting \d+ms for (?:recv|send)",
    re.IGNORECASE,
)
"""What the other ranks print because one has gone: never the first cause where there is another."""

_REMEDIES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), remedy)
    for pattern, remedy in (
        (
            r"cuda out of memory|outofmemoryerror|hip out of memory",
            "use a smaller batch per device with more gradient accumulation",
        ),
        (
            r"no space left on device",
            "make room on the node: df -h there shows the full filesystem",
        ),
        (r"disk quota exceeded", "make room or raise the quota: quota -s on the node"),
        (
            r"modulenotfounderror: no module named|importerror:",
            "install it on every node, or name another interpreter as `python:` in the inventory",
        ),
        (
            r"address already in use|eaddrinuse",
            "launch with another --master-port, or without one: then a free one is chosen",
        ),
        (
            r"can't open file .*\[errno 2\]",
            "the script is not there: a job starts in `workdir:`, where `clusterctl sync` puts it",
        ),
        (
            r"filenotfounderror|no such file or directory",
            "list the path under `needs:` in the inventory: check then finds it missing before",
        ),
        (
            r"permissionerror|permission denied",
            "the ssh user needs access to that path on the node",
        ),
        (r"too many open files", "raise the limit: `env_init: ulimit -n 65536` in the inventory"),
        (r"unrecoverable ecc|xid", "the GPU is faulty: leave the node out with --exclude"),
        (
            r"bus error|unable to write to file </torch_|shared memory",
            "give the node (or its container) a larger /dev/shm",
        ),
        (
            r"nonfinite|non-finite|loss is nan",
            "resume from the last checkpoint with a lower learning rate",
        ),
    )
)

_EXCEPTION = re.compile(r"^(?:\[rank\d+\]: ?)?[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\b")


def exception_line(lines: Sequence[str]) -> str:
    """Return the line of the last exception; empty where none was printed."""
    spoken = (line.strip() for line in reversed(lines))
    return next((line for line in spoken if _EXCEPTION.match(line)), "")


def last_line(lines: Sequence[str]) -> str:
    """Return the last line that is not empty."""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def telling_line(lines: Sequence[str]) -> str:
    """Return the line that says most: the last exception's, else the last that is not empty."""
    return exception_line(lines) or last_line(lines)


def is_echo(lines: Sequence[str]) -> bool:
    """Tell whether a rank ended because another rank, or its node, had gone."""
    return bool(_ECHOES.search(telling_line(lines)))


def remedy_for(lines: Sequence[str]) -> str:
    """Return what to do about a known message; empty for an unknown one."""
    line = telling_line(lines)
    for pattern, remedy in _REMEDIES:
        if pattern.search(line):
            return remedy
    return ""
