"""A sync's dialogue with one node: it plans, may begin, is brought its files, proves the tree."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from clusterctl.errors import NodeError
from clusterctl.node.mirror.tree_hash import decode_listing, path_text
from clusterctl.sync.local_copy import copy
from clusterctl.sync.rsync import PushResult, push
from clusterctl.sync.two_phase import TwoPhaseCommit
from clusterctl.transport.connection import Connection
from clusterctl.transport.control_master import ControlFolder
from clusterctl.transport.interface import Call, Reply, Request
from clusterctl.wire import BODY_LIMIT, Message

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
    paths: Collection[bytes] = ()
    """Its paths; empty: as the listing has them."""
    lock: str
    """The node's lock: its holder, a run, keeps the folder as it is."""
    holder: Mapping[str, str] = field(default_factory=dict)
    """`sync` (its id), `user`, `host`, `folder`: what others learn of this sync."""
    tokens: Sequence[str] = ()
    """Of this sync, which the nodes have looked for by now."""
    together: TwoPhaseCommit | None = None
    """The nodes that begin together; None: this one begins at once."""

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
        return Request(op="place", args=args, body=self.listing, body_limit=BODY_LIMIT)

    @property
    def temporary(self) -> str:
        """The name of the folder that rsync writes to first, of this sync's own."""
        return self.holder.get("sync", "own")

    @property
    def at_once(self) -> bool:
        """Nodes that agree with each other must all be under way, or none."""
        return self.together is not None

    def hold(self, connection: Connection, folder: ControlFolder) -> Reply:
        """Have the dialogue that mirrors it."""
        return mirror(connection, placement=self, folder=folder)


def mirror(connection: Connection, placement: Placement, folder: ControlFolder) -> Reply:
    """Hold the dialogue; the reply's last message says what was done, its `sent` how that went.

    Args:
        connection: the open way to the node.
        placement: what to do.
        folder: a private one with a short path.

    Raises:
        NodeError: the way broke.
    """
    name = connection.node.name
    if placement.together is not None and not placement.together.enter(name):
        return Reply(node=name, messages=(Message({"aborted": True, "end": True}),))
    call = connection.call(placement.request)
    with contextlib.closing(call):
        messages = call.messages()
        call.set_deadline(STEP_SECONDS)
        plan = next(messages, None)
        if plan is not None and "locked" in plan.head:
            if placement.together is not None:
                placement.together.lock(name)
            call.set_deadline(STEP_SECONDS)
            plan = next(messages, None)
        if plan is None or "end" in plan.head:
            return _with(call.reply(), plan)
        paths = needed(plan, placement)
        if not _agreed(call, placement, plan):
            call.send(Message({"abort": True}))
            return _ended(call, messages)
        call.set_deadline(STEP_SECONDS)
        call.send(Message({"go": True}))
        begun = next(messages, None)
        if begun is None or "end" in begun.head:
            return _with(call.reply(), begun)
        pushed = {"code": 0, "words": ""}
        if paths:
            try:
                done = bring(connection, placement, paths, folder, _beating(call))
            except NodeError as failure:
                return Reply.failed(name, failure)
            pushed = {"code": done.code, "words": done.words}
        finished = _all_have_theirs(call, placement)
        call.send(Message({"sent": len(paths)} if finished else {"abort": True}))
        return _ended(call, messages, sent=pushed)


def needed(plan: Message, placement: Placement) -> list[bytes]:
    """Return the paths that a node asks for.

    Raises:
        NodeError: one is none of the sync's: it could be any file here; or they are too many.
    """
    count = plan.head.get("need")
    paths = _paths(plan)[:count] if isinstance(count, int) else []
    foreign = sorted(set(paths).difference(placement.paths or decode_listing(placement.listing)))
    if foreign:
        shown = ", ".join(repr(path_text(path)) for path in foreign[:3])
        words = f"asked for {len(foreign)} files that are not part of the sync: {shown}"
        raise NodeError("bad-output", "answer", words, _FOREIGN)
    return paths


def planned_deletions(plan: Message) -> tuple[str, ...]:
    """Return the paths of a plan that the sync would take away."""
    count = plan.head.get("need")
    return tuple(map(path_text, _paths(plan)[count:])) if isinstance(count, int) else ()


def _paths(plan: Message) -> list[bytes]:
    """Return all paths of a plan: those that are needed, then those that would be taken away.

    Raises:
        NodeError: they are too many to be true.
    """
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
    alive: Callable[[], object],
) -> PushResult:
    """Bring files to a node; `alive` is called every few seconds meanwhile.

    Raises:
        NodeError: the way broke.
    """
    source, workdir, temporary = placement.source, placement.workdir, placement.temporary
    if connection.node.local:
        return copy(source, paths, workdir, temporary=temporary, alive=alive)
    return push(
        connection,
        source=source,
        paths=paths,
        workdir=workdir,
        folder=folder.path,
        temporary=temporary,
        alive=alive,
    )


def _agreed(call: Call, placement: Placement, plan: Message) -> bool:
    """Wait until all nodes have said what they would do, and say whether this one may."""
    together = placement.together
    if together is None:
        return True
    together.offer(call.node.name, plan)
    while (verdict := together.verdict(ALIVE_SECONDS)) is None:
        call.send(Message({"alive": True}))
    return verdict


def _all_have_theirs(call: Call, placement: Placement) -> bool:
    """Hold the node until all nodes have their files, so that no other sync comes between."""
    together = placement.together
    if together is None:
        return True
    together.arrive(call.node.name)
    while (complete := together.complete(ALIVE_SECONDS)) is None:
        call.send(Message({"alive": True}))
    return complete


def _beating(call: Call) -> Callable[[], None]:
    """Return what tells the node that we live, no more often than is needed."""
    last = time.monotonic()

    def alive() -> None:
        nonlocal last
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
