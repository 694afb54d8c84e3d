"""A sync's dialogue with one node: it plans, may begin, is brought its files, proves the tree."""

import contextlib
import functools
import os
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from clusterctl.errors import NodeError
from clusterctl.node.mirror.safe_open import RootFolder
from clusterctl.node.mirror.tree_hash import LINK, entry_kind, path_bytes, path_text
from clusterctl.node.push.manifest import is_below
from clusterctl.safe_text import printable_words
from clusterctl.sync.rsync import NOT_WRITTEN, TEMPORARY, PushResult, push
from clusterctl.sync.two_phase import TwoPhaseCommit
from clusterctl.transport.agent_call import SLOWEST_RATE
from clusterctl.transport.connection import Connection
from clusterctl.transport.interface import Call, Reply, Request
from clusterctl.transport.ssh.control_master import ControlFolder
from clusterctl.values import dataclass
from clusterctl.wire import BODY_LIMIT, Message, plain

CHUNK = 1 << 20


def local_copy(
    *,
    source: Path,
    paths: list[bytes],
    workdir: str,
    temporary: str,
    alive: Callable[[int], object],
) -> PushResult:
    """Copy files and links of a folder to another, as `rsync.push` does."""
    target = Path(workdir).expanduser()
    part = target / TEMPORARY / temporary / "part"
    done = 0

    def copied(count: int) -> None:
        nonlocal done
        done += count
        alive(done)

    try:
        part.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in map(os.fsdecode, paths):
            copied(0)
            part.unlink(missing_ok=True)
            _copy_one(source / name, part, copied)
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            part.replace(target / name)
    except OSError as error:
        return PushResult(code=1, words=f"{error.filename}: {error.strerror}")
    return PushResult(code=0, words="")


def _copy_one(path: Path, part: Path, copied: Callable[[int], object]) -> None:
    """Copy a file or a link with its mode and times; holes stay holes."""
    if path.is_symlink():
        shutil.copy2(path, part, follow_symlinks=False)
        return
    with path.open("rb") as read, part.open("wb") as written:
        while data := read.read(CHUNK):
            copied(len(data))
            if data.count(0) == len(data):
                written.seek(len(data), os.SEEK_CUR)
            else:
                written.write(data)
        written.truncate()
    shutil.copystat(path, part)


ALIVE_SECONDS = 5.0
"""How often we tell a waiting node that we live: it releases the folder after silence."""
PATHS_LIMIT = 1 << 22
"""Paths of a plan that are believed: more than a listing holds, and a list of them has room."""
STEP_SECONDS = 600.0
"""Longest a node may take to compare its folder, or to make way in it."""
_FOREIGN = "is this host still yours? Its agent asked for files that the sync does not place"
_MANY = "list what the job's code does not need in .gitignore, or in .clusterctlignore outside git"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What a sync places on a node."""

    source: Path
    """The folder here."""
    workdir: str
    """The folder there."""
    tree: str
    """Its wanted hash."""
    listing: bytes
    """Its wanted listing, encoded."""
    paths: Collection[bytes]
    """Its paths."""
    lock: str
    """The node's lock: its holder, a run, keeps the folder as it is."""
    holder: Mapping[str, str]
    """`sync` (its id), `user`, `host`, `folder`: what others learn of this sync."""
    tokens: Sequence[str]
    """Of this sync, which the nodes have looked for by now."""
    together: TwoPhaseCommit
    """The nodes that begin together."""
    moved: dict[str, int]
    """By node, how many bytes have been sent; all placements of a sync share it."""
    kept: Mapping[str, Sequence[str]]
    """By node, what stays there: known once all have agreed; all placements of a sync share it."""

    @property
    def request(self) -> Request:
        """The operation that opens the dialogue."""
        args = {
            "workdir": self.workdir,
            "tree": self.tree,
            "lock": self.lock,
            "holder": self.holder,
            "temporary": self.temporary,
            "tokens": list(self.tokens),
        }
        return Request(
            op="sync-apply", args=args, body=self.listing, body_limit=BODY_LIMIT, stay=True
        )

    @property
    def temporary(self) -> str:
        """The name of the folder that rsync writes to first, of this sync's own."""
        return self.holder["sync"]

    def hold(self, connection: Connection, folder: ControlFolder) -> Reply:
        """Hold the dialogue; the reply's last message says what was done, its `sent` how that went.

        Args:
            folder: a private one with a short path.

        Raises:
            NodeError: the connection broke.
        """
        name = connection.node.name
        if not self.together.enter(name):
            return Reply(node=name, messages=(Message({"aborted": True, "end": True}),))
        call = connection.call(self.request)
        with contextlib.closing(call):
            messages = call.messages()
            call.set_deadline(STEP_SECONDS)
            plan = next(messages, None)
            if plan is not None and "locked" in plan.head:
                self.together.lock(name)
                call.set_deadline(STEP_SECONDS)
                plan = next(messages, None)
            if plan is None or "end" in plan.head:
                return _with(call.reply(), plan)
            paths = needed(plan, self)
            if not _agreed(call, self, plan):
                call.send(Message({"abort": True}))
                return _ended(call, messages)
            stays = b"\0".join(map(path_bytes, self.kept[name]))
            bulk = connection.node.local or not paths
            packed = None if bulk else pack(self.source, self.temporary, paths)
            go = {"go": True, "stays": len(stays), "files": packed is not None}
            body = stays + (packed or b"")
            call.set_deadline(STEP_SECONDS + len(body) / SLOWEST_RATE)
            call.send(Message(go, body))
            begun = next(messages, None)
            if begun is None or "end" in begun.head:
                return _with(call.reply(), begun)
            failed = str(begun.head.get("failed", ""))
            words = printable_words(failed.encode(errors="backslashreplace"))
            pushed = PushResult(code=NOT_WRITTEN if words else 0, words=words)
            if packed is not None:
                self.moved[name] = sum(needed_sizes(plan, self.source, self.paths).values())
            elif paths:
                try:
                    pushed = bring(connection, self, paths, folder, _reporting(call, self.moved))
                except NodeError as failure:
                    return Reply.failed(name, failure)
            finished = _all_have_theirs(call, self)
            call.send(Message({"sent": len(paths)} if finished else {"abort": True}))
            return _ended(call, messages, sent=plain(pushed))


