"""The messages between the supervisors of a run, and the events that these cause.

The worker connects and says `hello` with its token; the master answers `welcome`, or closes.
Of a job with a command before its ranks, a worker tells with its ping once it is `ready`; when all
are, the master says `begin` to all.
The worker sends `ping` at least every 2 s, and the master answers `pong` with its own clock.
Either tells an `ending` at once. The master passes on the first, and a rank's own failure after an
echo; none if the run continues without that node. A worker says `bye` once the run is over on it,
and the master answers `bye`. The master says `over` when it is over there.
With its ping, a worker tells how long its ranks are quiet, and what they have done; the master says
to all when the run is `hung`, and when it runs again, and with its pong to each which of its ranks
are `slow`.
Of a run that may restart, a worker says with its `bye` of a failure what is `after` it on its node.
Once it has this of all, the master says `again` to all: what becomes of the run, and later to go.
The master of the next attempt repeats it to a supervisor of the last one that missed it.

Each is a line of JSON (see `wire`) over TLS. What a later version adds, an earlier one ignores.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Protocol

from clusterctl.node.peer_link import fields

PeerMessage = Dict[str, Any]
SilentPeer = Dict[str, Any]
"""`peer`, `since` when it was not heard, and as `message` the last words of its connection."""


class PeerEvents(Protocol):
    """Who hears what happens on the other nodes: the supervisor."""

    def clock_measured(self, offset: float, error: float) -> None:
        """Take this node's clock minus the master's, and by how much that may be wrong."""

    def peer_joined(self, node: str) -> None:
        """A node's supervisor is there for the first time."""

    def peer_lost(self, node: str, words: str) -> None:
        """A node has been silent too long; `words` are the last of its connection."""

    def peer_ending(self, message: PeerMessage) -> None:
        """The run is ending on another node, and why."""

    def peer_leaves(self, ending: PeerMessage) -> bool:
        """A node ends its part; True: the run continues without it."""

    def life(self) -> PeerMessage:
        """Return what to tell the master about this node's ranks: see `parse_life`."""

    def run_hung(self, judgement: PeerMessage) -> None:
        """The master has judged that the run is hung, or runs again."""

    def run_slow(self, judged: List[PeerMessage]) -> None:
        """The master tells which of this node's ranks keep the others waiting: see `parse_slow`."""

    def master_over(self, state: str) -> None:
        """The run is over on the master, and the state it left there."""


SILENT_SECONDS = 4.0
"""A living supervisor is heard at least every 2 seconds."""


def silent_peer(node: str, silence: float, words: str) -> SilentPeer:
    """Return what is noted of a node that was not heard for so many seconds."""
    return {"peer": node, "since": time.time() - silence, "message": words}


def heartbeat_seconds(lost_after: float) -> float:
    """Return how often to be heard, so that a few lost beats are no silence."""
    return min(2.0, lost_after / 5)


ORDERED = ("stop", "max-time")
"""Endings that are no failure: a user, or the job's own limit, wants them. No attempt follows."""
REASON_LIMIT = 4096
"""Characters of a reason; the rest is cut off."""
_WORD_LIMIT, _LINE_LIMIT = 255, 500
_NUMBER_LIMIT = 2**31
_GRACE_LIMIT = 86400.0
"""The longest grace that an inventory allows."""
LINES_GRACE = 10.0
"""The longest that a rank which only echoes another's end may let the others print."""
_MOST_RANKS = 1024
"""Of one node."""
_ENDED = fields.optional(fields.whole(_NUMBER_LIMIT, least=-_NUMBER_LIMIT))
_ENDING: Dict[str, fields.Reader] = {
    "by": fields.text(_WORD_LIMIT),
    "reason": fields.text(REASON_LIMIT, cut=True),
    "node": fields.text(_WORD_LIMIT),
    "exit_code": _ENDED,
    "rank": _ENDED,
    "killed_by": _ENDED,
    "lost": fields.optional(fields.text(_WORD_LIMIT)),
    "grace": fields.optional(fields.number(_GRACE_LIMIT, cut=True)),
    "lines_grace": fields.optional(fields.number(LINES_GRACE, cut=True)),
    "refuses": fields.flag,
    "line": fields.optional(fields.text(_LINE_LIMIT, cut=True)),
}
"""What an ending is made of; the first three are always there.

How ranks are asked to end is not: each node's own job says that. Only the grace of a stop may be
another than the job's.
"""
_OVER = ("finished", "failed", "stopped", "lost")
"""The states in which a run is over on a node."""
_HUNG = fields.record(hung=fields.flag, quiet_s=fields.number(), alarm=fields.whole())
_SLOW = fields.many(
    fields.record(rank=fields.whole(), lost=fields.number(), sure=fields.flag), _MOST_RANKS
)
_WORK = fields.many(fields.many(fields.number(), 6, least=6), _MOST_RANKS)
"""What each rank of a worker has done: its number and the counts of its `Work`."""
_QUIET = fields.optional(fields.number())


def parse_time(message: PeerMessage, name: str) -> float:
    """Return a time of a clock that a message names; raise MessageError if it is none."""
    return float(fields.number()(message.get(name), "%s of a message" % name))


def parse_over(message: PeerMessage) -> str:
    """Return the state in which the run is over on the master; raise MessageError if it is none."""
    if message["over"] not in _OVER:
        raise fields.refusal(message["over"], "state of a run that is over")
    return str(message["over"])


def parse_life(message: PeerMessage) -> PeerMessage:
    """Return what a worker tells of its ranks.

    That is `quiet`, the seconds since the last sign of life of any (null: it cannot tell; absent:
    none of them runs), and whether one has `printed`.

    Raises:
        MessageError: it cannot be.
    """
    life: PeerMessage = {"printed": message.get("printed") is True}
    if "quiet" in message:
        life["quiet"] = _QUIET(message["quiet"], "quiet of a message")
    if message.get("work"):
        life["work"] = _WORK(message["work"], "work of ranks")
    return life


def parse_slow(message: PeerMessage) -> List[PeerMessage]:
    """Return which of this node's ranks are slow: `rank`, `lost`, and whether that is `sure`.

    Raises:
        MessageError: it is no such list.
    """
    judged: List[PeerMessage] = _SLOW(message["slow"], "slow ranks")
    return judged


def parse_hung(message: PeerMessage) -> PeerMessage:
    """Return the master's judgement: `hung`, `quiet_s`, and the number of the `alarm`.

    Raises:
        MessageError: it is none.
    """
    judgement: PeerMessage = _HUNG(message["hung"], "a judgement")
    return judgement


def told_ending(ending: PeerMessage) -> PeerMessage:
    """Return the message of an ending: earlier versions refuse one whose grace is null."""
    return {"ending": {name: value for name, value in ending.items() if value is not None}}


def parse_ending(message: PeerMessage) -> PeerMessage:
    """Return the ending that a message reports, fit to be acted on and relayed.

    What does not belong to an ending is left out: earlier versions sent how to ask ranks.

    Raises:
        MessageError: it is not one.
    """
    found = message["ending"]
    if not isinstance(found, dict) or not {"by", "reason", "node"} <= set(found):
        raise fields.refusal(found, "an ending")
    return {
        name: read(found[name], "%s of an ending" % name)
        for name, read in _ENDING.items()
        if name in found
    }
