"""A sync's dialogue with one node: it plans, may begin, is brought its files, proves the tree."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from clusterctl.errors import NodeError
from clusterctl.node.mirror.tree_hash import path_text
from clusterctl.sync.local_copy import copy
from clusterctl.sync.rsync import PushResult, push
from clusterctl.sync.two_phase import TwoPhaseCommit
from clusterctl.transport.connection import Connection
from clusterctl.transport.control_master import ControlFolder
from clusterctl.transport.interface import Call, Reply, Request
from clusterctl.wire import BODY_LIMIT, Message, plain

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
        return self.holder["sync"]

    def hold(self, connection: Connection, folder: ControlFolder) -> Reply:
        """Hold the dialogue; the reply's last message says what was done, its `sent` how that went.

        Args:
            connection: an open one to the node.
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
            call.set_deadline(STEP_SECONDS)
            call.send(Message({"go": True}))
            begun = next(messages, None)
            if begun is None or "end" in begun.head:
                return _with(call.reply(), begun)
            pushed = PushResult(code=0, words="")
            if paths:
                try:
                    pushed = bring(connection, self, paths, folder, _beating(call))
                except NodeError as failure:
                    return Reply.failed(name, failure)
            finished = _all_have_theirs(call, self)
            call.send(Message({"sent": len(paths)} if finished else {"abort": True}))
            return _ended(call, messages, sent=plain(pushed))


def needed(plan: Message, placement: Placement) -> list[bytes]:
    """Return the paths that a node asks for.

    Raises:
        NodeError: one is none of the sync's: it could be any file here; or they are too many.
    """
    count = plan.head.get("need")
    paths = _paths(plan)[:count] if isinstance(count, int) else []
    foreign = sorted(set(paths).difference(placement.paths))
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
    alive: Callable[[], object],
) -> PushResult:
    """Bring files to a node, calling `alive` every few seconds."""
    send = copy if connection.node.local else partial(push, connection, folder=folder.path)
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
