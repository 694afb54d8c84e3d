"""A program of a user or of the system that runs for long: its output is read as it comes.

What may hang in the kernel runs as in `agent.child_tasks`, which leaves it behind.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from typing import Any, Callable, List, Optional, Tuple

from clusterctl.node.agent.call_channel import CallChannel, ControllerDisconnected
from clusterctl.node.run.processes import processes

CHUNK = 64 * 1024
POLL_SECONDS = 0.25
QUIET_SECONDS = 0.2
"""How long to read on after the command has ended: what it left running may hold its output."""
END_SECONDS = 2.0
"""From TERM to KILL."""


def start_tool(words: List[Any], **options: Any) -> "subprocess.Popen[bytes]":  # noqa: ANN401
    """Start a program without input, in a session of its own; OSError if that fails."""
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True, **given)


def wait_for_tool(
    process: "subprocess.Popen[bytes]",
    channel: CallChannel,
    take: Callable[[str, bytes], None],
    deadline: Optional[float] = None,
) -> Tuple[int, bool]:
    """Wait until a program has ended or its time is over; then it is ended with all it started.

    Args:
        process: what `start_tool` returned.
        channel: to the controller; without it the program is ended.
        take: gets each stream's name and what is printed there; now and then that is nothing.
        deadline: when its time is over, on the clock that no one sets.

    Returns:
        Its exit code, and whether its time was over.

    Raises:
        ControllerDisconnected: the controller has left, and all is ended.
    """
    try:
        timed_out = _read_output(process, channel, take, deadline)
    except ControllerDisconnected:
        end_descendants()
        raise
    if timed_out:
        end_descendants()
    return process.wait(), timed_out


def _read_output(
    process: "subprocess.Popen[bytes]",
    channel: CallChannel,
    take: Callable[[str, bytes], None],
    deadline: Optional[float],
) -> bool:
    """Read until it has ended; tell whether its time was over first."""
    streams = {"stdout": process.stdout, "stderr": process.stderr}
    names = {pipe.fileno(): name for name, pipe in streams.items() if pipe is not None}
    poll = select.poll()
    for descriptor in names:
        poll.register(descriptor, select.POLLIN)
    quiet_since = time.monotonic()
    while True:
        ready = poll.poll(POLL_SECONDS * 1000)
        for descriptor, _ in ready:
            data = os.read(descriptor, CHUNK)
            quiet_since = time.monotonic()
            if data:
                take(names[descriptor], data)
            else:
                poll.unregister(descriptor)
                del names[descriptor]
        if not ready:
            take("", b"")
        now = time.monotonic()
        if channel.disconnected:
            raise ControllerDisconnected
        ended = process.poll() is not None
        if ended and (not names or (not ready and now - quiet_since > QUIET_SECONDS)):
            return False
        if not ended and deadline is not None and now > deadline:
            return True
        if not names and not ended:
            time.sleep(POLL_SECONDS / 10)


def end_descendants() -> None:
    """End all that this process has started, and what that started: TERM, then KILL."""
    processes.send_all(processes.living_descendants(), signal.SIGTERM)
    until = time.monotonic() + END_SECONDS
    while processes.living_descendants() and time.monotonic() < until:
        time.sleep(0.05)
    processes.send_all(processes.living_descendants(), signal.SIGKILL)
