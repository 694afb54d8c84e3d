"""Who holds a TCP port of this machine."""

from __future__ import annotations

from clusterctl.node import tcp_sockets
from clusterctl.node.run.processes import command_of
from clusterctl.node.users import user_name

MAX_CHARACTERS = 120


def port_owner(port: int) -> str:
    """Return the process that listens on a port, for a person; empty if nothing is seen."""
    for socket in tcp_sockets.listening(port):
        user = user_name(socket.uid)
        pid = min(tcp_sockets.socket_holders({socket.inode}), default=0)
        # A program given with -c has line breaks.
        command = " ".join(command_of(pid).split())[:MAX_CHARACTERS] or "a process"
        return "%s (pid %d, user %s)" % (command, pid, user) if pid else "user " + user
    return ""
