"""Hands a call about a run over to the agent in the run's folder.

What began to look after a run does so to its end: a controller of another version may come by,
whose agent would read the folder's files differently. This module keeps its place: agents of other
versions call it by its name.
"""

from __future__ import annotations

import os
import stat
import sys

from clusterctl.node.agent import loader, main
from clusterctl.node.agent.call_channel import CallChannel, ControllerGone
from clusterctl.node.run.run_paths import NodePaths
from clusterctl.wire import Message, from_json, to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

HANDED_OVER = "handed_over"


def agent_argv(paths: NodePaths, function: str, *args: str) -> List[str]:
    """Return the command that calls a function of the run's own agent."""
    return [sys.executable, "-X", "utf8", "-I", "-S", paths.agent, function, *args]


def to_runs_own(op: str, args: Dict[str, Any], channel: CallChannel, paths: NodePaths) -> None:
    """Become the run's own agent, where that is another than this one; else return.

    Where the folder was deleted, this one does what can be done.
    """
    if args.get(HANDED_OVER):
        return
    kept = _kept_agent(paths)
    if kept is not None and kept != loader.program():
        told = to_json({**args, HANDED_OVER: True}).decode()
        channel.become(agent_argv(paths, "clusterctl.node.handover:take_over", op, told))


def _kept_agent(paths: NodePaths) -> Optional[bytes]:
    """Return the agent in the folder, if it is this user's own file and nobody else's to write."""
    if paths.distrust():
        return None
    try:
        with open(os.open(paths.agent, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            seen = os.fstat(file.fileno())
            ours = stat.S_ISREG(seen.st_mode) and seen.st_uid == os.getuid()
            return file.read() if ours and not seen.st_mode & 0o022 else None
    except OSError:
        return None


def take_over(op: str, told: str) -> int:
    """Answer a call that another agent has taken in, on the same channel."""
    link = main.take_channel()
    link.start_beating()
    try:
        link.end(main.answer(Message({"op": op, "args": from_json(told.encode())}), link))
    except ControllerGone:
        return 1
    return 0
