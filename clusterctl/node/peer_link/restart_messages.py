"""What supervisors tell each other about the next attempt of a run, read with limits.

`after` is what a node knows once a failed attempt is over on it: which of its ranks failed and what
these printed last, which checkpoints it sees, what speaks against it. `again` is what the master
makes of all nodes' words. Neither holds a command: that is in each node's own job.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Optional, Tuple

from clusterctl.node.peer_link.messages import MessageError, PeerMessage, parse_time
from clusterctl.node.run.files.node_job import Seat
from clusterctl.wire import to_json

AFTER_BYTES = 48 << 10
"""Of all that a node tells after an attempt: it has to fit into one line."""
FAILURES, LINES, LINE_CHARACTERS = 4, 20, 300
"""The most failed ranks in a message, their last lines, and the characters of each."""
FEWER_LINES = 5
"""If there are so many other words."""
WHY_LIMIT = 1000
"""Characters of a reason."""
CHECKS, _NAME_LIMIT = 32, 100
MOST_WITHOUT, _NODE_LIMIT = 64, 255
"""Nodes that are left out or join at once, and characters of a name or an address."""
MOST_PROCS = 4096
MOST_ATTEMPTS = 10_000
_PATH_LIMIT = 4096
_ADDRESS = re.compile(r"[0-9A-Za-z.:%_-]+")
_NUMBER_LIMIT = 2**53


def fit_after(after: PeerMessage) -> PeerMessage:
    """Return what a node tells after an attempt, without what does not fit into a line."""
    if len(to_json(after)) <= AFTER_BYTES:
        return after
    failures = [{**one, "lines": one["lines"][-FEWER_LINES:]} for one in after["failures"]]
    after, sight = {**after, "failures": failures}, after["sight"]
    # The files only name what differs: the hash tells that something does.
    told = [{**one, "files": {}} for one in sight["checkpoints"]]
    while told and len(to_json({**after, "sight": {**sight, "checkpoints": told}})) > AFTER_BYTES:
        told.pop()
    after = {**after, "sight": {**sight, "checkpoints": told}}
    if len(to_json(after)) > AFTER_BYTES:
        after["failures"] = [{**one, "lines": []} for one in failures]
    return after


def parse_after(found: object) -> PeerMessage:
    """Return what a node tells after an attempt.

    That is `failures` (each with `at`, `rank`, `exit_code`, `signal`, `oom` and `lines`), `stuck`,
    `blame` (why the node may be the reason of a hang; empty: it is not), `step`, `check` (name →
    why the node is unfit, empty for fit, null for unknown), `unreached` (the nodes that do not
    answer it), and `sight`, which `read_sight` reads.

    Raises:
        MessageError: it cannot be.
    """
    told = _dict(found, "what is after an attempt")
    failures = _list(told.get("failures"), "failures", FAILURES)
    check = _dict(told.get("check"), "check")
    if len(check) > CHECKS:
        raise MessageError("check: expected at most %d, found %d" % (CHECKS, len(check)))
    return {
        "failures": [_failure(_dict(each, "a failure")) for each in failures],
        "stuck": told.get("stuck") is True,
        "blame": _text(told.get("blame", ""), "blame", WHY_LIMIT),
        "step": _number(told.get("step"), "step"),
        "sight": _dict(told.get("sight"), "sight"),
        "check": {
            str(name)[:_NAME_LIMIT]: None if why is None else _text(why, "check", WHY_LIMIT)
            for name, why in check.items()
        },
        "unreached": [
            _text(name, "unreached", _NODE_LIMIT)
            for name in _list(told.get("unreached", []), "unreached", MOST_WITHOUT)
        ],
    }


def _failure(told: Dict[str, Any]) -> PeerMessage:
    lines = _list(told.get("lines"), "lines", LINES)
    return {
        "at": parse_time(told, "at"),
        **{name: _number(told.get(name), name) for name in ("rank", "exit_code", "signal")},
        "oom": told.get("oom") is True,
        "lines": [_text(line, "lines", LINE_CHARACTERS) for line in lines],
    }


def parse_again(found: object) -> PeerMessage:
    """Return what becomes of the run: `attempt`, the number of the next; 0: there is none.

    With it `checkpoint` (a path, or null), `step`, `wait_s`, `why`, the nodes that it is `without`,
    those that have `joined` (each a `Seat`), and whether to `go` now.

    Raises:
        MessageError: it cannot be.
    """
    told = _dict(found, "the next attempt")
    checkpoint: Optional[str] = None
    if told.get("checkpoint") is not None:
        checkpoint = _text(told["checkpoint"], "checkpoint", _PATH_LIMIT)
        if not checkpoint or "\0" in checkpoint or checkpoint.startswith("-"):
            raise MessageError("checkpoint: found %.200r" % checkpoint)
    attempt = _number(told.get("attempt"), "attempt") or 0
    if not 0 <= attempt <= MOST_ATTEMPTS:
        raise MessageError("attempt: found %d" % attempt)
    without = _list(told.get("without", []), "without", MOST_WITHOUT)
    joined = _list(told.get("joined", []), "joined", MOST_WITHOUT)
    return {
        "attempt": attempt,
        "checkpoint": checkpoint,
        "step": _number(told.get("step"), "step"),
        "wait_s": parse_time(told, "wait_s"),
        "why": _text(told.get("why"), "why", WHY_LIMIT),
        "go": told.get("go") is True,
        "without": [_text(name, "without", _NODE_LIMIT) for name in without],
        "joined": [parse_seat(one) for one in joined],
    }


def parse_seat(found: object) -> Seat:
    """Return where a node that joins is, and the ranks that it would have.

    Raises:
        MessageError: it cannot be.
    """
    told = _dict(found, "a node that joins")
    name, address = (_text(told.get(key), key, _NODE_LIMIT) for key in ("node", "address"))
    procs = _number(told.get("procs"), "procs")
    if not name or not _ADDRESS.fullmatch(address) or not 0 < (procs or 0) <= MOST_PROCS:
        raise MessageError("a node that joins: found %.200r" % (found,))
    return {"node": name, "address": address, "procs": procs or 0}


def _dict(found: object, what: str) -> Dict[str, Any]:
    if not isinstance(found, dict):
        raise MessageError("%s: found %.200r" % (what, found))
    return found


def _list(found: object, what: str, most: int) -> Tuple[Any, ...]:
    if not isinstance(found, list) or len(found) > most:
        raise MessageError("%s: expected at most %d, found %.200r" % (what, most, found))
    return tuple(found)


def _number(found: object, what: str) -> Optional[int]:
    if found is None:
        return None
    if not isinstance(found, int) or isinstance(found, bool) or abs(found) > _NUMBER_LIMIT:
        raise MessageError("%s: found %.200r" % (what, found))
    return found


def _text(found: object, what: str, limit: int) -> str:
    """Return a text that fits and can be encoded: JSON can bring in half a character."""
    if not isinstance(found, str) or len(found) > limit:
        raise MessageError("%s: found %.200r" % (what, found))
    return found.encode("utf-8", "replace").decode()
