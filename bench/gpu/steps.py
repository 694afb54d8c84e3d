"""One step: a command with a limit, whose processes all end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from clusterctl.node.run.processes import processes

STAMP = "CLUSTERCTL_GPU_STEP"
"""Environment variable of a step's processes: torchrun puts its ranks in sessions of their own."""
STACKS_SECONDS = 3.0
"""Left to processes past the limit to print their stacks: Python does at SIGABRT."""
LINGER_SECONDS = 3.0
"""Left to helper processes, such as a resource tracker, after the command itself exited."""
KILL_SECONDS = 10.0

State = Literal["ok", "failed", "hang", "cut", "skipped"]
"""`cut`: ended because the budget of all steps was used up, before the step's own limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What to run."""

    name: str
    about: str
    argv: tuple[str, ...]
    limit: float
    """Seconds. A step that takes longer counts as a hang."""
    needs: tuple[str, ...] = ()
    """Steps that must have ended ok."""
    gpus: int = 1
    """GPUs that it needs at least."""
    all_gpus: bool = False
    """Whether it sees all GPUs; the others see one."""
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a step ended."""

    name: str
    state: State
    seconds: float = 0.0
    reason: str = ""
    possible: bool = True
    """False for a step that is skipped because this machine has too few GPUs."""
    left: tuple[str, ...] = ()
    """Commands of processes that the step left behind; they were ended."""


def run(
    step: Step, *, environment: Mapping[str, str], log: Path, cwd: Path, left_s: float
) -> Result:
    """Run a step, with both streams in `log`.

    Args:
        step: What to run.
        environment: Variables for it, before its own.
        log: The file for what it prints.
        cwd: Where it runs.
        left_s: Seconds that remain for all steps.
    """
    stamp = uuid.uuid4().hex
    variables = {**environment, **step.env, STAMP: stamp, "PYTHONFAULTHANDLER": "1"}
    limit = min(step.limit, left_s)
    began = time.monotonic()
    left: tuple[str, ...] = ()
    code: int | None = None
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                step.argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                cwd=cwd, env=variables, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return Result(name=step.name, state="failed", reason=f"{step.argv[0]}: {error}")
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            _signal(_living(stamp, process.pid), signal.SIGABRT)
            _wait_for_end(stamp, process, STACKS_SECONDS)
        else:
            _wait_for_end(stamp, process, LINGER_SECONDS)
            left = tuple(map(_command, _living(stamp, process.pid)))
        finally:
            stuck = _end(stamp, process)
    seconds = time.monotonic() - began
    if stuck:
        return Result(
            name=step.name, state="hang", seconds=seconds, left=stuck,
            reason=f"{len(stuck)} processes did not end within {KILL_SECONDS:g} s of SIGKILL",
        )  # fmt: skip
    state, reason = _outcome(step, code, limit)
    if left and state == "ok":
        state, reason = "failed", f"left {len(left)} processes behind, which were ended"
    return Result(name=step.name, state=state, seconds=seconds, reason=reason, left=left)


def _outcome(step: Step, code: int | None, limit: float) -> tuple[State, str]:
    if code is None and limit < step.limit:
        return "cut", f"no time left: ended after {limit:.0f} s of at most {step.limit:g} s"
    if code is None:
        return "hang", f"did not end within {step.limit:g} s"
    if code < 0:
        return "failed", f"ended by {signal.Signals(-code).name}"
    return ("failed", f"exit code {code}") if code else ("ok", "")


def _living(stamp: str, root: int) -> list[int]:
    """Return the step's processes: below its first one, or with its stamp."""
    wanted = f"{STAMP}={stamp}".encode()
    table = processes.process_table()
    stamped = {
        pid for pid in table if wanted in processes.read_proc(pid, "environ").split(b"\0")
    } | ({root} & table.keys())
    found = stamped | processes.descendants(stamped, table)
    return sorted(pid for pid in found if not table[pid].exited)


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _wait_for_end(stamp: str, process: subprocess.Popen[bytes], seconds: float) -> None:
    until = time.monotonic() + seconds
    while _living(stamp, process.pid) and time.monotonic() < until:
        process.poll()
        time.sleep(0.05)


def _end(stamp: str, process: subprocess.Popen[bytes]) -> tuple[str, ...]:
    """Kill all processes of a step; return the commands of those that do not end."""
    until = time.monotonic() + KILL_SECONDS
    while (living := _living(stamp, process.pid)) and time.monotonic() < until:
        _signal(living, signal.SIGKILL)
        process.poll()
        time.sleep(0.05)
    process.poll()
    return tuple(map(_command, living))


def _command(pid: int) -> str:
    return processes.read_proc(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")[:200]
