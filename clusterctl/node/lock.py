"""One run a machine: whether its lock is held, by whom, and asking the holder for something.

The lock is the supervisor's abstract socket: seen across users and mounts, without a folder, and
gone with its holder however that ends. One JSON line is asked, one is answered.
"""

from __future__ import annotations

import json
import os
import pwd
import socket
import struct
import time
from typing import Any, Dict, NamedTuple, Optional

from clusterctl.node.link import OperationError

NAME = "clusterctl-run"
"""The lock of a machine; the loopback sandbox adds its port, for several nodes on one machine."""

ANSWER_SECONDS = 2.0
LINE_LIMIT = 65536

_CREDENTIALS = struct.Struct("3i")


class Peer(NamedTuple):
    """The process at the other end of a socket, by the kernel's word."""

    pid: int
    uid: int

    @classmethod
    def of(cls, connection: socket.socket) -> Peer:
        """Ask the kernel who it is."""
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(raw)
        return cls(pid, uid)


def user_name() -> str:
    """Return this user's name; its number where it has none (as in some containers)."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def ask(name: str, request: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """Ask the holder of a lock; None: nobody holds it.

    A holder that does not answer in time (it is frozen, or foreign) answers as `{"pid", "uid"}`.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_SECONDS)
        try:
            connection.connect("\0" + name)
        except ConnectionRefusedError:
            return None
        except OSError:
            return {}
        peer = Peer.of(connection)
        who = {"pid": peer.pid, "uid": peer.uid}
        try:
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(_read_line(connection))
        except (OSError, ValueError):
            return who
        return {**answer, **who} if isinstance(answer, dict) else who


def _read_line(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        part = connection.recv(LINE_LIMIT)
        if not part:
            break
        line += part
    return line


def busy(holder: Dict[str, Any]) -> OperationError:
    """Return the error that names who holds the machine."""
    if "run" in holder:
        since = _moment(holder.get("since"))
        known = "run %s of user %s, since %s" % (holder["run"], holder.get("user", "?"), since)
        hint = "clusterctl stop %s" % holder["run"]
    elif "pid" in holder:
        known = "pid %s of uid %s, which does not answer" % (holder["pid"], holder["uid"])
        hint = "look at that process"
    else:
        known = "its lock is held by a process that cannot be asked"
        hint = "ss -xlp (on the node) shows who holds it"
    return OperationError("busy", "the machine is busy: " + known, holder=holder, hint=hint)


def _moment(since: Any) -> str:  # noqa: ANN401  (whoever holds the lock may tell anything)
    try:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(since))
    except (TypeError, ValueError, OverflowError, OSError):
        return "an unknown time"
