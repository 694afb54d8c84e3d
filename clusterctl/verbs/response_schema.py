"""What a node may answer: anything else is named, and not taken for an answer.

A node of another version, or one that is not ours any more, must not end a verb about all nodes.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

NOT_OURS = "its answer is not one of ours"

LOG_NAME = re.compile(r"events\.jsonl|launcher\.log|ranks/[0-9]{1,7}\.log")
"""The files that `tail` sends."""

_DEEPEST = 16
"""Values within values; more of them nobody prints."""
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class _Number:
    """A number within limits; True and False are none."""

    low: float
    high: float
    whole: bool = True

    def takes(self, value: object) -> bool:
        """Say whether a value is one; NaN is not."""
        kinds = int if self.whole else int | float
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        return is_number and self.low <= value <= self.high  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class _Maybe:
    """A value, null, or nothing at all."""

    shape: Schema


@dataclass(frozen=True, slots=True)
class _Each:
    """A list of values."""

    shape: Schema
    least: int = 0


@dataclass(frozen=True, slots=True)
class _Table:
    """An object whose keys may be any."""

    shape: Schema


Schema: TypeAlias = type | _Number | _Maybe | _Each | _Table | Mapping[str, "Schema"]
"""A kind of value; of an object the keys that are read, whatever else it has."""

_WHOLE = _Number(-(10**100), 10**100)
_COUNT = _Number(0, 1 << 53)
_RANK = _Number(0, 1 << 20)
_PID = _Number(0, 1 << 31)
_EXIT_CODE = _Number(-255, 255)
_SIGNAL = _Number(0, 127)
"""A run that a signal ended exits with 128 more: 256 would be taken for success."""
_PORT = _Number(0, 65535)
_NUMERIC = (int, float)
_SECONDS = _Number(0, 1e11, whole=False)
"""A time since 1970 that a calendar has, or a length of time."""
_OFFSET = _Number(-1e10, 1e10, whole=False)
"""Seconds between two clocks."""

_TEXTS = _Each(str)

PART: Schema = {
    "run": str,
    "state": str,
    "ranks": _Each(
        {
            "rank": _RANK,
            "exit_code": _Maybe(_EXIT_CODE),
            "signal": _Maybe(_SIGNAL),
        }
    ),
    "rank0": _Maybe(_RANK),
    "world_size": _Maybe(_RANK),
    "began": _Maybe(_SECONDS),
    "name": _Maybe(str),
    "command": _Maybe(_TEXTS),
    "workdir": _Maybe(str),
    "master": _Maybe({"address": _Maybe(str), "port": _Maybe(_PORT)}),
    "supervisor": _Maybe(dict),
    "end": _Maybe(
        {
            "state": _Maybe(str),
            "by": _Maybe(str),
            "reason": _Maybe(str),
            "time": _Maybe(_SECONDS),
            "over": _Maybe(_SECONDS),
        }
    ),
    "resumed": _Maybe(
        {
            "run": str,
            "checkpoint": str,
            "step": _Maybe(_WHOLE),
            "command": _TEXTS,
            "tree": _Maybe(str),
            "commit": _Maybe(str),
        }
    ),
    "last": _Maybe({"rank": _Maybe(_RANK), "line": str, "age_s": _SECONDS}),
}
"""A NodeRun."""

_EVENT: Schema = {
    "kind": str,
    "rank": _Maybe(_RANK),
    "exit_code": _Maybe(_EXIT_CODE),
    "signal": _Maybe(_SIGNAL),
    "time": _Maybe(_SECONDS),
    "since": _Maybe(_SECONDS),
    "oom_kills": _Maybe(_COUNT),
    "offset_s": _Maybe(_OFFSET),
    "error_s": _Maybe(_SECONDS),
}
_LOG: Schema = {
    "data": str,
    "offset": _COUNT,
    "rank": _Maybe(_RANK),
    "time": _Maybe(_SECONDS),
    "dropped": _Maybe(_Number(-(1 << 53), 1 << 53)),
}
_PROCESSES = _Maybe(_Each(dict))
_PATHS = _Maybe(_TEXTS)

ERROR: Schema = {
    "kind": str,
    "message": str,
    "hint": _Maybe(str),
    "holder": _Maybe(dict),
}
STATUS: Schema = {"node": PART}
RUNS: Schema = {"runs": _Each(PART)}
STARTED: Schema = {"pid": _PID, "link_port": _PORT}
PRUNED: Schema = {"kept": _Table(str)}
STOPPED: Schema = {
    "gone": _Maybe(bool),
    "left": _PROCESSES,
    "strangers": _PROCESSES,
    "port_free": _Maybe(bool),
    "port_holder": _Maybe(dict),
    "gpu_free": _Maybe(bool),
}
_CANDIDATE: Schema = {
    "name": str,
    "path": str,
    "complete": bool,
    "why": str,
    "hash": str,
    "time": _SECONDS,
    "format": str,
    "step": _Maybe(_WHOLE),
    "epoch": _Maybe(_WHOLE),
    "date": _Maybe(_WHOLE),
    "real": _PATHS,
    "run": _Maybe(str),
    "older": _Maybe(bool),
    "files": _Maybe(_Table(str)),
    "doubts": _PATHS,
    "mixed": _Maybe(str),
    "bytes": _Maybe(_COUNT),
    "part": _Maybe(
        {
            "ranks": _Each(_RANK, least=1),
            "world_size": _Maybe(_RANK),
            "supposed": _Maybe(_RANK),
            "metadata": bool,
            "steps": _Each(_WHOLE),
            "saved": _Each(_SECONDS, least=1),
            "whole": _Maybe(bool),
        }
    ),
}
CHECKPOINTS: Schema = {"candidates": _Each(_CANDIDATE), "knows": _Maybe(bool)}
ONE_CHECKPOINT: Schema = {"candidates": _Each(_CANDIDATE, least=1), "knows": _Maybe(bool)}
TREE: Schema = {"equal": bool, "different": _PATHS}
SEEN: Schema = {"seen": _TEXTS, "busy": _Maybe(dict)}
ABORTED: Schema = {"aborted": bool}
PLACED: Schema = {
    "need": _COUNT,
    "deleted": _COUNT,
    "deleted_paths": _PATHS,
    "set_aside": _TEXTS,
    "equal": bool,
    "different": _TEXTS,
}
PREPARED: Schema = {
    "bound": _Each(
        {
            "key": str,
            "address": str,
            "port": _Maybe(_PORT),
            "error": _Maybe(str),
            "holder": _Maybe(str),
        }
    ),
    "written": _Each({"path": str, "folder": _Maybe(str), "words": _Maybe(str)}),
}
MET: Schema = {
    "connected": _Each(
        {
            "target": str,
            "key": str,
            "address": str,
            "port": _Maybe(_PORT),
            "state": str,
            "words": _Maybe(str),
            "seconds": _Maybe(_SECONDS),
            "source": _Maybe(str),
            "seen_as": _Maybe(str),
        }
    ),
    "seen": _Each(
        {
            "path": str,
            "writer": str,
            "seen": _Maybe(bool),
            "delay_s": _Maybe(_SECONDS),
            "words": _Maybe(str),
        }
    ),
}
LEFT: Schema = {"foreign": _TEXTS}
TIME: Schema = {"time": _SECONDS}
READ: Schema = {"read": _COUNT}
RECORDED_PLAN: Schema = {
    "world_size": _Maybe(_RANK),
    "master_port": _Maybe(_PORT),
    "nodes": _Maybe(
        _Each(
            {
                "node": str,
                "node_rank": _Maybe(_RANK),
                "device": _Maybe(str),
                "procs": _Maybe(_RANK),
            }
        )
    ),
}
RECORDED_RESUME: Schema = {
    "run": _Maybe(str),
    "checkpoint": _Maybe(str),
    "command": _Maybe(_TEXTS),
    "step": _Maybe(_WHOLE),
    "tree": _Maybe(str),
    "commit": _Maybe(str),
}
RECORDED_END: Schema = {"state": _Maybe(str), "ended_by": _Maybe(str)}


def tail_schema_error(head: Mapping[str, object]) -> str:
    """Say what is wrong with the head of an answer of `tail`; empty if nothing is."""
    if "event" in head:
        return schema_error(head["event"], _EVENT, "event")
    if "data" in head:
        return schema_error(head, _LOG)
    if "pieces" in head:
        return _wrong_pieces(head["pieces"])
    return schema_error(head, STATUS) if "node" in head else ""


def _wrong_pieces(pieces: object) -> str:
    """Say what is wrong with the pieces of logs in a message; a long log has thousands."""
    if not isinstance(pieces, list):
        return f"pieces is {reprlib.repr(pieces)}"[:_SHOWN]
    for piece in pieces:
        try:
            file, rank, begin, end, time, dropped = piece
            fits = (
                type(file) is str
                and (rank is None or (type(rank) is int and 0 <= rank <= _RANK.high))
                and type(begin) is type(end) is type(dropped) is int
                and 0 <= begin < end <= _COUNT.high
                and 0 <= dropped <= _COUNT.high
                and type(time) in _NUMERIC
                and 0 <= time <= _SECONDS.high
            )
        except (TypeError, ValueError):
            fits = False
        if not fits:
            return f"one of pieces is {reprlib.repr(piece)}"[:_SHOWN]
    return ""


def schema_error(value: object, shape: Schema, where: str = "") -> str:
    """Say what in a value is not of this shape, or would not print; empty if nothing is."""
    return _misfit(value, shape, where) or _untame(value)


def _misfit(value: object, shape: Schema, where: str) -> str:
    if isinstance(shape, _Maybe):
        return "" if value is None else _misfit(value, shape.shape, where)
    if isinstance(shape, _Number):
        fits = shape.takes(value)
    elif isinstance(shape, type):
        fits = isinstance(value, shape)
    elif isinstance(shape, _Each):
        fits = isinstance(value, list) and len(value) >= shape.least
    else:
        fits = isinstance(value, dict)
    if not fits:
        return f"{where or 'it'} is {reprlib.repr(value)}"[:_SHOWN]
    return next(filter(None, _misfits_within(value, shape, where)), "")


def _misfits_within(value: Any, shape: Schema, where: str) -> Iterator[str]:  # noqa: ANN401
    of = f" of {where}" if where else ""
    if isinstance(shape, _Each):
        yield from (_misfit(one, shape.shape, f"one{of}") for one in value)
    elif isinstance(shape, _Table):
        yield from (_misfit(one, shape.shape, f"a value{of}") for one in value.values())
    elif isinstance(shape, Mapping):
        yield from (_misfit(value.get(key), one, f"{key}{of}") for key, one in shape.items())


def _untame(value: object) -> str:
    """Say why a value cannot be shown or written as JSON; its keys may be of any version."""
    level: list[object] = [value]
    for _ in range(_DEEPEST):
        if any(isinstance(one, float) and not math.isfinite(one) for one in level):
            return "it holds NaN or an infinite number"
        lists = [one for one in level if isinstance(one, list)]
        objects = [one.values() for one in level if isinstance(one, dict)]
        level = [*chain.from_iterable(lists), *chain.from_iterable(objects)]
        if not level:
            return ""
    return "its values are nested too deeply"
