"""Who holds a TCP port of this machine."""

from __future__ import annotations

import os
import pwd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Tuple

_LISTENING = "0A"
_NAME_LIMIT = 120


def port_owner(port: int) -> str:
    """Return the process that listens on a port, as a person would name it; empty if unseen."""
    for inode, uid in _listening_on(port):
        user = _user(uid)
        pid = _process_with(inode)
        return "%s (pid %d, user %s)" % (_command(pid), pid, user) if pid else "user " + user
    return ""


def _listening_on(port: int) -> Iterator[Tuple[str, int]]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:
                lines = file.readlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rsplit(":", 1)[1], 16) == port:
                yield fields[9], int(fields[7])


def _process_with(inode: str) -> int:
    """Find the process that has the socket open; 0 where we may not look."""
    wanted = "socket:[%s]" % inode
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        folder = "/proc/%s/fd" % name
        try:
            descriptors = os.listdir(folder)
        except OSError:
            continue
        if any(_target(folder + "/" + descriptor) == wanted for descriptor in descriptors):
            return int(name)
    return 0


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""  # closed while we looked


def _command(pid: int) -> str:
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            words = file.read().rstrip(b"\0").replace(b"\0", b" ")
    except OSError:
        words = b""
    return words.decode("utf-8", "replace")[:_NAME_LIMIT] or "a process"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
