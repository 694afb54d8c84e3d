"""The Python stacks of processes, as py-spy tells them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from clusterctl.node.agent.child_tasks import Child, gather, run_program
from clusterctl.node.hang import proc
from clusterctl.node.run.processes import processes
from clusterctl.node.run.processes.processes import read_proc
from clusterctl.own_files import user_name

AT_ONCE = 16
"""How many processes are asked at a time: each py-spy keeps a core busy for some 30 ms."""
NATIVE_SHARE = 0.7
"""Of the time: what is left is for stacks without native frames."""
_NOT_PAUSED = frozenset("DTtZ")
ATTEMPTS = 3
"""Unpaused, a process that runs may change its stack while it is read."""
MOST_FRAMES, MOST_LOCALS = 100, 24
NAME_LIMIT, VALUE_LIMIT = 160, 200
"""Characters of a function, which has templates in it with C++, and of a local's value."""
MAIN = "MainThread"
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_CLOSED = "the kernel does not let this user read its memory"
_INSIDE = "; only the program itself can print it (faulthandler)"
_INTERPRETER = re.compile(r"python[\d.]*|pypy[\d.]*")

Stacks = List[Dict[str, Any]]
"""Threads as `ThreadStack` has them, without what the kernel knows."""


class Wanted(NamedTuple):
    """How much of the stacks is wanted."""

    native: bool = False
    with_locals: bool = False


def is_python(pid: int, *, uninterruptible: bool) -> bool:
    """Tell whether a process is an interpreter, or has one in it."""
    try:
        name = os.path.basename(os.readlink("/proc/%d/exe" % pid))
    except OSError:
        return True  # another user's: py-spy says what is missing
    if _INTERPRETER.fullmatch(name):
        return True
    # The memory map of a process that is stuck in the kernel may hang its reader.
    return not uninterruptible and b"/libpython" in read_proc(pid, "maps")


def read_stacks(
    program: str, states: Mapping[int, str], wanted: Wanted, until: float
) -> Tuple[Dict[int, Stacks], Dict[int, str]]:
    """Return the stacks of processes by pid, and why there are none, or only a part.

    Args:
        states: of each process the states of its threads, such as `SSD`.
        wanted: native frames, locals.
        until: on the monotonic clock, when all of it ends.
    """
    found: Dict[int, Stacks] = {}
    problems = dict.fromkeys(states, "there was no time left for it")
    paused: Dict[int, str] = {}
    if wanted.native:
        # Paused, a stopped process would run on afterwards, and one in state D keeps us waiting.
        may_pause = [pid for pid, known in states.items() if not set(known) & _NOT_PAUSED]
        share = time.monotonic() + NATIVE_SHARE * (until - time.monotonic())
        _read_some(program, may_pause, wanted, share, found, problems)
        _let_run(may_pause)
        stopped = "it is stopped, or waits in the kernel"
        paused = {pid: problems[pid] if pid in may_pause else stopped for pid in problems}
    for attempt in range(ATTEMPTS):
        left = [pid for pid in states if pid not in found]
        if attempt:
            left = [pid for pid in left if _may_pass(pid)]
        _read_some(program, left, wanted._replace(native=False), until, found, problems)
    for pid, why in paused.items():
        problems.setdefault(pid, "its native frames: " + why)
    return found, problems


def _read_some(
    program: str,
    pids: Sequence[int],
    wanted: Wanted,
    until: float,
    found: Dict[int, Stacks],
    problems: Dict[int, str],
) -> None:
    """Read the stacks of some processes once, and add what is found, or why it is not."""
    for begin in range(0, len(pids), AT_ONCE):
        part = pids[begin : begin + AT_ONCE]
        limit = until - time.monotonic()
        if limit <= 0:
            return
        children = [run_program(str(pid), _argv(program, pid, wanted), limit) for pid in part]
        gather(children)
        for pid, child in zip(part, children):
            told = _parse(child)
            if told is None:
                problems[pid] = _why(pid, child)
            else:
                found[pid] = told
                del problems[pid]


def _argv(program: str, pid: int, wanted: Wanted) -> Sequence[str]:
    argv = [program, "dump", "--json", "--full-filenames", "--pid", str(pid)]
    argv.append("--native" if wanted.native else "--nonblocking")
    return [*argv, "--locals"] if wanted.with_locals else argv


def _let_run(pids: Sequence[int]) -> None:
    """Continue what a py-spy left stopped that was killed before it had begun to trace it."""
    for pid in pids:
        process = processes.read(pid)
        if process is not None and process.state == "T":
            processes.send(process.key, signal.SIGCONT)


def _may_pass(pid: int) -> bool:
    """Tell whether another attempt may succeed: what is forbidden stays so."""
    try:
        with open("/proc/%d/mem" % pid, "rb"):
            return True
    except OSError:
        return False


def _parse(child: Child) -> Any:  # noqa: ANN401  (Stacks, or None)
    if child.state != "ok" or child.exit_code != 0:
        return None
    try:
        threads = json.loads(child.output)
        return [_thread(one) for one in threads]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _thread(told: Dict[str, Any]) -> Dict[str, Any]:
    name = str(told.get("thread_name") or "")
    number = told.get("os_thread_id") or (told["pid"] if name == MAIN else 0)
    frames = [_frame(one) for one in told["frames"][:MOST_FRAMES]]
    return {"id": int(number), "name": name[: proc.WORD_LIMIT], "frames": frames}


def _frame(told: Dict[str, Any]) -> Dict[str, Any]:
    frame = {
        "function": str(told["name"])[:NAME_LIMIT],
        "file": str(told.get("filename") or "")[-proc.WORD_LIMIT :],
        "line": max(0, int(told.get("line") or 0)),
    }
    values = told.get("locals") or []
    if values:
        frame["locals"] = [
            "%s=%s" % (one["name"], str(one.get("repr"))[:VALUE_LIMIT])
            for one in values[:MOST_LOCALS]
        ]
    return frame


def _why(pid: int, child: Child) -> str:
    """Say why py-spy told nothing of a process."""
    if child.state == "timeout":
        return "py-spy did not end in time"
    words = child.stderr.decode("utf-8", "replace")
    if "ermission denied" in words or "not permitted" in words or not _may_pass(pid):
        return _forbidden(pid)
    lines = [line.strip() for line in words.partition("Stack backtrace")[0].splitlines()]
    told = [re.sub(r"^(Error: |\d+: )", "", line) for line in lines if line]
    told = [line for line in told if line != "Caused by:"]
    return ("py-spy: " + ": ".join(told))[: proc.WORD_LIMIT] if told else "py-spy failed"


def _forbidden(pid: int) -> str:
    """Say why this user may not read a process's memory."""
    try:
        uid = os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return "it has exited"
    if os.getuid() not in (0, uid):
        return "it runs as %s: only that user and root may read its memory" % user_name(uid)
    with contextlib.suppress(OSError, ValueError), open(_YAMA) as file:
        scope = int(file.read())
        if scope:
            return "kernel.yama.ptrace_scope is %d: %s%s" % (scope, _CLOSED, _INSIDE)
    return "%s (a container, or a security module)%s" % (_CLOSED, _INSIDE)
