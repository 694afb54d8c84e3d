"""A sync's first question: does the folder hold the tree?

Mostly it does, and then no more than this module is needed: it imports little, for every import
is compiled on every node.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import gc
import os
import stat
import time

from clusterctl.node.agent.call_channel import CallChannel, OperationError
from clusterctl.node.mirror.manifest import FOLDER, Manifest
from clusterctl.node.mirror.tree_hash import Entry, Listing, decode_listing, path_text, tree_hash
from clusterctl.own_files import describe_file, user_name
from clusterctl.wire import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional

OWN_FILES = (b"lock", b"manifest.json", b".gitignore")
"""The files in our folder."""

MAX_SHOWN = 20
"""Paths that an answer names at most."""

TOKEN_SECONDS = 3600.0
"""No sync needs its token for so long."""
ANSWER_SECONDS = 20.0
"""Longest a folder may take to be looked into: a hung mount would take forever."""


def compare_tree(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Say whether the folder holds the tree; where it does not, leave a token for `find_tokens`.

    Args:
        args: `workdir`, `tree` (the wanted hash), `token`; `fresh` (true: read every file).
        body: the wanted listing; empty: the one that was placed last, if its hash is the wanted.
    """
    del channel
    root = target_folder(args)
    with gc_paused(), report_file_errors(root):
        manifest = Manifest(root)
        if args.get("fresh"):
            manifest.records = {}
        if body:
            different: Optional[List[bytes]] = differences(manifest, decode_listing(body))
        else:
            different = _since_placed(manifest, args["tree"])
        if different == []:
            return Message({"equal": True})
        head: Dict[str, Any] = {"equal": False, "placed": manifest.tree is not None}
        if different is not None:
            head["different"] = [path_text(path) for path in different[:MAX_SHOWN]]
        if args.get("token"):
            _leave_token(root, args["token"])
    return Message(head)


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Search no cycles meanwhile: with many records that is a fifth of the time, and finds none."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def report_file_errors(root: bytes) -> Iterator[None]:
    """Turn what the system refuses in the folder into an OperationError, which names the file."""
    try:
        yield
    except OSError as error:
        path = os.fsencode(error.filename or root)
        message = "%s: %s" % (path_text(path), error.strerror)
        raise OperationError("file", message, hint=_permission_hint(root, path, error)) from error


def _permission_hint(root: bytes, path: bytes, error: OSError) -> str:
    """Return what to type if this user lacks the right: mostly another user synced there."""
    if error.errno not in (errno.EACCES, errno.EPERM):
        return ""
    import shlex  # noqa: PLC0415  (most syncs are not refused)

    path = os.path.join(root, path)
    while path != b"/" and (not os.path.lexists(path) or os.access(path, os.W_OK)):
        path = os.path.dirname(path)
    owner = os.lstat(path).st_uid
    if owner == os.getuid():
        return "chmod u+rwX %s" % shlex.quote(path_text(path))
    top = root if path.startswith(root) else path
    hint = "as user %s, in a group of both: chmod -R g+rwX %s, and sync with umask 002"
    return hint % (user_name(owner), shlex.quote(path_text(top)))


def target_folder(args: Dict[str, Any]) -> bytes:
    """Return the mirrored folder of a request; raise OperationError if it cannot be one."""
    path = os.path.expanduser(os.fsencode(str(args["workdir"])))
    require_answer(path)
    if not os.path.isabs(path) or os.path.realpath(path) == b"/":
        message = "workdir must be an absolute path and not /: %s" % args["workdir"]
        raise OperationError("workdir", message)
    require_plain_files(path)
    return path


def require_plain_files(root: bytes) -> None:
    """Raise OperationError `squatted` if there are links or pipes where clusterctl's files belong.

    To write there could change a file elsewhere, or wait forever.
    """
    own = os.path.join(root, FOLDER)
    folders = [own, *(os.path.join(own, name) for name in (b"replaced", b"seen", b"tmp"))]
    files = [os.path.join(own, name) for name in OWN_FILES]
    for path in (*folders, *files):
        try:
            seen = os.lstat(path)
        except OSError:
            if path == own:
                return
            continue
        is_right, expected = (
            (stat.S_ISDIR, "a folder") if path in folders else (stat.S_ISREG, "a file")
        )
        if not is_right(seen.st_mode):
            message = "%s: expected %s, found %s" % (path_text(path), expected, describe_file(seen))
            raise OperationError("squatted", message)


def require_answer(path: bytes) -> None:
    """Raise OperationError `silent` if a folder does not answer in time, whatever is in it.

    A thread looks, not a child as elsewhere: every sync asks this, and a fork takes milliseconds.
    """
    looking = _thread.allocate_lock()
    looking.acquire()

    def look() -> None:
        with contextlib.suppress(OSError), os.scandir(path) as entries:
            next(entries, None)
        looking.release()

    _thread.start_new_thread(look, ())
    if not looking.acquire(timeout=ANSWER_SECONDS):
        message = "%s does not answer: nothing within %.0f s" % (path_text(path), ANSWER_SECONDS)
        raise OperationError("silent", message)


def differences(manifest: Manifest, listing: Listing) -> List[bytes]:
    """Return the paths at which the folder is not as listed."""
    return [path for path, entry in sorted(listing.items()) if manifest.current(path) != entry]


def token_path(root: bytes, token: str) -> bytes:
    """Return where a token lies that `find_tokens` looks for."""
    return os.path.join(root, FOLDER, b"seen", os.fsencode(token))


def _leave_token(root: bytes, token: str) -> None:
    make_folder(root)
    path = token_path(root, token)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    for name in os.listdir(os.path.dirname(path)):
        with contextlib.suppress(OSError):  # of a sync that was cut off
            old = os.path.join(os.path.dirname(path), name)
            if time.time() - os.lstat(old).st_mtime > TOKEN_SECONDS:
                os.unlink(old)
    write_new_file(path, "")


def write_new_file(path: bytes, content: str) -> None:
    """Write a new file, whatever has its name: nothing is written through a link."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "w") as file:
        file.write(content)


def make_folder(root: bytes) -> None:
    """Make our folder within the mirrored one; raise OperationError if that fails."""
    try:
        os.makedirs(os.path.join(root, FOLDER), exist_ok=True)
    except OSError as error:
        message = "%s cannot be written: %s" % (path_text(root), error.strerror)
        hint = _permission_hint(root, os.path.join(root, FOLDER), error)
        raise OperationError("workdir", message, hint=hint) from error


def _since_placed(manifest: Manifest, tree: str) -> Optional[List[bytes]]:
    """Return the paths that differ from what was placed last; None: that is another tree."""
    if manifest.tree != tree:
        return None
    placed: Listing = {}
    different = []
    for path, record in sorted(manifest.records.items()):
        current = manifest.current(path)
        # Only the hash of the whole tree knows the kinds: those of now must make it up.
        placed[path] = Entry(current.kind if current else "", record.digests[-1])
        if current != placed[path]:
            different.append(path)
    return different if different or tree_hash(placed) == tree else None
