"""The schemas of what nodes answer; an answer that does not match becomes an error of its node.

A node with another version, or with other software, must not end a verb about all nodes.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

NOT_OURS = "its reply is not a clusterctl message"

LOG_NAME = re.compile(
    r"events\.jsonl|launcher\.log|ranks/[0-9]{1,7}\.log|nccl/[A-Za-z0-9][A-Za-z0-9._-]{0,250}\.log"
)
"""The files that `tail` sends."""

_DEEPEST = 16
"""The most levels of nested values."""
_SHOWN = 200


class _Number(NamedTuple):
    """A number within limits; True and False are not numbers."""

    low: float
    high: float
    whole: bool = True

    def takes(self, value: object) -> bool:
        """Tell whether a value is one; NaN is not."""
        kinds = int if self.whole else int | float
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        return is_number and self.low <= value <= self.high  # type: ignore[operator]


class _Maybe(NamedTuple):
    """A value, null, or nothing at all."""

    schema: Schema


class _Each(NamedTuple):
    """A list of values."""

    schema: Schema
    least: int = 0


class _Table(NamedTuple):
    """An object with any keys."""

    schema: Schema


Schema: TypeAlias = type | _Number | _Maybe | _Each | _Table | Mapping[str, "Schema"]
"""The kind of a value; of an object, the keys that are read. It may have others."""

_WHOLE = _Number(-(10**100), 10**100)
_COUNT = _Number(0, 1 << 53)
_RANK = _Number(0, 1 << 20)
_PID = _Number(0, 1 << 31)
_EXIT_CODE = _Number(-255, 255)
_SIGNAL = _Number(0, 127)
"""A run that a signal ended exits with 128 more: 256 would mean success."""
_PORT = _Number(0, 65535)
_RESOURCE = _Number(0, 1 << 53, whole=False)
_NUMERIC = (int, float)
_SECONDS = _Number(0, 1e11, whole=False)
"""A time since 1970 that a calendar has, or a length of time."""
_OFFSET = _Number(-1e10, 1e10, whole=False)
"""Seconds between two clocks."""

_TEXTS = _Each(str)
_PROCESSES = _Each(dict)


def _object(required: Mapping[str, Schema], /, **optional: Schema) -> Mapping[str, Schema]:
    """Return the schema of an object; optional keys may be absent or null."""
    return {**required, **{key: _Maybe(schema) for key, schema in optional.items()}}


NODE_RUN = _object(
    {
        "run": str,
        "state": str,
        "ranks": _Each(
            _object({"rank": _RANK}, exit_code=_EXIT_CODE, signal=_SIGNAL, restarts=_COUNT)
        ),
    },
    rank0=_RANK,
    min_nodes=_COUNT,
    world_size=_RANK,
    began=_SECONDS,
    name=str,
    command=_TEXTS,
    workdir=str,
    checkpoints=str,
    master=_object({}, node=str, address=str, port=_PORT),
    nodes=_TEXTS,
    attempt=_COUNT,
    supervisor=dict,
    end=_object({}, state=str, by=str, reason=str, time=_SECONDS, over=_SECONDS),
    resumed=_object(
        {"run": str, "checkpoint": str, "command": _TEXTS}, step=_WHOLE, tree=str, commit=str
    ),
    launched=_object({}, record=str, proof=str),
    ray=_object(
        {
            "address": str,
            "version": str,
            "nodes": _Each(
                _object({"node": str, "address": str, "cpus": _RESOURCE, "gpus": _RESOURCE})
            ),
        }
    ),
    usage=_object(
        {"processes": _COUNT, "memory_bytes": _COUNT},
        cpu_percent=_COUNT,
        ranks=_Each(_object({"rank": _RANK, "memory_bytes": _COUNT, "cpu_percent": _COUNT})),
        gpus=_Each(
            _object(
                {"index": _COUNT},
                percent=_COUNT,
                memory_used_bytes=_COUNT,
                memory_total_bytes=_COUNT,
            )
        ),
    ),
    progress=_object({"step": _COUNT}, total=_COUNT),
    last=_object(
        {"line": str, "age_s": _SECONDS},
        rank=_RANK,
        every_s=_SECONDS,
        lines=_TEXTS,
        earlier=_object({"lines": _TEXTS, "age_s": _SECONDS}),
    ),
)
"""A NodeRun."""

_EVENT = _object(
    {"kind": str},
    rank=_RANK,
    exit_code=_EXIT_CODE,
    signal=_SIGNAL,
    time=_SECONDS,
    since=_SECONDS,
    oom_kills=_COUNT,
    env_init_s=_SECONDS,
    offset_s=_OFFSET,
    error_s=_SECONDS,
)
_LOG = _object(
    {"data": str, "offset": _COUNT},
    rank=_RANK,
    time=_SECONDS,
    dropped=_Number(-_COUNT.high, _COUNT.high),
)

ERROR = _object({"kind": str, "message": str}, hint=str, holder=dict)
STATUS: Schema = {"node": NODE_RUN}
RUNS: Schema = {"runs": _Each(NODE_RUN)}
ASKED = _object({}, job=dict)
ADMITTED: Schema = {"job": dict, "node_rank": _RANK, "nodes": _TEXTS, "link_port": _PORT}
STARTED: Schema = {"pid": _PID, "link_port": _PORT}
EXECUTED: Schema = {"exit_code": _Number(0, 255), "timed_out": bool}
MADE_VENV: Schema = {"state": str, "version": str, "packages": _Table(str)}
PLATFORM: Schema = {"python": str, "arch": str, "glibc": str}
PRUNED: Schema = {"kept": _Table(str)}
STOPPED = _object(
    {},
    gone=bool,
    left=_PROCESSES,
    strangers=_PROCESSES,
    port_free=bool,
    port_holder=dict,
    gpu_free=bool,
    nodes=_TEXTS,
    elsewhere=_TEXTS,
    ended=str,
)
_CANDIDATE = _object(
    {
        "name": str,
        "path": str,
        "complete": bool,
        "why": str,
        "hash": str,
        "time": _SECONDS,
        "format": str,
    },
    step=_WHOLE,
    epoch=_WHOLE,
    date=_WHOLE,
    real=_TEXTS,
    run=str,
    older=bool,
    recorded=bool,
    beside=_TEXTS,
    files=_Table(str),
    doubts=_TEXTS,
    mixed=str,
    bytes=_COUNT,
    part=_object(
        {
            "ranks": _Each(_RANK, least=1),
            "metadata": bool,
            "steps": _Each(_WHOLE),
            "saved": _Each(_SECONDS, least=1),
        },
        world_size=_RANK,
        supposed=_RANK,
        whole=bool,
    ),
)
CHECKPOINTS = _object({"candidates": _Each(_CANDIDATE)}, knows=bool)
ONE_CHECKPOINT = _object({"candidates": _Each(_CANDIDATE, least=1)}, knows=bool)
TREE = _object({"equal": bool}, different=_TEXTS)
SEEN = _object({"seen": _TEXTS}, busy=dict)
ABORTED: Schema = {"aborted": bool}
PLACED = _object(
    {"need": _COUNT, "deleted": _COUNT, "set_aside": _TEXTS, "equal": bool, "different": _TEXTS},
    sent_paths=_TEXTS,
    deleted_paths=_TEXTS,
)
PREPARED: Schema = {
    "bound": _Each(_object({"key": str, "address": str}, port=_PORT, error=str, holder=str)),
    "written": _Each(_object({"path": str}, folder=str, words=str)),
}
_CONNECTED = _object(
    {"target": str, "key": str, "address": str, "state": str},
    port=_PORT,
    words=str,
    seconds=_SECONDS,
    source=str,
    seen_as=str,
    interface=str,
    full_size=bool,
)
_TOKEN_SEEN = _object({"path": str, "writer": str}, seen=bool, delay_s=_SECONDS, words=str)
MET: Schema = {"connected": _Each(_CONNECTED), "seen": _Each(_TOKEN_SEEN)}
LEFT = _object({"foreign": _TEXTS}, counters=_Table(str))
TIME: Schema = {"time": _SECONDS}
READ: Schema = {"read": _COUNT}
PUSH_LIST = _object(
    {"bytes": _COUNT, "files": _COUNT, "blocks": _COUNT, "content": str}, left_out=_TEXTS
)
PUSH_LOOK: Schema = {
    "found": _Each(
        _object({"exists": bool}, bytes=_COUNT, files=_COUNT, sketch=str, problem=str), least=1
    )
}
PUSH = _object(
    {},
    hashed=_COUNT,
    ready=bool,
    seen=_TEXTS,
    compared=_COUNT,
    found=_object(
        {"missing": _COUNT, "files": _COUNT, "free": _COUNT},
        free_files=_COUNT,
        replaced=_COUNT,
        replaced_paths=_TEXTS,
    ),
    listening=_PORT,
    received=_COUNT,
    complete=bool,
    extra=_TEXTS,
    extras=_COUNT,
    sent=str,
    lost=str,
    why=str,
    bad=_COUNT,
    right=bool,
    failed=str,
    feeding=bool,
    block=_COUNT,
    more=bool,
    to=str,
)
"""A message of a push: all that it may hold."""
_RECORDED_NODE = _object({"node": str}, node_rank=_RANK, device=str, procs=_RANK)
RECORDED_PLAN = _object({}, world_size=_RANK, master_port=_PORT, nodes=_Each(_RECORDED_NODE))
RECORDED_RESUME = _object(
    {}, run=str, checkpoint=str, command=_TEXTS, step=_WHOLE, tree=str, commit=str
)
RECORDED_END = _object(
    {},
    state=str,
    ended_by=str,
    ended=_SECONDS,
    message=str,
    first_cause=_object({}, node=str, rank=_RANK, message=str),
)


def tail_schema_error(head: Mapping[str, object]) -> str:
    """Return what is wrong with the head of an answer of `tail`; empty if nothing is."""
    if "event" in head:
        return schema_error(head["event"], _EVENT, "event")
    if "data" in head:
        return schema_error(head, _LOG)
    if "pieces" in head:
        return _wrong_pieces(head["pieces"])
    return schema_error(head, STATUS) if "node" in head else ""


def _wrong_pieces(pieces: object) -> str:
    """Return what is wrong with the pieces of logs in a message; a long log has thousands."""
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


def schema_error(value: object, schema: Schema, where: str = "") -> str:
    """Return what in a value does not match a schema, or cannot be printed; empty if nothing."""
    return _mismatch(value, schema, where) or _unprintable(value)


def _mismatch(value: object, schema: Schema, where: str) -> str:
    if isinstance(schema, _Maybe):
        return "" if value is None else _mismatch(value, schema.schema, where)
    if isinstance(schema, _Number):
        fits = schema.takes(value)
    elif isinstance(schema, type):
        fits = isinstance(value, schema)
    elif isinstance(schema, _Each):
        fits = isinstance(value, list) and len(value) >= schema.least
    else:
        fits = isinstance(value, dict)
    if not fits:
        return f"{where or 'it'} is {reprlib.repr(value)}"[:_SHOWN]
    return next(filter(None, _mismatches_within(value, schema, where)), "")


def _mismatches_within(value: Any, schema: Schema, where: str) -> Iterator[str]:  # noqa: ANN401
    of = f" of {where}" if where else ""
    if isinstance(schema, _Each):
        yield from (_mismatch(one, schema.schema, f"one{of}") for one in value)
    elif isinstance(schema, _Table):
        yield from (_mismatch(one, schema.schema, f"a value{of}") for one in value.values())
    elif isinstance(schema, Mapping):
        yield from (_mismatch(value.get(key), one, f"{key}{of}") for key, one in schema.items())


def _unprintable(value: object) -> str:
    """Return why a value cannot be shown or written as JSON; it may have keys of any version."""
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
