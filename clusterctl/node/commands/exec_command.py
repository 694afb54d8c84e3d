"""The operation `exec`: runs a user's command until it exits, and sends what it prints.

A command that is interrupted, or takes too long, is ended with all that it started. A daemon that
it leaves behind when it exits keeps running.

Its words go to the program as they are: no shell reads them.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from shlex import quote
from typing import Any, Dict, List, Optional, Tuple

from clusterctl.node.agent.call_channel import CallChannel, ControllerDisconnected, OperationError
from clusterctl.node.program_path import find_program
from clusterctl.node.run.processes import run_processes as processes
from clusterctl.node.run.processes.environ_bytes import original_environment
from clusterctl.wire import Message

CHUNK = 64 * 1024
POLL_SECONDS = 0.25
QUIET_SECONDS = 0.2
"""How long to read on after the command has ended: what it left running may hold its output."""
END_SECONDS = 2.0
"""From TERM to KILL."""
_SHELL_SIGNS = frozenset(" |&;<>$`*")


def exec_command(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Run a command without input until it ends.

    Args:
        args: `argv`; `cwd`: a folder, the home where it is absent; `limit_s`: seconds until it is
            ended, none where it is absent.
        body: unused.
        channel: gets `{"stream": "stdout" or "stderr"}` with the bytes as they come.

    Returns:
        `exit_code` as a shell has it (128 + the signal), and `timed_out`.

    Raises:
        OperationError: `exec`: it cannot be started.
    """
    del body
    argv = [str(word) for word in args["argv"]]
    processes.become_subreaper()
    process = _start(argv, args.get("cwd"))
    limit = args.get("limit_s")
    deadline = time.monotonic() + float(limit) if limit is not None else None
    try:
        timed_out = _pass_on(process, channel, deadline)
    except ControllerDisconnected:
        end_descendants()
        raise
    if timed_out:
        end_descendants()
    code = process.wait()
    return Message({"exit_code": 128 - code if code < 0 else code, "timed_out": timed_out})


def _start(argv: List[str], cwd: Optional[str]) -> "subprocess.Popen[bytes]":
    environment = original_environment()
    folder = os.path.expanduser(cwd or "~")
    if not os.path.isdir(folder):
        message = "--cwd: expected a folder on the node, found no %s" % folder
        raise OperationError("exec", message, hint="clusterctl exec -- mkdir -p %s" % quote(folder))
    name = os.fsencode(argv[0])
    where = os.path.join(os.fsencode(folder), name) if b"/" in name else name
    path = environment.get(b"PATH", os.fsencode(os.defpath))
    program = find_program(where, path)
    if program is None:
        hint = "write its full path: the node's PATH is %s" % os.fsdecode(path)
        if _SHELL_SIGNS & set(argv[0]):
            line = " ".join(argv)
            # The controller drops a hint with quotes inside quotes.
            hint = "for a line of the shell: clusterctl exec -- sh -c '%s'" % (
                "LINE" if "'" in line else line
            )
        raise OperationError("exec", "command not found: %s" % argv[0], hint=hint)
    try:
        return subprocess.Popen(
            [os.fsencode(word) for word in argv],
            executable=program,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        what = os.fsdecode(error.filename or argv[0])
        raise OperationError("exec", "cannot run %s: %s" % (what, error.strerror)) from error


def _pass_on(
    process: "subprocess.Popen[bytes]", channel: CallChannel, deadline: Optional[float]
) -> bool:
    """Send what the command prints until it has ended; tell whether its time was over first."""
    poll, names = _watch(process)
    quiet_since = time.monotonic()
    while True:
        ready = poll.poll(POLL_SECONDS * 1000)
        for descriptor, _ in ready:
            data = os.read(descriptor, CHUNK)
            quiet_since = time.monotonic()
            if data:
                channel.send(Message({"stream": names[descriptor]}, data))
            else:
                poll.unregister(descriptor)
                del names[descriptor]
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


def _watch(process: "subprocess.Popen[bytes]") -> Tuple["select.poll", Dict[int, str]]:
    poll = select.poll()
    assert process.stdout is not None
    assert process.stderr is not None
    names = {process.stdout.fileno(): "stdout", process.stderr.fileno(): "stderr"}
    for descriptor in names:
        poll.register(descriptor, select.POLLIN)
    return poll, names


def end_descendants() -> None:
    """End all that this process has started, and what that started: TERM, then KILL."""
    processes.send_all(processes.living_descendants(), signal.SIGTERM)
    until = time.monotonic() + END_SECONDS
    while processes.living_descendants() and time.monotonic() < until:
        time.sleep(0.05)
    processes.send_all(processes.living_descendants(), signal.SIGKILL)
