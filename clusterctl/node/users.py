"""Names of users, and who owns what is at a path: for refusals of what another put there."""

from __future__ import annotations

import os
import pwd
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

_KINDS = {
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "pipe",
    stat.S_IFLNK: "link",
    stat.S_IFREG: "file",
    stat.S_IFSOCK: "socket",
}


def user_name(uid: Optional[int] = None) -> str:
    """Return a user's name, this user's by default; the number if there is none."""
    number = os.getuid() if uid is None else uid
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def describe_file(seen: os.stat_result) -> str:
    """Return the kind, owner and mode of what was seen."""
    kind = _KINDS.get(stat.S_IFMT(seen.st_mode), "device")
    return "a %s of user %s, mode %o" % (kind, user_name(seen.st_uid), stat.S_IMODE(seen.st_mode))
