"""How a process outlives the session that starts it, where systemd-logind ends what is left.

Without a terminal sshd kills nothing. But under `KillUserProcesses=yes` logind ends every process
of a session with it, unless it moved to a scope of its own. Without PAM there is no session; but
where systemd starts an sshd for each connection, it ends what is left in that unit.
"""

from __future__ import annotations

import os
import re
from typing import List, Optional, Tuple

from clusterctl.node.agent.call_channel import OperationError
from clusterctl.node.agent.child_tasks import output_of
from clusterctl.own_files import user_name

LOGIND = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
PROPERTIES = ("KillUserProcesses", "KillOnlyUsers", "KillExcludeUsers")
BUSCTL = ["busctl", "get-property", *LOGIND, *PROPERTIES]
QUERY_SECONDS = 5.0
_CONNECTION = re.compile(r"sshd?@[^/]*\.service")
KEEPING = ("process", "none")
"""Values of KillMode with which systemd leaves the other processes of a unit alone."""
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


def connection_unit(cgroup: str) -> str:
    """Return the unit of the sshd of one connection that owns this process; empty: none does."""
    units = cgroup.replace("\n", "/").split("/")
    return next((unit for unit in units if _CONNECTION.fullmatch(unit)), "")


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
    """Return the same for a process of that cgroup and user; `linger` is logind's folder."""
    scope = ["--scope", "--quiet", "--collect", "--unit=" + unit, "--"]
    in_user_scope = ["systemd-run", "--user", *scope]
    if owned_by(cgroup, "user@", ".service"):
        # The user's own systemd, as under a desktop's terminal. Without linger it ends with the
        # user's last session, and with it all that it owns.
        words = "systemd ends what user %s left running at the last logout (no linger)"
        why, certain, in_user_scope = words % user, True, []
    elif owned_by(cgroup, "session-", ".scope"):
        why, certain = _why_session_ends_it(user)
    else:
        why, certain = _why_connection_ends_it(connection_unit(cgroup), user)
        # Without PAM nothing has set what systemd-run needs.
        in_user_scope = ["env", "XDG_RUNTIME_DIR=/run/user/%d" % uid, *in_user_scope]
    if not why:
        return []
    if uid == 0:
        import shutil  # noqa: PLC0415  (start-up counts)

        # By default logind spares root.
        return ["systemd-run", *scope] if certain or shutil.which("systemd-run") else []
    if os.path.exists(os.path.join(linger, user)):
        return in_user_scope
    raise OperationError("logout-kills", why, hint="loginctl enable-linger " + user)


def _why_session_ends_it(user: str) -> Tuple[str, bool]:
    """Say why a process ends with its session, empty if it does not; and whether that is sure."""
    kills = kills_at_logout(output_of(BUSCTL, QUERY_SECONDS) or "", user)
    if kills is None:
        words = "logind may kill what user %s leaves running at logout (busctl gave no answer)"
    else:
        words = "logind kills what user %s leaves running at logout"
        words += " (KillUserProcesses=yes, no linger)"
    return ("" if kills is False else words % user), kills is not None


def _why_connection_ends_it(unit: str, user: str) -> Tuple[str, bool]:
    """Say the same of a process of an sshd for one connection."""
    if not unit:
        return "", True
    asked = ["systemctl", "show", "--property=KillMode", "--", unit]
    mode = (output_of(asked, QUERY_SECONDS) or "").strip().rpartition("=")[2]
    words = "systemd ends what user %s leaves running after the connection (%s: KillMode=%s)"
    return ("" if mode in KEEPING else words % (user, unit, mode or "?")), bool(mode)


def own_scope(unit: str) -> str:
    """Return this process's cgroup where it is the scope that was made for it, else nothing."""
    with open("/proc/self/cgroup") as file:
        for line in file:
            path = line.rstrip("\n").split(":", 2)[-1]
            if line.startswith("0::") and path.endswith("/" + unit + ".scope"):
                return path
    return ""
