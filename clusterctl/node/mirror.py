"""The node's part of a sync that has something to do: make way, let rsync write, prove.

Deleted is only what the last sync placed and nobody changed since. Whatever else has to make way
is moved to `.clusterctl/replaced/TIME/` in the same folder, and said.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import signal
from typing import Any, Dict, Iterator, Optional

from clusterctl.node import lock
from clusterctl.node.change import Change
from clusterctl.node.compare import (
    SHOWN,
    differences,
    folder,
    make_folder,
    token_path,
    told_by_name,
)
from clusterctl.node.link import Link, OperationError
from clusterctl.node.manifest import FOLDER, Manifest
from clusterctl.node.trees import decode, text
from clusterctl.wire import Message


def seen(args: Dict[str, Any], body: bytes, link: Link) -> Message:
    """Say which of the tokens lie in this node's folder, and who runs in it here.

    Nodes that see the same token share a filesystem. `lock` is the one that a run holds.
    """
    del body, link
    root = folder(args)
    visible = [t for t in args["tokens"] if os.path.exists(token_path(root, t))]
    return Message({"seen": visible, "busy": live_run(root, args)})


def place(args: Dict[str, Any], body: bytes, link: Link) -> Message:
    """Bring the folder to the tree: make way, say what is needed, wait for it, prove it.

    The first answer has `need` (a number), the wanted paths as its body, each ended by NUL.
    """
    root = folder(args)
    make_folder(root)
    listing = decode(body)
    busy = live_run(root, args)
    if busy is not None:
        raise OperationError("busy", "a run works in this folder", holder=busy)
    with told_by_name(root), _alone(root):
        with open(os.path.join(root, FOLDER, b".gitignore"), "w") as file:
            file.write("*\n")  # where the folder is a clone too, its git shall not see ours
        manifest = Manifest(root)
        change = Change(root, manifest, listing)
        if change.in_the_way:
            paths = [text(path) for path in change.in_the_way]
            message = "something of the user's is in the way: " + ", ".join(paths[:SHOWN])
            raise OperationError("in-the-way", message, paths=paths)
        change.begin()
        head = {"need": len(change.needed), "deleted": change.deleted}
        aside = [text(path) for path in change.aside]
        link.send(Message({**head, "set_aside": aside}, b"\0".join(change.needed)))
        told = link.receive()
        different = differences(manifest, listing)
        if told is not None and not different:
            change.finish(args["tree"])
        shutil.rmtree(os.path.join(root, FOLDER, b"tmp"), ignore_errors=True)
    shown = [text(path) for path in different[:SHOWN]]
    return Message({**head, "set_aside": aside, "equal": not different, "different": shown})


def clear(args: Dict[str, Any], body: bytes, link: Link) -> Message:
    """Take this node's token away, and our folder where nothing else is in it."""
    del body, link
    root = folder(args)
    for token in args["tokens"]:
        with contextlib.suppress(OSError):
            os.unlink(token_path(root, token))
    for path in (os.path.join(root, FOLDER, b"seen"), os.path.join(root, FOLDER)):
        with contextlib.suppress(OSError):
            os.rmdir(path)
    return Message({})


def rsync(args: Dict[str, Any], body: bytes, link: Link) -> Message:
    """Become `rsync --server` on this channel, in the folder."""
    del body
    argv = [str(word) for word in args["argv"]]
    root = folder(args)
    if argv[:2] != ["rsync", "--server"]:
        raise OperationError("rsync", "not a command of rsync's: %r" % argv[:2])
    if shutil.which("rsync") is None:
        raise OperationError("no-rsync", "rsync is not installed")
    with told_by_name(root):
        os.makedirs(os.path.join(root, FOLDER, b"tmp"), mode=0o700, exist_ok=True)
        os.chdir(root)
    link.send(Message({"exec": True}))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    link.become(argv)
    raise AssertionError("exec returned")


def live_run(root: bytes, args: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """Return who runs in this folder now; None: nobody."""
    holder = lock.ask(args.get("lock", lock.NAME), {"ask": "who"})
    if holder is None:
        return None
    elsewhere = holder.get("workdir")
    if elsewhere and os.path.realpath(os.fsencode(elsewhere)) != os.path.realpath(root):
        return None
    return holder


@contextlib.contextmanager
def _alone(root: bytes) -> Iterator[None]:
    """Hold the folder against other syncs, for as long as this process lives."""
    with open(os.path.join(root, FOLDER, b"lock"), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
                raise OperationError("busy", "another sync writes here now", holder={}) from error
            # Some filesystems know no locks; the manifest is still replaced whole.
        yield
