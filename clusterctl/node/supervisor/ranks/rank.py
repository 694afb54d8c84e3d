"""The exec shim: becomes a rank (or the launcher) once it has reported its pid and opened its log.

    python3 -X utf8 -I -S AGENT clusterctl.node.supervisor.ranks.rank:main
        LOCK FOLDER LOG WORKDIR PROGRAM ARG…

LOG is a file's name in FOLDER. A `%s` in it stands for the rank, which a launcher gives out only
when it starts one. The launcher has a log of its own; a process without a rank writes there. The
argument list and environment pass through byte for byte.
"""

from __future__ import annotations

import ctypes
import os
import time

from clusterctl.node import run_lock
from clusterctl.node.program_path import find_program
from clusterctl.node.run.files.run_paths import LAUNCHER_LOG
from clusterctl.node.run.processes.environ_bytes import original_environment

TYPE_CHECKING = False
# `typing` and `signal`, with its enums, take as long to import as Python to start.
if TYPE_CHECKING:
    import signal
    from typing import Dict, List, Optional
else:
    import _signal as signal

PR_SET_PDEATHSIG = 1
PR_SET_PTRACER = 0x59616D61

REPORT_SECONDS = 60.0
"""How long a busy supervisor is asked again; one that is stopped (as by a debugger) is not up."""
RETRY_SECONDS = 0.1

CANNOT_RUN = 126
NOT_FOUND = 127


def main(lock_name: str, folder: str, log: str, workdir: str, program: str, *args: str) -> int:
    """Become the program; returns only when that fails."""
    environment = original_environment()
    rank = environment.get(b"RANK", b"").decode()
    die_with_parent()
    own = log.replace("%s", rank) if rank or "%s" not in log else LAUNCHER_LOG
    redirect_output(os.path.join(folder, own))
    if log != LAUNCHER_LOG:
        problem = report(lock_name, environment, launched="%s" in log)
        if problem:
            print_error("not started: " + problem)
            return 128 + signal.SIGTERM
    restore_signals()
    argv = [os.fsencode(word) for word in (program, *args)]
    try:
        os.chdir(workdir)
    except OSError as error:
        print_error("cannot enter %s: %s" % (workdir, error.strerror))
        return CANNOT_RUN
    return exec_program(argv, environment)


def report(lock_name: str, environment: Dict[bytes, bytes], *, launched: bool) -> str:
    """Report this process to the supervisor; return why the rank must not start.

    Of one that a launcher started, also what world that gave it.

    The supervisor answers once it watches this pid: from then on no end is missed. Without that
    answer a rank would run unwatched, so a supervisor too busy to give it is asked again.
    """
    request = {
        "ask": "rank",
        "run": environment.get(b"CLUSTERCTL_RUN_ID", b"").decode(),
        "node": environment.get(b"CLUSTERCTL_NODE", b"").decode(),
        "rank": number_in(environment, b"RANK", None if launched else 0),
        "world_size": number_in(environment, b"WORLD_SIZE", None) if launched else None,
        "local_rank": int(environment.get(b"LOCAL_RANK", b"0")),
        "restarts": int(environment.get(b"TORCHELASTIC_RESTART_COUNT", b"0")),
    }
    until = time.monotonic() + REPORT_SECONDS
    while True:
        answer = run_lock.query(lock_name, request)
        if answer is None or answer.get("ending"):
            return "the run is ending"
        if answer.get("watched"):
            allow_reading_by(answer["pid"])
            return ""
        if "error" in answer:
            return "the supervisor refused it: %s" % answer["error"]
        if time.monotonic() > until:
            return "the supervisor did not answer for %d s" % REPORT_SECONDS
        time.sleep(RETRY_SECONDS)


def number_in(
    environment: Dict[bytes, bytes], name: bytes, default: Optional[int]
) -> Optional[int]:
    """Return the number that a variable holds."""
    value = environment.get(name, b"")
    return int(value) if value.isdigit() else default


def exec_program(argv: List[bytes], environment: Dict[bytes, bytes]) -> int:
    """Replace this process by the program, found as a shell would; returns when it cannot be."""
    path = environment.get(b"PATH", os.fsencode(os.defpath))
    program = find_program(argv[0], path)
    if program is None:
        shown = os.fsdecode(argv[0]), os.fsdecode(path)
        print_error("command not found: %s (PATH is %s)" % shown)
        return NOT_FOUND
    try:
        os.execve(program, argv, environment)  # noqa: S606  (argv as data, without a shell)
    except OSError as error:
        shown = os.fsdecode(program), error.strerror or ""
        print_error("cannot run %s: %s" % shown)
    return CANNOT_RUN


def die_with_parent() -> None:
    """Let the kernel kill this process, and what it becomes, when its parent dies."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died just before
        os.kill(os.getpid(), signal.SIGKILL)


def allow_reading_by(supervisor: int) -> None:
    """Let the supervisor's processes read this one's stack, where Yama allows only ancestors.

    It holds after exec. Without Yama the call fails, and is not needed.
    """
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(supervisor), 0, 0, 0)


def redirect_output(path: str) -> None:
    """Append stdout and stderr to a file: no reader can stall or kill a rank by its pipe."""
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def print_error(words: str) -> None:
    """Say on the rank's own stderr why it does not run."""
    os.write(2, ("clusterctl: %s\n" % words).encode("utf-8", "backslashreplace"))


def restore_signals() -> None:
    """Undo what Python does at its start: an ignored signal stays ignored in what we become."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