def needed(plan: Message, placement: Placement) -> list[bytes]:
    """Return the paths that a node asks for."""
    count = plan.head.get("need")
    paths = _paths(plan)[:count] if isinstance(count, int) else []
    foreign = sorted(set(paths).difference(placement.paths))
    if foreign:
        shown = ", ".join(repr(path_text(path)) for path in foreign[:3])
        words = f"asked for {len(foreign)} files that are not part of the sync: {shown}"
        raise NodeError("bad-output", "answer", words, _FOREIGN)
    return paths


def needed_sizes(plan: Message, source: Path, listed: Collection[bytes]) -> dict[str, int]:
    """Return the files here that a node asks for, each with its bytes."""
    count = plan.head.get("need")
    sizes = {}
    for path in _paths(plan)[:count] if isinstance(count, int) else ():
        with contextlib.suppress(OSError):
            if path in listed:
                sizes[path_text(path)] = os.lstat(os.fsencode(source) + b"/" + path).st_size
    return sizes


def stays_and_needs(
    plans: Mapping[str, Message], source: Path, listed: Collection[bytes]
) -> tuple[dict[str, Sequence[str]], dict[str, Mapping[str, int]]]:
    """Return by node what is `still_here`, and its `needed_sizes`; equal plans are read once."""
    stays: dict[str, Sequence[str]] = {}
    needs: dict[str, Mapping[str, int]] = {}
    known: dict[tuple[str, bytes], tuple[Sequence[str], Mapping[str, int]]] = {}
    for name, plan in sorted(plans.items()):
        key = (repr(plan.head.get("need")), plan.body)
        if key not in known:
            known[key] = still_here(plan, source, listed), needed_sizes(plan, source, listed)
        stays[name], needs[name] = known[key]
    return stays, needs


def planned_deletions(plan: Message) -> tuple[str, ...]:
    """Return the paths of a plan that the sync would take away."""
    count = plan.head.get("need")
    return tuple(map(path_text, _paths(plan)[count:])) if isinstance(count, int) else ()


def still_here(plan: Message, source: Path, listed: Collection[bytes]) -> list[str]:
    """Return what the sync would take away though the folder here has it: it is ignored by now.

    A node may name anything: nothing is looked for outside of the folder, or behind a link.
    """
    found = []
    with RootFolder(os.fsencode(source)) as inside:
        for path in sorted(filter(is_below, map(path_bytes, planned_deletions(plan)))):
            with contextlib.suppress(OSError):
                status = os.lstat(path.rpartition(b"/")[2], dir_fd=inside.parent(path))
                if path not in listed and entry_kind(status) is not None:
                    found.append(path)
    # Where names of two cases are one file, this one may be listed by its new name.
    names = {path.lower() for path in listed} if found else set()
    return [path_text(path) for path in found if path.lower() not in names]


