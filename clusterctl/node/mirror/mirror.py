"""The node's part of a sync that has something to do: make way, let rsync write, prove.

Only what the last sync placed, unchanged since, is deleted. Whatever else has to make way
is moved to `.clusterctl/replaced/TIME/` in the same folder, and said.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import zlib

from clusterctl.node import run_lock
from clusterctl.node.agent.call_channel import CallChannel, OperationError
from clusterctl.node.mirror.manifest import FOLDER, Manifest
from clusterctl.node.mirror.safe_open import RootFolder
from clusterctl.node.mirror.sync_diff import (
    MAX_SHOWN,
    differences,
    gc_paused,
    make_folder,
    report_file_errors,
    target_folder,
    token_path,
    write_new_file,
)
from clusterctl.node.mirror.sync_lock import CONTROLLER_SECONDS, hold_lock
from clusterctl.node.mirror.sync_plan import SyncPlan
from clusterctl.node.mirror.tree_hash import LINK, decode_listing, path_bytes, path_text
from clusterctl.own_files import remove_unfinished
from clusterctl.wire import Message, read_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Optional


def find_tokens(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Say which of the tokens are in this node's folder, and which run works in it here.

    Nodes that see the same token share a filesystem. `lock` is the one that a run holds.
    """
    del body, channel
    root = target_folder(args)
    visible = [t for t in args["tokens"] if os.path.exists(token_path(root, t))]
    return Message(
        {"seen": visible, "busy": run_lock.live_run(root, args.get("lock", run_lock.NAME))}
    )


