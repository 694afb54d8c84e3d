"""What `tail` sends: events, bytes of logs, and how the run is on the node."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from typing import Any

from clusterctl.model.answers import StatusAnswer
from clusterctl.model.from_json import (
    Count,
    ExitCode,
    Offset,
    Rank,
    Seconds,
    Signal,
    SignedCount,
    invalid,
)
from clusterctl.values import dataclass

LOG_NAME = re.compile(
    r"events\.jsonl|launcher\.log|ranks/[0-9]{1,7}\.log|nccl/[A-Za-z0-9][A-Za-z0-9._-]{0,250}\.log"
)
"""The files that `tail` sends."""
_COUNT, _RANK, _SECONDS = 1 << 53, 1 << 20, 1e11
"""The bounds of those numbers; a long log has thousands of pieces."""
_NUMERIC = (int, float)
_SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownEvent:
    """The keys of an event that are read; it has others, of its kind, which are passed on."""

    kind: str
    rank: Rank | None = None
    exit_code: ExitCode | None = None
    signal: Signal | None = None
    time: Seconds | None = None
    since: Seconds | None = None
    oom_kills: Count | None = None
    cpu_limit_s: Count | None = None
    env_init_s: Seconds | None = None
    offset_s: Offset | None = None
    error_s: Seconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBytes:
    """Bytes of one log, or of its file of events."""

    data: str
    """The file."""
    offset: Count
    rank: Rank | None = None
    time: Seconds | None = None
    dropped: SignedCount = 0


def invalid_tail(head: Mapping[str, object]) -> str:
    """Return what is wrong with the head of an answer of `tail`; empty if nothing is."""
    if "event" in head:
        event = head["event"]
        return invalid(KnownEvent, event, "event") or invalid(Mapping[str, Any], event, "event")
    if "data" in head:
        return invalid(LogBytes, head)
    if "pieces" in head:
        return _invalid_pieces(head["pieces"])
    return invalid(StatusAnswer, head) if "node" in head else ""


def _invalid_pieces(pieces: object) -> str:
    """Return what is wrong with the pieces of logs in a message; a long log has thousands."""
    if not isinstance(pieces, list):
        return f"pieces is {reprlib.repr(pieces)}"[:_SHOWN]
    for piece in pieces:
        try:
            file, rank, begin, end, time, dropped = piece
            fits = (
                type(file) is str
                and (rank is None or (type(rank) is int and 0 <= rank <= _RANK))
                and type(begin) is type(end) is type(dropped) is int
                and 0 <= begin < end <= _COUNT
                and 0 <= dropped <= _COUNT
                and type(time) in _NUMERIC
                and 0 <= time <= _SECONDS
            )
        except (TypeError, ValueError):
            fits = False
        if not fits:
            return f"one of pieces is {reprlib.repr(piece)}"[:_SHOWN]
    return ""
