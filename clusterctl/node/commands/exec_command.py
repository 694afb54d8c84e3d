"""The operation `exec`: runs a user's command until it exits, and sends what it prints.

A command that is interrupted, or takes too long, is ended with all that it started. A daemon that
it leaves behind when it exits keeps running.

Its words go to the program as they are: no shell reads them.
"""

from __future__ import annotations

import os
import subprocess
import time
from shlex import quote
from typing import Any, Dict, List, Optional

from clusterctl.node.agent.call_channel import CallChannel, OperationError
from clusterctl.node.commands.running_tool import start_tool, wait_for_tool
from clusterctl.node.program_path import broken_link, find_program
from clusterctl.node.run.processes import processes
from clusterctl.node.run.processes.environ_bytes import original_environment
from clusterctl.wire import Message

_SHELL_SIGNS = frozenset(" |&;<>$`*")


def exec_command(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Run a command without input until it ends.

    Args:
        args: `argv`; `cwd`: a folder, the home where it is absent; `limit_s`: seconds until it is
            ended, none where it is absent.
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

    def pass_on(stream: str, data: bytes) -> None:
        if data:
            channel.send(Message({"stream": stream}, data))

    code, timed_out = wait_for_tool(process, channel, pass_on, deadline)
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
        leads = broken_link(where)
        hint = "write its full path: the node's PATH is %s" % os.fsdecode(path)
        if b"/" in name:
            hint = "ls -l %s (on the node)" % quote(os.fsdecode(where))
        if _SHELL_SIGNS & set(argv[0]):
            line = " ".join(argv)
            # The controller drops a hint with quotes inside quotes.
            hint = "for a line of the shell: clusterctl exec -- sh -c '%s'" % (
                "LINE" if "'" in line else line
            )
        raise OperationError("exec", "command not found: %s%s" % (argv[0], leads), hint=hint)
    words = [os.fsencode(word) for word in argv]
    try:
        return start_tool(words, executable=program, cwd=folder, env=environment)
    except OSError as error:
        what = os.fsdecode(error.filename or argv[0])
        raise OperationError("exec", "cannot run %s: %s" % (what, error.strerror)) from error
