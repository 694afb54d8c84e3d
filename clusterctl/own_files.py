"""Files and folders of this user alone, on nodes and on the controller: made, checked, replaced."""

from __future__ import annotations

import errno
import os
import pwd
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Union

    AnyPath = Union[str, bytes, os.PathLike[str]]

_KINDS = {
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "pipe",
    stat.S_IFLNK: "link",
    stat.S_IFREG: "file",
    stat.S_IFSOCK: "socket",
}
_OTHERS_WRITE = 0o022
_NEW, _HEX = b"new", b"0123456789abcdef"
_UNFINISHED_SECONDS = 86400.0
"""No file takes so long to write."""


class NotPrivateError(OSError):
    """A folder that must be this user's alone, and is not."""

    strerror: str

    def __init__(self, path: str, found: str, hint: str) -> None:
        expected = "a folder of uid %d, mode 700" % os.getuid()
        words = "%s is not a folder of this user alone: expected %s, found %s"
        super().__init__(errno.EPERM, words % (path, expected, found), path)
        self.found = found
        """Its kind, owner and mode."""
        self.hint = hint
        """The command that fixes it; empty: another user's folder must not be changed."""


def make_private(*levels: AnyPath) -> None:
    """Make folders, the outermost first, each with mode 0700 whatever the umask; check each.

    What is missing above the first is made likewise, and not checked: it is not ours alone.

    Raises:
        NotPrivateError: one is no folder, another user's, or others may write to it.
        OSError: one cannot be made.
    """
    outer = os.path.dirname(os.path.abspath(os.fsencode(levels[0])))
    missing = []
    while not os.path.lexists(outer):
        missing.append(outer)
        outer = os.path.dirname(outer)
    for above in reversed(missing):
        _make(above)
    for folder in levels:
        _make(folder)
        require_private(folder)  # before anything is made in it


def _make(folder: AnyPath) -> None:
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        return
    os.chmod(folder, 0o700)  # the umask may have taken some of it


def require_private(folder: AnyPath) -> None:
    """Refuse a folder that another user made or may write to.

    /var/tmp is open to all: another user could create the folder first.

    Raises:
        NotPrivateError: it is no folder of this user alone.
        OSError: it is not there, or cannot be seen.
    """
    seen = os.lstat(folder)
    is_ours = stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.getuid()
    if is_ours and not seen.st_mode & _OTHERS_WRITE:
        return
    path = os.fsdecode(folder)
    hint = ""
    if is_ours:
        import shlex  # noqa: PLC0415  (start-up counts)

        hint = "chmod -R go-w %s" % shlex.quote(path)
    raise NotPrivateError(path, describe_file(seen), hint)


def replace_file(path: AnyPath, data: bytes, *, mode: int = 0o600, sync: bool = False) -> None:
    """Write a file so that it is there whole or as before; `sync`: after a power failure too.

    Raises:
        OSError: it could not be written; nothing has changed, and nothing is left.
    """
    # A name of its own: another process, or another node, may replace the same file now.
    new = b"%s.%s.%s" % (os.fsencode(path), os.urandom(6).hex().encode(), _NEW)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(descriptor)
        os.replace(new, path)
    except BaseException:
        try:  # noqa: SIM105  (start-up counts)
            os.unlink(new)
        except OSError:  # deleted with its folder
            pass
        raise


def remove_unfinished(folder: AnyPath) -> None:
    """Remove what `replace_file` left in a folder where it was killed, a day ago or earlier."""
    place = os.fsencode(folder)
    for name in os.listdir(place):
        base, _, end = name.rpartition(b".")
        if end == _NEW and b"." in base and not base.rpartition(b".")[2].strip(_HEX):
            left = os.path.join(place, name)
            try:
                seen = os.lstat(left)
                if seen.st_uid == os.getuid() and seen.st_mtime < time.time() - _UNFINISHED_SECONDS:
                    os.unlink(left)
            except OSError:  # another process removed it
                continue


def write_named(path: AnyPath, data: bytes) -> None:
    """Write to the path that a user gave: a file is replaced whole, where a link leads.

    It keeps its mode, owner and group. What cannot be replaced is written in place: another
    user's file, a mount of one file, a file in a folder where this user may not make one.

    Raises:
        OSError: it could not be written; a file that can be replaced is as before.
    """
    target = os.path.realpath(os.fsencode(path))
    try:
        seen = os.stat(path)
    except FileNotFoundError:
        replace_file(target, data, mode=0o666)
        return
    if stat.S_ISREG(seen.st_mode) and seen.st_uid == os.geteuid():
        try:
            replace_file(target, data, mode=stat.S_IMODE(seen.st_mode))
            if os.stat(target).st_gid != seen.st_gid:
                os.chown(target, -1, seen.st_gid, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EBUSY, errno.EPERM):
                raise
        else:
            return
    with open(path, "wb") as file:  # also such as /dev/stdout
        file.write(data)


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