def _paths(plan: Message) -> list[bytes]:
    """Return all paths of a plan, the needed ones first; NodeError if they are too many."""
    count = plan.body.count(b"\0")
    if count > PATHS_LIMIT:
        words = f"a plan of {count:,} paths: expected at most {PATHS_LIMIT:,}"
        raise NodeError("bad-output", "answer", words, _MANY)
    return plan.body.split(b"\0")[:-1]


def bring(
    connection: Connection,
    placement: Placement,
    paths: list[bytes],
    folder: ControlFolder,
    alive: Callable[[int], object],
) -> PushResult:
    """Bring files to a node, calling `alive` with the bytes so far every second."""
    send = local_copy if connection.node.local else partial(push, connection, folder=folder.path)
    return send(
        source=placement.source,
        paths=paths,
        workdir=placement.workdir,
        temporary=placement.temporary,
        alive=alive,
    )


def _agreed(call: Call, placement: Placement, plan: Message) -> bool:
    """Wait until all nodes have said what they would do, and say whether this one may."""
    placement.together.offer(call.node.name, plan)
    while (verdict := placement.together.verdict(ALIVE_SECONDS)) is None:
        call.send(Message({"alive": True}))
    return verdict


def _all_have_theirs(call: Call, placement: Placement) -> bool:
    """Hold the node until all nodes have their files, so that no other sync comes between."""
    placement.together.arrive(call.node.name)
    while (complete := placement.together.complete(ALIVE_SECONDS)) is None:
        call.send(Message({"alive": True}))
    return complete


def _reporting(call: Call, moved: dict[str, int]) -> Callable[[int], None]:
    """Return what notes the bytes that moved, and tells the node now and then that we live."""
    last = time.monotonic()

    def alive(count: int) -> None:
        nonlocal last
        moved[call.node.name] = count
        if time.monotonic() - last >= ALIVE_SECONDS:
            last = time.monotonic()
            call.send(Message({"alive": True}))

    return alive


def _ended(call: Call, messages: Iterator[Message], **more: object) -> Reply:
    call.set_deadline(STEP_SECONDS)
    last = next(messages, None)
    if last is not None:
        if "end" not in last.head:
            raise NodeError("bad-output", "answer", "it sent more messages than a sync expects")
        last = Message({**last.head, **more})
        for _ in messages:
            pass  # nothing follows; the call's end is what `reply` waits for
    return _with(call.reply(), last)


def _with(reply: Reply, message: Message | None) -> Reply:
    return reply if message is None else replace(reply, messages=(message,))


SMALL = 4 << 20
"""Bytes of files up to which they are sent at once; of more, rsync sends what has changed."""
_HEAD = 128
"""What each file counts besides its content."""


def pack(source: Path, sync: str, paths: list[bytes]) -> bytes | None:
    """Return files of a folder for `node.mirror.mirror`; None: they are too large.

    Nodes mostly need the same ones: a sync, known by its id, reads these once.
    What has vanished is left out, and what has changed is found by the node.
    """
    with _packing:
        return _packed(source, sync, tuple(paths))


_packing = threading.Lock()


@functools.lru_cache(maxsize=2)
def _packed(source: Path, sync: str, paths: tuple[bytes, ...]) -> bytes | None:
    del sync
    left = SMALL
    deflate = zlib.compressobj(1)
    parts = []
    for path in paths:
        with contextlib.suppress(OSError):
            full = source / os.fsdecode(path)
            status = full.lstat()
            kind = entry_kind(status)
            left -= _HEAD + status.st_size
            if left < 0:
                return None
            if kind is None:
                continue
            head = {
                "path": path_text(path),
                "kind": kind,
                "mode": status.st_mode & 0o777,
                "mtime_ns": status.st_mtime_ns,
            }
            # A Path would lose a `/` at its end.
            content = os.fsencode(os.readlink(full)) if kind == LINK else full.read_bytes()  # noqa: PTH115
            parts.append(deflate.compress(Message(head, content).encode()))
    return b"".join([*parts, deflate.flush()])
