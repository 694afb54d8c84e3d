"""The guard: the supervisor's parent, which ends the job and writes the end if that one dies.

    python3 -X utf8 -I -S AGENT clusterctl.node.supervisor.guard:main FOLDER UNIT DESCRIPTOR

On stdin comes one JSON object with the job, the environment and the secrets, so that these are
never on a disk. DESCRIPTOR is a pipe to the caller, for one JSON line of answer. The guard runs in
the foreground: to leave it behind is its caller's task.

It holds no lock and no socket, and only waits. The kernel gives it what a dead supervisor leaves,
sessions of their own included, so that everything below it is the run's.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any, Dict, Tuple

from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.processes import processes
from clusterctl.wire import decode_line

KILL_SECONDS = 1.0
"""How long to KILL before the guard tells the other nodes; after that it does both."""
POLL_SECONDS = 0.01

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that ask the supervisor to stop the run, whichever of the two gets them."""


def main(folder: str, unit: str, descriptor: str) -> int:
    """Start the supervisor and guard it; returns when the run is over on this node."""
    start = json.loads(sys.stdin.buffer.read())
    paths, answer = NodePaths(folder), int(descriptor)
    os.set_inheritable(answer, False)
    leave_session(paths)
    guard = processes.key_of(os.getpid())
    reader, writer = os.pipe()
    supervisor = os.fork()
    if supervisor == 0:
        from clusterctl.node.supervisor.main import supervise  # noqa: PLC0415  (the guard stays small)

        os.close(reader)
        return supervise(paths, {**start, "unit": unit, "guard": guard}, answer, writer)
    os.close(answer)
    os.close(writer)
    code, known = wait_for(supervisor, reader)
    if code == 0:
        os._exit(0)  # at once: `stop` waits for the last process of the run
    kill_descendants()
    if not known:
        return code  # it never came up, and its caller knows
    from clusterctl.node.supervisor.main import finish  # noqa: PLC0415

    return finish(paths, {**start, "unit": unit, "guard": guard}, known)


def leave_session(paths: NodePaths) -> None:
    """Keep nothing of the session that started us, and adopt what the supervisor leaves."""
    from clusterctl.node.supervisor.ranks.rank import redirect_output  # noqa: PLC0415

    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    redirect_output(paths.launcher_log)
    os.chdir("/")
    lock_against_cleaners(paths.folder)
    processes.become_subreaper()


def lock_against_cleaners(folder: str) -> None:
    """Lock the folder: systemd-tmpfiles, which removes what is a month old, leaves it then."""
    import fcntl  # noqa: PLC0415

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)  # a filesystem without locks; its cleaner is its owner's matter


def wait_for(supervisor: int, reader: int) -> Tuple[int, Dict[str, Any]]:
    """Wait until the supervisor has ended.

    One that is stopped or slow has not ended, however long that lasts.

    Returns:
        Its exit code, and what it left for the case of its death; empty if it was never up.
    """
    for number in FORWARDED:
        signal.signal(number, lambda number, _frame: os.kill(supervisor, number))
    status = os.waitpid(supervisor, 0)[1]
    for number in FORWARDED:
        signal.signal(number, signal.SIG_IGN)  # the run is ending; and the pid may be used again
    known: Dict[str, Any] = {}
    with open(reader, "rb") as start:
        for line in start:
            known.update(decode_line(line))
    if known:
        known = {"reason": how_it_died(status), "time": time.time(), **known}
    return (1 if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)), known


def how_it_died(status: int) -> str:
    """Say how the supervisor died."""
    if os.WIFSIGNALED(status):
        return "the supervisor was killed by signal %d" % os.WTERMSIG(status)
    return "the supervisor ended with exit code %d" % os.WEXITSTATUS(status)


def kill_descendants() -> None:
    """KILL everything that descends from this process until nothing is left, for a second."""
    until = time.monotonic() + KILL_SECONDS
    while True:
        left = processes.living_descendants()
        if not left or time.monotonic() > until:
            return
        processes.send_all(left, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
        processes.reap_all()
