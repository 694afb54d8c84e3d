"""The guard: the supervisor's parent, which ends the job and writes the end if that one dies.

    python3 -X utf8 -I -S AGENT clusterctl.node.supervisor.guard:main FOLDER UNIT DESCRIPTOR

On stdin comes one JSON object with the job, the environment and the secrets, so that these are
never on a disk. DESCRIPTOR is a pipe to the caller, for one JSON line of answer. The guard runs in
the foreground: to leave it behind is its caller's task.

It only waits. The kernel gives it what a dead supervisor leaves, sessions of their own included, so
that everything below it is the run's. It holds no lock, but between two attempts of a run: the
supervisor of a failed attempt leaves it the sockets of the lock and what the next attempt is, for
which it starts another supervisor.
"""

from __future__ import annotations

import _socket
import json
import os
import signal
import sys
import time
from typing import Any, Dict, List, Tuple

from clusterctl.node.handover_sockets import receive
from clusterctl.node.run.files.node_job import may_restart, next_job
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.processes import processes
from clusterctl.wire import decode_line, encode_line

KILL_SECONDS = 1.0
"""How long to KILL before the guard tells the other nodes; after that it does both."""
POLL_SECONDS = 0.01

AGAIN = 75
"""The exit code of a supervisor after which the next attempt begins."""

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that ask the supervisor to stop the run, whichever of the two gets them."""


def main(folder: str, unit: str, descriptor: str) -> int:
    """Start the supervisor and guard it; returns when the run is over on this node."""
    start = json.loads(sys.stdin.buffer.read())
    paths, answer = NodePaths(folder), int(descriptor)
    os.set_inheritable(answer, False)
    leave_session(paths)
    start.update(unit=unit, guard=processes.key_of(os.getpid()))
    supervisor = SupervisorProcess()
    code, known, held = supervisor.run(paths, start, answer, [])
    while code == AGAIN:
        start, problem = next_start(start, known, supervisor)
        if not problem:
            try:
                code, known, held = supervisor.run(paths, start, -1, held)
            except OSError as error:
                problem = "the next attempt cannot be started: %s" % error.strerror
        if problem:
            code, known["reason"] = 1, problem
    if code == 0:
        os._exit(0)  # at once: `stop` waits for the last process of the run
    kill_descendants()
    if not known:
        return code  # it never came up, and its caller knows
    from clusterctl.node.supervisor.main import finish  # noqa: PLC0415

    for each in held:
        os.close(each)
    return finish(paths, start, known)


class SupervisorProcess:
    """The supervisor of the current attempt: the child, and who asked it to stop."""

    def __init__(self) -> None:
        self.pid = 0
        """0: there is none now."""
        self.stopped = 0
        """The last signal that asked for a stop."""

    def run(
        self, paths: NodePaths, start: Dict[str, Any], answer: int, held: List[int]
    ) -> Tuple[int, Dict[str, Any], List[int]]:
        """Start it, and return what `wait` does; `answer` and `held` as for `supervise`.

        Raises:
            OSError: no process can be started.
        """
        reader, writer = (each.detach() for each in _socket.socketpair())
        if may_restart(start["job"]):  # once for all attempts, which share it: each begins sooner
            import clusterctl.node.supervisor.main  # noqa: F401, PLC0415  (the guard stays small)
        if answer < 0:  # before it can die: then its end is ours to write
            os.write(writer, encode_line({"link_port": start["job"]["link"]["port"]}))
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # our handler must not take the child's
        self.pid = os.fork()
        if self.pid == 0:
            for number in FORWARDED if answer < 0 else ():
                signal.signal(number, signal.SIG_DFL)  # the guard's handler is not the supervisor's
            signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
            from clusterctl.node.supervisor.main import supervise  # noqa: PLC0415  (the guard stays small)

            os.close(reader)
            # At once: while Python exits, a signal would end it, and it would seem to have died.
            os._exit(supervise(paths, start, answer, writer, held))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        if self.stopped:
            os.kill(self.pid, self.stopped)  # it came between two attempts
        for each in (writer, *held, *([answer] if answer >= 0 else [])):
            os.close(each)
        return self.wait(reader)

    def forward(self, number: int) -> None:
        """Pass on a signal."""
        self.stopped = number
        if self.pid:
            os.kill(self.pid, number)

    def wait(self, reader: int) -> Tuple[int, Dict[str, Any], List[int]]:
        """Wait until it has ended.

        One that is stopped or slow has not ended, however long that lasts.

        Returns:
            Its exit code; what it left for what comes after it, empty if it was never up; and the
            sockets that it left.
        """
        for number in FORWARDED:
            signal.signal(number, lambda number, _frame: self.forward(number))
        status = os.waitpid(self.pid, 0)[1]
        self.pid = 0  # it may be used again
        known: Dict[str, Any] = {}
        data, sockets = receive(reader)
        os.close(reader)
        for line in data.splitlines(keepends=True):
            known.update(decode_line(line))
        if known:
            known = {"reason": how_it_died(status), "time": time.time(), **known}
        code = 1 if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return code, known, sockets


def next_start(
    start: Dict[str, Any], known: Dict[str, Any], supervisor: SupervisorProcess
) -> Tuple[Dict[str, Any], str]:
    """Return what the next attempt is started with, and why it must not start; empty: it may."""
    again = known.get("again")
    if not again:
        return start, known.get("reason", "")
    kill_descendants()
    left = processes.living_descendants()
    if left:
        return start, "attempt %d: %d processes are left" % (again["attempt"] - 1, len(left))
    if supervisor.stopped:
        return start, "stopped by signal %d before the next attempt" % supervisor.stopped
    job, env = start["job"], start["env"]
    if again["without"] or again["joined"]:
        from clusterctl.node.restart import lineup  # noqa: PLC0415  (the guard stays small)

        try:
            job = lineup.replanned(start["job"], again["without"], again["why"], again["joined"])
        except lineup.NoLineupError as error:
            return start, str(error)
        env = lineup.replanned_environment(env, start["job"], job)
    job = next_job(job, again, began=known["began"], link_port=known["link_port"])
    return {**start, "job": job, "env": env}, ""


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
