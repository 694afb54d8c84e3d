"""The blocks of log bytes in a message of a node's `tail`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from clusterctl.wire import Message

MESSAGE_LIMIT = 1024 * 1024
"""Limit of a message's JSON, and of its log bytes; a node sends a quarter of it at most."""


class TailBlock(NamedTuple):
    """Bytes of one log, sent together."""

    file: str
    rank: int | None
    offset: int
    time: float
    """When they were written, by the node's clock."""
    dropped: int
    """Bytes before them that are lost."""
    body: bytes


def wrong_length(message: Message) -> str:
    """Return an error if a message has another length than its pieces; else an empty text."""
    if "data" in message.head or "pieces" not in message.head:
        return ""
    named = sum(end - begin for _, _, begin, end, _, _ in message.head["pieces"])
    return "" if named == len(message.body) else f"its pieces are {named} bytes"


def tail_blocks(message: Message, now: float) -> Iterator[TailBlock]:
    """Yield the log bytes of a message: of one log, or pieces of several."""
    head, body = message.head, message.body
    if "data" in head:
        time, dropped = float(head.get("time") or now), head.get("dropped") or 0
        yield TailBlock(
            str(head["data"]), head.get("rank"), int(head["offset"]), time, dropped, body
        )
        return
    start = 0
    for file, rank, begin, end, time, dropped in head["pieces"]:
        behind = start + end - begin
        yield TailBlock(file, rank, begin, time or now, dropped, body[start:behind])
        start = behind
