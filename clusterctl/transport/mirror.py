"""A sync's dialogue with one node: it says what it needs, is brought that, proves the tree."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

from clusterctl.transport.control_master import Folder
from clusterctl.transport.copying import copy
from clusterctl.transport.failure import Failed
from clusterctl.transport.interface import Connection, Reply, Request
from clusterctl.transport.rsync import Pushed, push
from clusterctl.wire import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What shall be where on a node."""

    source: Path
    """The folder here."""
    workdir: str
    """The folder there."""
    tree: str
    """Its wanted hash."""
    listing: bytes
    """Its wanted listing, encoded."""
    lock: str
    """The node's lock: its holder, a run, keeps the folder as it is."""

    @property
    def request(self) -> Request:
        """The operation that opens the dialogue."""
        args = {"workdir": self.workdir, "tree": self.tree, "lock": self.lock}
        return Request(op="place", args=args, body=self.listing)


def mirror(connection: Connection, placement: Placement, folder: Folder) -> Reply:
    """Hold the dialogue; the reply's last message says what was done, its `sent` how that went.

    Args:
        connection: the open way to the node.
        placement: what to do.
        folder: a private one with a short path.

    Raises:
        Failed: the way broke.
    """
    call = connection.call(placement.request)
    with contextlib.closing(call):
        messages = call.messages()
        first = next(messages, None)
        if first is None or "end" in first.head:
            return _with(call.reply(), first)
        pushed = {"code": 0, "words": ""}
        paths = first.body.split(b"\0") if first.body else []
        if paths:
            try:
                done = bring(connection, placement, paths, folder)
            except Failed as failure:
                return failure.reply(connection.node.name)
            pushed = {"code": done.code, "words": done.words}
        call.send(Message({"sent": len(paths)}))
        last = next(messages, None)
        if last is not None:
            last = Message({**last.head, "sent": pushed}, last.body)
            for _ in messages:
                pass  # nothing follows; the call's end is what `reply` waits for
        return _with(call.reply(), last)


def bring(
    connection: Connection, placement: Placement, paths: list[bytes], folder: Folder
) -> Pushed:
    """Bring files to a node.

    Raises:
        Failed: the way broke.
    """
    source, workdir = placement.source, placement.workdir
    if connection.node.local:
        return copy(source, paths, workdir)
    return push(connection, source=source, paths=paths, workdir=workdir, folder=folder.path)


def _with(reply: Reply, message: Message | None) -> Reply:
    return reply if message is None else replace(reply, messages=(message,))
