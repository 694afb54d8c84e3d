"""What a node may say of a run: anything else is named, and not taken for an answer.

A node of another version, or one that is not ours any more, must not end a verb about all nodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Kinds = tuple[type, ...]

NOT_OURS = "its answer is not one of ours"

_NONE = type(None)
_NUMBER: Kinds = (int, float, _NONE)
_WHOLE: Kinds = (int, _NONE)
_TEXT: Kinds = (str, _NONE)

_PART: Mapping[str, Kinds] = {
    "run": (str,),
    "state": (str,),
    "ranks": (list,),
    "rank0": _WHOLE,
    "world_size": _WHOLE,
    "began": _NUMBER,
    "name": _TEXT,
    "command": (list, _NONE),
    "workdir": _TEXT,
    "supervisor": (dict, _NONE),
    "end": (dict, _NONE),
    "resumed": (dict, _NONE),
    "last": (dict, _NONE),
}
_RANK: Mapping[str, Kinds] = {"rank": (int,), "exit_code": _WHOLE, "signal": _WHOLE}
_END: Mapping[str, Kinds] = {"state": _TEXT, "by": _TEXT, "reason": _TEXT, "time": _NUMBER}
_LAST: Mapping[str, Kinds] = {"rank": _WHOLE, "line": (str,), "age_s": (int, float)}
_RESUMED: Mapping[str, Kinds] = {
    "run": (str,),
    "checkpoint": (str,),
    "step": _WHOLE,
    "command": (list,),
    "tree": _TEXT,
    "commit": _TEXT,
}
_EVENT: Mapping[str, Kinds] = {
    "kind": (str,),
    "rank": _WHOLE,
    "exit_code": _WHOLE,
    "signal": _WHOLE,
    "time": _NUMBER,
    "since": _NUMBER,
    "oom_kills": _WHOLE,
    "offset_s": _NUMBER,
    "error_s": _NUMBER,
}
_STOPPED: Mapping[str, Kinds] = {"port_holder": (dict, _NONE)}
_DATA: Mapping[str, Kinds] = {
    "data": (str,),
    "offset": (int,),
    "rank": _WHOLE,
    "time": _NUMBER,
    "dropped": _WHOLE,
}


def wrong_part(part: object) -> str:
    """Say what is wrong with a NodeRun; empty where nothing is."""
    wrong = _wrong("its part", part, _PART)
    if wrong or not isinstance(part, dict):
        return wrong
    ranks = (_wrong("a rank", rank, _RANK) for rank in part["ranks"])
    end = _wrong("its end", part["end"], _END) if part.get("end") else ""
    last = _wrong("its last line", part["last"], _LAST) if part.get("last") else ""
    resumed = _wrong("its resume", part["resumed"], _RESUMED) if part.get("resumed") else ""
    return end or last or resumed or next(filter(None, ranks), "")


def wrong_tail(head: Mapping[str, Any]) -> str:
    """Say what is wrong with the head of an answer of `tail`; empty where nothing is."""
    if "event" in head:
        return _wrong("an event", head["event"], _EVENT)
    if "data" in head:
        wrong = _wrong("a piece of a log", head, _DATA)
        return wrong or ("a piece of a log begins before it" if head["offset"] < 0 else "")
    return wrong_part(head["node"]) if "node" in head else ""


def wrong_stop(head: Mapping[str, object]) -> str:
    """Say what is wrong with the last answer of `stop`; empty where nothing is."""
    for name in ("left", "strangers"):
        left = head.get(name, [])
        if not isinstance(left, list):
            return f"what is left is {left!r}"
        wrong = next(filter(None, (_wrong("what is left", process, {}) for process in left)), "")
        if wrong:
            return wrong
    return _wrong("it", head, _STOPPED)


def _wrong(what: str, value: object, wanted: Mapping[str, Kinds]) -> str:
    if not isinstance(value, dict):
        return f"{what} is {value!r}"
    for name, kinds in wanted.items():
        found = value.get(name)
        finite = not isinstance(found, float) or math.isfinite(found)
        if not isinstance(found, kinds) or not finite:
            return f"{name} of {what} is {found!r}"[:200]
    return ""
