"""What a run that holds no lock any more left on this machine: no other may start over it."""

from __future__ import annotations

import re
import time
from typing import NamedTuple, Optional

from clusterctl.node import processes
from clusterctl.node.environ import parse
from clusterctl.node.link import OperationError
from clusterctl.node.spawn import STAMP_LOCK, STAMP_RUN

LEAVING_SECONDS = 3.0
"""How long a run that has just ended gets to exit."""
POLL_SECONDS = 0.05

_RUN = re.compile(rb"[a-z0-9][a-z0-9-]{0,63}")


class Leftover(NamedTuple):
    """A process of an older run."""

    run: str
    pid: int


def must_be_empty(lock: str, run: str) -> None:
    """Refuse to start over processes of an older run, which may hold the GPUs.

    Raises:
        OperationError: `busy`.
    """
    until = time.monotonic() + LEAVING_SECONDS
    while True:
        found = find(lock, run)
        if found is None:
            return
        if time.monotonic() > until:
            break
        time.sleep(POLL_SECONDS)
    command = processes.command_of(found.pid)[:200]
    message = "processes of run %s are left: pid %d (%s)" % (found.run, found.pid, command)
    holder = {"run": found.run, "pid": found.pid}
    hint = "clusterctl stop " + found.run
    raise OperationError("busy", message, holder=holder, hint=hint)


def find(lock: str, run: str) -> Optional[Leftover]:
    """Return a process of another run under this lock; never one that this one descends from."""
    table = processes.everything()
    stamp = STAMP_LOCK + b"="
    for pid in sorted(set(table) - processes.ancestors(table)):
        if table[pid].gone or table[pid].stuck:  # the environment of a stuck one may hang us too
            continue
        try:
            with open("/proc/%d/environ" % pid, "rb") as file:
                raw = file.read()
        except OSError:
            continue  # it exited meanwhile, or is another user's
        if stamp in raw:
            stamps = parse(raw)
            name = stamps.get(STAMP_RUN, b"")
            ours = stamps.get(STAMP_LOCK) == lock.encode() and name != run.encode()
            if ours and _RUN.fullmatch(name):
                return Leftover(name.decode(), pid)
    return None
