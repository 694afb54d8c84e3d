"""The agent that a run keeps in its folder: every call about the run is handed over to it.

The code that started a run looks after it to the end. A controller of another version sends
another agent, which would read the folder's files differently.
"""

from __future__ import annotations

import os
import stat
import sys

from clusterctl.node.agent import loader
from clusterctl.node.agent.anonymous_file import anonymous_file
from clusterctl.node.agent.call_channel import CallChannel
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.wire import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

HANDED_OVER = "handed_over"

_RUN_AGENT = """\
import sys
with open(int(sys.argv[1]), encoding="utf-8") as file:
    sys.argv[:] = [*sys.argv[2:], file.read()]
with open(sys.argv[0], "rb") as file:
    exec(compile(file.read(), sys.argv[0], "exec"))
"""
"""Runs an agent whose last argument comes from a descriptor, as the kernel allows 128 KiB in one.

It works with the agents of every version: they see nothing but their `sys.argv`.
"""


def agent_argv(paths: NodePaths, function: str, *args: str) -> List[str]:
    """Return the command that calls a function of the run's own agent."""
    return [*_python(), paths.agent, function, *args]


def _python() -> List[str]:
    return [sys.executable, "-X", "utf8", "-I", "-S"]


def hand_over(op: str, args: Dict[str, Any], channel: CallChannel, paths: NodePaths) -> None:
    """Become the run's own agent, where that is another than this one; else return.

    Where the folder was deleted, this one does what can be done.
    """
    if args.get(HANDED_OVER):
        return
    kept = _begin_of_kept(paths)
    if kept is None or loader.is_this_agent(kept):
        return
    descriptor = anonymous_file("args")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(to_json({**args, HANDED_OVER: True}))
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.set_inheritable(descriptor, True)
    call = [paths.agent, "clusterctl.node.handover:take_over", op]
    channel.exec_program([*_python(), "-c", _RUN_AGENT, str(descriptor), *call])


def _begin_of_kept(paths: NodePaths) -> Optional[bytes]:
    """Return how the folder's agent begins, if it is this user's and no other may write to it."""
    if paths.ownership_problem():
        return None
    try:
        with open(os.open(paths.agent, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            seen = os.fstat(file.fileno())
            ours = stat.S_ISREG(seen.st_mode) and seen.st_uid == os.getuid()
            return file.read(loader.FIRST_BYTES) if ours and not seen.st_mode & 0o022 else None
    except OSError:
        return None
