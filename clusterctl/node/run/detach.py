"""How a process outlives the session that starts it, where systemd-logind ends what is left.

Without a terminal sshd kills nothing. But under `KillUserProcesses=yes` logind ends every process
of a session with it, unless it moved to a scope of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import List, Optional

from clusterctl.node.agent.call_channel import OperationError
from clusterctl.own_files import user_name

LOGIND = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
PROPERTIES = ("KillUserProcesses", "KillOnlyUsers", "KillExcludeUsers")
QUERY_SECONDS = 5.0
LINGER = "/var/lib/systemd/linger"
"""A file for each user whose systemd stays without a session."""


def kills_at_logout(text: str, user: str) -> Optional[bool]:
    """Tell from what `busctl get-property` prints whether logind kills a user's processes.

    It prints `b true`, `as 0`, `as 1 "root"`, a line each; None: it is something else.
    """
    lines = text.splitlines()
    if len(lines) != len(PROPERTIES):
        return None
    only, excluded = ([word.strip('"') for word in line.split()[2:]] for line in lines[1:])
    return lines[0].split()[-1] == "true" and user not in excluded and (not only or user in only)


def owned_by(cgroup: str, prefix: str, suffix: str) -> bool:
    """Tell from /proc/self/cgroup whether such a unit of systemd owns this process."""
    units = cgroup.replace("\n", "/").split("/")
    return any(unit.startswith(prefix) and unit.endswith(suffix) for unit in units)


def detach_command(unit: str) -> List[str]:
    """Return the words to put before a command so that it outlives the session; often none.

    Args:
        unit: a name for the scope, should one be needed.

    Raises:
        OperationError: `logout-kills`: it would be killed at logout, and cannot be kept.
    """
    with open("/proc/self/cgroup") as file:
        cgroup = file.read()
    return command_for(unit, cgroup, user_name(), uid=os.getuid(), linger=LINGER)


def command_for(unit: str, cgroup: str, user: str, *, uid: int, linger: str) -> List[str]:
    """Return the same for a process of that cgroup and user; `linger` is logind's folder.

    Raises:
        OperationError: `logout-kills`.
    """
    lingers = os.path.exists(os.path.join(linger, user))
    scope = ["--scope", "--quiet", "--collect", "--unit=" + unit, "--"]
    if owned_by(cgroup, "user@", ".service"):
        # The user's own systemd, as under a desktop's terminal. Without linger it ends with the
        # user's last session, and with it all that it owns.
        if uid == 0:
            return ["systemd-run", *scope]
        if lingers:
            return []
        why = "systemd ends what user %s left running at the last logout (no linger)"
    elif owned_by(cgroup, "session-", ".scope"):
        kills = kills_at_logout(_query_logind(), user)
        if kills is False:
            return []
        if uid == 0:
            # By default logind spares root.
            return ["systemd-run", *scope] if shutil.which("systemd-run") or kills else []
        if lingers:
            return ["systemd-run", "--user", *scope]
        why = (
            "logind kills what user %s leaves running at logout (KillUserProcesses=yes, no linger)"
        )
        if kills is None:
            why = "logind may kill what user %s leaves running at logout (busctl gave no answer)"
    else:
        return []
    raise OperationError("logout-kills", why % user, hint="loginctl enable-linger " + user)


def own_scope(unit: str) -> str:
    """Return this process's cgroup where it is the scope that was made for it, else nothing."""
    with open("/proc/self/cgroup") as file:
        for line in file:
            path = line.rstrip("\n").split(":", 2)[-1]
            if line.startswith("0::") and path.endswith("/" + unit + ".scope"):
                return path
    return ""


def _query_logind() -> str:
    """Return what logind prints of its settings; empty: it did not answer."""
    try:
        done = subprocess.run(
            ["busctl", "get-property", *LOGIND, *PROPERTIES],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=QUERY_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")
