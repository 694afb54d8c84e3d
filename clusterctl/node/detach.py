"""How a process outlives the session that starts it, where systemd-logind ends what is left.

Without a terminal sshd kills nothing. But under `KillUserProcesses=yes` logind ends every process
of a session with it, unless it moved to a scope of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import List, NamedTuple, Tuple

from clusterctl.node.link import OperationError
from clusterctl.node.lock import user_name

LOGIND = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
PROPERTIES = ("KillUserProcesses", "KillOnlyUsers", "KillExcludeUsers")
ASK_SECONDS = 5.0


class Logout(NamedTuple):
    """What logind does to this user's processes when a session ends."""

    kills: bool
    only: Tuple[str, ...] = ()
    excluded: Tuple[str, ...] = ()

    def kills_of(self, user: str) -> bool:
        """Tell whether it kills the processes of a user."""
        return self.kills and user not in self.excluded and (not self.only or user in self.only)


def read_logout(text: str) -> Logout:
    """Parse what `busctl get-property` prints: `b true`, `as 0`, `as 1 "root"`, a line each."""
    lines = text.splitlines()
    if len(lines) != len(PROPERTIES):
        return Logout(kills=False)
    names = [tuple(word.strip('"') for word in line.split()[2:]) for line in lines[1:]]
    return Logout(kills=lines[0].split()[-1] == "true", only=names[0], excluded=names[1])


def in_session(cgroup: str) -> bool:
    """Tell from /proc/self/cgroup whether a login session owns this process."""
    return any(
        part.startswith("session-") and part.endswith(".scope")
        for line in cgroup.splitlines()
        for part in line.split("/")
    )


def wrapper(unit: str) -> List[str]:
    """Return the words to put before a command so that it outlives the session; often none.

    Args:
        unit: a name for the scope, should one be needed.

    Raises:
        OperationError: `logout-kills`: it would be killed at logout, and cannot be kept.
    """
    with open("/proc/self/cgroup") as file:
        if not in_session(file.read()):
            return []
    user = user_name()
    if not _ask_logind().kills_of(user):
        return []
    scope = ["--scope", "--quiet", "--collect", "--unit=" + unit, "--"]
    if os.getuid() == 0:
        return ["systemd-run", *scope]
    if os.path.exists("/var/lib/systemd/linger/" + user):
        return ["systemd-run", "--user", *scope]
    raise OperationError(
        "logout-kills",
        "logind kills what user %s leaves running at logout (KillUserProcesses=yes, no linger)"
        % user,
        hint="loginctl enable-linger " + user,
    )


def own_scope(unit: str) -> str:
    """Return this process's cgroup where it is the scope that was made for it, else nothing."""
    with open("/proc/self/cgroup") as file:
        for line in file:
            path = line.rstrip("\n").split(":", 2)[-1]
            if line.startswith("0::") and path.endswith("/" + unit + ".scope"):
                return path
    return ""


def _ask_logind() -> Logout:
    if shutil.which("busctl") is None:
        return Logout(kills=False)
    try:
        done = subprocess.run(
            ["busctl", "get-property", *LOGIND, *PROPERTIES],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ASK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return Logout(kills=False)
    return read_logout(done.stdout.decode("utf-8", "replace"))
