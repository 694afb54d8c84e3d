"""What supervisors tell each other about the next attempt of a run, read with limits.

`after` is what a node knows once a failed attempt is over on it: which of its ranks failed and what
these printed last, which checkpoints it sees, what speaks against it. `again` is what the master
makes of all nodes' words. Neither holds a command: that is in each node's own job.
"""

from __future__ import annotations

import re

from clusterctl.node.peer_link import fields
from clusterctl.node.peer_link.messages import PeerMessage
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


def _checkpoint(found: object, name: str) -> str:
    path: str = fields.words(_PATH_LIMIT, least=1)(found, name)
    if "\0" in path or path.startswith("-"):
        raise fields.refusal(path, name)
    return path


def _address(found: object, name: str) -> str:
    address: str = fields.words(_NODE_LIMIT)(found, name)
    if not _ADDRESS.fullmatch(address):
        raise fields.refusal(address, name)
    return address


_NUMBER = fields.optional(fields.whole(least=-fields.WHOLE_LIMIT))
_FAILURE = fields.record(
    at=fields.number(),
    rank=_NUMBER,
    exit_code=_NUMBER,
    signal=_NUMBER,
    oom=fields.flag,
    lines=fields.many(fields.words(LINE_CHARACTERS), LINES),
)
_AFTER = fields.record(
    failures=fields.many(_FAILURE, FAILURES),
    stuck=fields.flag,
    blame=fields.optional(fields.words(WHY_LIMIT), ""),
    step=_NUMBER,
    sight=fields.mapping,
    check=fields.table(fields.optional(fields.words(WHY_LIMIT)), CHECKS, name_limit=_NAME_LIMIT),
    unreached=fields.optional(fields.many(fields.words(_NODE_LIMIT), MOST_WITHOUT), ()),
)
_SEAT = fields.record(
    node=fields.words(_NODE_LIMIT, least=1),
    address=_address,
    procs=fields.whole(MOST_PROCS, least=1),
)
_AGAIN = fields.record(
    attempt=fields.optional(fields.whole(MOST_ATTEMPTS), 0),
    checkpoint=fields.optional(_checkpoint),
    step=_NUMBER,
    wait_s=fields.number(),
    why=fields.words(WHY_LIMIT),
    go=fields.flag,
    without=fields.optional(fields.many(fields.words(_NODE_LIMIT), MOST_WITHOUT), []),
    joined=fields.optional(fields.many(_SEAT, MOST_WITHOUT), []),
)


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
    after: PeerMessage = _AFTER(found, "what is after an attempt")
    return after


def parse_again(found: object) -> PeerMessage:
    """Return what becomes of the run: `attempt`, the number of the next; 0: there is none.

    With it `checkpoint` (a path, or null), `step`, `wait_s`, `why`, the nodes that it is `without`,
    those that have `joined` (each a `Seat`), and whether to `go` now.

    Raises:
        MessageError: it cannot be.
    """
    again: PeerMessage = _AGAIN(found, "the next attempt")
    return again


def parse_seat(found: object) -> Seat:
    """Return where a node that joins is, and the ranks that it would have; else MessageError."""
    seat: Seat = _SEAT(found, "a node that joins")
    return seat
