"""What is at a path, in words: for refusals of what somebody else may have put there."""

from __future__ import annotations

import os
import stat

from clusterctl.node.users import user_name

_KINDS = {
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "pipe",
    stat.S_IFLNK: "link",
    stat.S_IFREG: "file",
    stat.S_IFSOCK: "socket",
}


def describe_file(seen: os.stat_result) -> str:
    """Return the kind, owner and mode of what was seen."""
    kind = _KINDS.get(stat.S_IFMT(seen.st_mode), "device")
    return "a %s of user %s, mode %o" % (kind, user_name(seen.st_uid), stat.S_IMODE(seen.st_mode))
