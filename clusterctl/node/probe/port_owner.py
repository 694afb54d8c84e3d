"""Who holds a TCP port of this machine."""

from __future__ import annotations

import posixpath

from clusterctl.node import tcp_sockets
from clusterctl.node.run.processes.processes import command_of
from clusterctl.own_files import user_name

MAX_CHARACTERS = 60


def port_owner(port: int) -> str:
    """Return the process that listens on a port, as shown to the user; empty if none is seen."""
    for socket in tcp_sockets.listening(port):
        user = user_name(socket.uid)
        pid = min(tcp_sockets.socket_holders({socket.inode}), default=0)
        if not pid:
            return "user " + user
        return "%s (pid %d, user %s)" % (_short(command_of(pid)), pid, user)
    return ""


def _short(command: str) -> str:
    """Return a command without the folder of its program; of a program after -c, its first line."""
    program, space, words = command.strip().partition("\n")[0].partition(" ")
    short = posixpath.basename(program) + space + words
    if len(short) > MAX_CHARACTERS:
        short = short[: MAX_CHARACTERS - 3] + "..."
    return short.strip() or "a process"
