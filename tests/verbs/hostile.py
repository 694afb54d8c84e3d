"""Answers as a node gives them, and what a hostile one makes of them."""

from __future__ import annotations

import copy
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

from clusterctl.transport.interface import Request
from clusterctl.wire import Message
from tests.verbs.run_answers import RUN, data, ended, happened, part, rank

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\r\n[red]\x00"
DEEP: list[Any] = []
for _ in range(900):
    DEEP = [DEEP]

JUNK: tuple[Any, ...] = (
    None, True, [], {}, "", 0, -1, 0.5, 10**30, 1e308, float("nan"), float("inf"), DEEP, ESCAPES,
    "../../../etc/passwd", "/etc/passwd", "a\0b", "\ud800", "$(touch /tmp/owned); `id` | sh",
    "ranks/0.log",
    [ESCAPES], {ESCAPES: ESCAPES}, [None], [[]], [{}], {"kind": []}, {"error": "x"}, "x" * 20_000,
)  # fmt: skip
"""Values that no operation answers with; floats as the node's JSON may bring them."""

UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""What must not reach a terminal: control characters, and those that change the direction."""

Mutation = tuple[int, int]
"""Which part of a message's head is changed, and to which of `JUNK`; beyond: it is left out."""

mutations: st.SearchStrategy[list[Mutation]] = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, len(JUNK))), min_size=1, max_size=3
)


def mutated(messages: Sequence[Message], changes: Sequence[Mutation]) -> list[Message]:
    """Return a node's messages, each with one part of one head changed after the other."""
    heads: list[Any] = [copy.deepcopy(message.head) for message in messages]
    for where, what in changes:
        places = list(_places(heads))
        parent, key = places[where % len(places)]
        if what < len(JUNK):
            junk = JUNK[what]
            # A value that is shared would be changed for good, and might come to hold itself.
            parent[key] = junk if junk is DEEP else copy.deepcopy(junk)
        elif parent is not heads:
            del parent[key]
    return [
        Message(head if isinstance(head, dict) else {}, message.body)
        for head, message in zip(heads, messages, strict=True)
    ]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    waiting = [value]
    while waiting:
        now = waiting.pop()
        inner = enumerate(now) if isinstance(now, list) else now.items()
        for key, one in inner:
            yield now, key
            if isinstance(one, (dict, list)) and one is not DEEP:
                waiting.append(one)


def candidate(step: int = 20, **more: Any) -> dict[str, Any]:
    """Return a checkpoint as `checkpoints` lists it."""
    return {
        "path": f"/w/out/step-{step}", "name": f"step-{step}", "real": [f"/w/out/step-{step}"],
        "format": "clusterctl", "step": step, "epoch": None, "date": None, "time": float(step),
        "run": RUN, "older": False, "complete": True, "verified": True, "why": "", "hash": "h",
        "files": {"rank0.pt": "abc"}, "part": None, "doubts": [], "mixed": "", "bytes": 1, **more,
    }  # fmt: skip


RANK_FILES = {
    "ranks": [0], "world_size": 2, "supposed": 2, "metadata": True, "steps": [20],
    "saved": [20.0, 21.0], "whole": False,
}  # fmt: skip


def stood_still(node: str) -> dict[str, Any]:
    """Return a dump of a node with one rank."""
    number = "ab".index(node)
    frame = {"function": "train_step", "file": "/w/train.py", "line": 88, "locals": ["x=1"]}
    thread = {
        "id": 7, "name": "MainThread", "state": "S", "wait": "futex_do_wait", "cpu_percent": 0,
        "frames": [frame, {"function": "main"}],
    }  # fmt: skip
    process = {
        "pid": 7, "command": "python train.py", "state": "S", "source": "py-spy",
        "missing": "its native frames: no", "swap_bytes": 4096, "threads": [thread],
    }  # fmt: skip
    stuck = {"peer": "10.0.0.2", "port": 4000, "unacknowledged_bytes": 9, "retransmits": 2}
    whole = {
        "rank": number, "processes": [process, process], "ended": False, "printed_s": 1.5,
        "quiet_s": None, "cpu_percent": 3, "connections": [stuck], "collectives": [],
    }  # fmt: skip
    return {
        "run": RUN, "node": node, "time": 1000.0, "ranks": [whole],
        "throttled": ["GPU 0: too hot"], "addresses": ["10.0.0.1"],
    }  # fmt: skip