def apply_sync(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Bring the folder to the tree: plan, wait for the word to begin, make way, prove.

    The first answer says that the folder is locked. The second is the plan: `need`, `deletions`,
    `moved`, `placed`, `from`; its body has the wanted paths, then those that would be deleted,
    each ended by NUL. Nothing changes before the controller's `go`; its body has those that are to
    stay after all, then perhaps the files. The third answer says that rsync may write, to
    `temporary`, or why the files could not be written.

    Args:
        args: `workdir`, `tree`, `lock`; `holder` (who syncs, from where), `temporary` (a folder
            of this sync's own within it: once it is removed, a late rsync can write nothing),
            `tokens` (of this sync: they have served, and are removed).
        body: the wanted listing.
    """
    root = target_folder(args)
    make_folder(root)
    holder = args.get("holder") or {}
    with gc_paused(), report_file_errors(root), hold_lock(root, holder) as alone:
        channel.send(Message({"locked": True}))
        _remove_tokens(root, args.get("tokens", ()))
        listing = decode_listing(body)
        manifest = Manifest(root)
        plan = SyncPlan(root, manifest, listing)
        if plan.changes or plan.conflicts:
            _refuse_conflicts(root, args, plan)
        channel.receive_timeout_s = CONTROLLER_SECONDS
        channel.send(_plan(manifest, plan))
        verdict = _wait_to_proceed(channel)
        if verdict is None:
            return Message({"aborted": True})
        stays = verdict.head.get("stays", 0)
        plan.keep(set(verdict.body[:stays].split(b"\0")))
        if plan.changes:
            _refuse_run(root, args)  # one may have started while the other nodes made their plans
        complete = not plan.changes and manifest.tree == args["tree"]
        temporary, failed = _temporary(root, args), ""
        if alone:
            _remove(os.path.dirname(temporary))
            remove_unfinished(os.path.join(root, FOLDER))
        try:
            if not complete:
                # If the folder is a clone too, its git must not see ours.
                write_new_file(os.path.join(root, FOLDER, b".gitignore"), "*\n")
                manifest.origin = {k: str(holder[k]) for k in ("host", "folder") if k in holder}
                plan.begin()
                os.makedirs(temporary, mode=0o700, exist_ok=True)
                if verdict.head.get("files"):
                    failed = write_files(root, temporary, verdict.body[stays:])
            aside = [path_text(path) for path in plan.moved_aside]
            head = {"need": len(plan.needed), "deleted": plan.deleted, "set_aside": aside}
            head["failed"] = failed
            head["sent_paths"] = [path_text(path) for path in plan.needed[:MAX_SHOWN]]
            head["deleted_paths"] = [path_text(path) for path in plan.deletions[:MAX_SHOWN]]
            channel.send(Message({"begun": True, **head}))
            proceeds = _wait_to_proceed(channel) is not None
            different = differences(manifest, listing)
            if proceeds and not different and not complete:
                plan.finish(args["tree"])
        finally:
            _remove(temporary)
            with contextlib.suppress(OSError):
                os.rmdir(os.path.dirname(temporary))
    shown = [path_text(path) for path in different[:MAX_SHOWN]]
    return Message({**head, "equal": not different, "different": shown})


def _refuse_conflicts(root: bytes, args: Dict[str, Any], plan: SyncPlan) -> None:
    """Refuse what must not be changed, or cannot."""
    _refuse_run(root, args)
    if plan.conflicts:
        paths = [path_text(path) for path in plan.conflicts]
        message = "something of the user's is in the way: " + ", ".join(paths[:MAX_SHOWN])
        raise OperationError("in-the-way", message, paths=paths)


def _refuse_run(root: bytes, args: Dict[str, Any]) -> None:
    busy = run_lock.live_run(root, args.get("lock", run_lock.NAME))
    if busy is not None:
        raise OperationError("busy", "a run works in this folder", holder=busy)


def _plan(manifest: Manifest, plan: SyncPlan) -> Message:
    head = {
        "need": len(plan.needed),
        "deletions": len(plan.stale),
        "moved": plan.moved,
        "placed": len(manifest.records),
        "from": manifest.origin,
    }
    return Message(head, b"".join(path + b"\0" for path in (*plan.needed, *plan.stale)))


def _wait_to_proceed(channel: CallChannel) -> Optional[Message]:
    """Wait for the controller's word; None: it gave up, or is silent for too long."""
    while True:
        message = channel.receive()
        if message is None or "abort" in message.head:
            return None
        if "alive" not in message.head:
            return message


def _temporary(root: bytes, args: Dict[str, Any]) -> bytes:
    name = os.path.basename(os.fsencode(str(args.get("temporary") or "own")))
    return os.path.join(root, FOLDER, b"tmp", name)


def _remove(folder: bytes) -> None:
    """Remove a folder, mostly an empty one."""
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        pass
    except OSError:
        import shutil  # noqa: PLC0415  (its import takes long)

        shutil.rmtree(folder, ignore_errors=True)


def remove_tokens(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Take this node's token away, and our folder where nothing else is in it."""
    del body, channel
    root = target_folder(args)
    _remove_tokens(root, args["tokens"])
    with contextlib.suppress(OSError):
        os.rmdir(os.path.join(root, FOLDER))
    return Message({})


def _remove_tokens(root: bytes, tokens: Iterable[str]) -> None:
    for token in tokens:
        with contextlib.suppress(OSError):
            os.unlink(token_path(root, token))
    with contextlib.suppress(OSError):
        os.rmdir(os.path.join(root, FOLDER, b"seen"))


def exec_rsync(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Become `rsync --server` on this channel, in the folder."""
    import shutil  # noqa: PLC0415  (few syncs need rsync, and both take long)
    import signal  # noqa: PLC0415

    del body
    argv = [str(word) for word in args["argv"]]
    root = target_folder(args)
    if argv[:2] != ["rsync", "--server"]:
        raise OperationError("rsync", "not a command of rsync's: %r" % argv[:2])
    if shutil.which("rsync") is None:
        raise OperationError("no-rsync", "rsync is not installed")
    with report_file_errors(root):
        os.chdir(root)
    channel.send(Message({"exec": True}))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    channel.exec_program(argv)
    raise AssertionError("exec returned")


def write_files(root: bytes, temporary: bytes, packed: bytes) -> str:
    """Write files to a folder, each whole or not at all; return why one could not be, else nothing.

    Args:
        temporary: a folder of its own in the same filesystem, that files are written to first.
    """
    stream = io.BytesIO(zlib.decompress(packed))
    part = os.path.join(temporary, b"part")
    with RootFolder(root) as inside:
        while (file := read_message(stream)) is not None:
            name = file.head["path"]
            path = path_bytes(name)
            try:
                _write_one(part, file, inside.parent(path, make=True), os.path.basename(path))
            except OSError as error:
                return "%s: %s" % (name, error.strerror)
    return ""


def _write_one(part: bytes, file: Message, parent: int, name: bytes) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part)
    mode, times = file.head["mode"], (file.head["mtime_ns"],) * 2
    if file.head["kind"] == LINK:
        os.symlink(file.body, part)
    else:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(os.open(part, flags, mode), "wb") as written:
            written.write(file.body)
            _keep_mode(written.fileno(), mode, parent, name)
    os.utime(part, ns=times, follow_symlinks=False)
    os.rename(part, name, dst_dir_fd=parent)


def _keep_mode(descriptor: int, wanted: int, parent: int, name: bytes) -> None:
    """Give a file the mode of the one that it replaces, but for x, as rsync -E does."""
    with contextlib.suppress(FileNotFoundError):
        before = os.lstat(name, dir_fd=parent)
        if stat.S_ISREG(before.st_mode):
            mode = before.st_mode & 0o777
            if not wanted & 0o111:
                mode &= ~0o111
            elif not mode & 0o111:
                mode |= (mode & 0o444) >> 2
            os.fchmod(descriptor, mode)