def answers(node: str) -> dict[str, list[Message] | Callable[[Request], list[Message]]]:
    """Return what a healthy node answers, by operation."""
    number = "ab".index(node)
    whole = part(
        node, "failed", name="mine", command=["python", "job.py"], workdir="/w", world_size=2,
        min_nodes=1, ranks=[rank(number, restarts=1)],
        master={"address": "10.0.0.1", "port": 29600}, launcher_joined=True,
        ray={
            "address": "10.0.0.1:29600", "version": "2.60.0",
            "nodes": [{"node": node, "address": "10.0.0.1", "cpus": 8.0, "gpus": 0}],
        },
        last={"rank": number, "line": "step 3", "age_s": 1.5},
        progress={"step": 3, "total": 9},
        resumed={"run": RUN, "checkpoint": "/w/c", "step": 3, "command": ["x"], "tree": "t"},
    )  # fmt: skip
    gone = {"gone": True, "left": [], "port_free": True, "gpu_free": True, "strangers": []}
    stays = {"pid": 7, "cmd": "python job.py", "why": "stuck"}
    place = {
        "need": 1,
        "deleted": 1,
        "sent_paths": ["new.py"],
        "deleted_paths": ["old.py"],
        "set_aside": ["mine.py"],
    }
    own = candidate(part={**RANK_FILES, "ranks": [number]}, complete=False, why="one is missing")

    def seen(request: Request) -> list[Message]:
        tokens = request.args["tokens"]
        assert isinstance(tokens, list)
        return [Message({"seen": tokens[number + 1 : number + 2], "busy": None})]

    columns = {"time": [1000.0, 1005.0], "cpu_percent": [100, None]}
    gpu = {"index": number, "rank": number, "percent": [97, 98.5], "slowed": [4, None]}
    used = {**columns, "gpus": [gpu], "ranks": [{"rank": number, "memory_bytes": [None, 7]}]}
    fell = {"numbers": [number], "since": 1000.0, "before": 97, "now": 3}
    return {
        "status": [Message({"node": whole})],
        "watch": [Message({"node": {**whole, "fell": fell}, "samples": used})],
        "samples": [Message({"samples": used})],
        "runs": [Message({"runs": [whole]})],
        "start": [Message({"event": "up", "pid": 42, "link_port": 5555})],
        "stop": [
            Message({"stage": "asking"}),
            Message({**gone, "gone": number == 1, "left": [] if number else [stays]}),
        ],
        "dump": [Message({"dump": stood_still(node), "state": "running", "note": "slow"})],
        "prune": [Message({"removed": [], "kept": {RUN: "something of it is left here"}})],
        "checkpoints": [
            Message({"read": 5}),
            Message({"folder": "/w/out", "knows": True, "candidates": [own, candidate(10)]}),
        ],
        "tail": [
            Message({"here": True}),
            happened(0, "clock", offset_s=0.1, error_s=0.01),
            happened(50, "rank-started", rank=number),
            happened(100, "peer-lost", peer="b", message="silent", since=999.0),
            happened(150, "rank-ended", rank=number, exit_code=1, ordered=False, oom_kills=0),
            data(number, 0, b"first\nsecond of %d\n" % number, time=1000.0, dropped=0),
            Message({"pieces": [[f"ranks/{number}.log", number, 18, 24, 1001.0, 0]]}, b"third\n"),
            ended(node, "failed", world_size=2),
        ],
        "sync-compare": [Message({"equal": False, "different": ["train.py"]})],
        "share-look": seen,
        "sync-apply": [
            Message({**place, "equal": True, "different": [], "sent": {"code": 0, "words": ""}})
        ],
        "share-clear": [Message({})],
        "note-runs": [Message({"noted": True})],
        "checkpoint-writers": [
            Message(
                {"writers": [{"run": "x", "name": "", "cluster": "c", "user": "u", "host": "h"}]}
            )
        ],
        "collect-facts": [
            Message({"clock": "ready"}),
            Message({"time": 1000.0}),
            Message(
                {
                    "answers": [
                        ["file:/proc/loadavg", "ok", 4, None, 0.1, ""],
                        ["command:python", "ok", 2, 0, 0.1, "words"],
                        ["path:/w", "ok", 2, 0, 0.1, ""],
                        ["self", "ok", 2, 0, 0.1, ""],
                    ]
                },
                zlib.compress(b"0.1\n{}{}{}"),
            ),
            *MEETING,
        ],
    }


MEETING = [
    Message(
        {
            "step": "prepare",
            "bound": [{"key": "pair", "address": "10.0.0.1", "port": 4000}],
            "written": [{"path": "/share", "folder": "/share", "words": ""}],
        }
    ),
    Message(
        {
            "step": "meet",
            "connected": [
                {
                    "target": "b", "key": "pair", "address": "10.0.0.1", "port": 4000,
                    "state": "ok", "words": "", "seconds": 0.1, "source": "10.0.0.1",
                    "seen_as": "10.0.0.1",
                }
            ],
            "seen": [
                {"path": "/share", "writer": "b", "seen": True, "delay_s": 0.1, "words": ""}
            ],
        }
    ),
    Message(
        {
            "foreign": ["10.0.0.9"],
            "counters": {"/sys/class/net/eth0/statistics": "rx_errors 3\nrx_bytes 7\n"},
        }
    ),
]  # fmt: skip
