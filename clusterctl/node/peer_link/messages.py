"""The messages between the supervisors of a run, and the events that these cause."""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Tuple

from clusterctl.node.run.processes import signal_number

PeerMessage = Dict[str, Any]


class PeerEvents(NamedTuple):
    """The callbacks for events of the link."""

    ending: Callable[[PeerMessage], None]
    """The run is ending on another node, and why."""
    lost: Callable[[str, str], None]
    """A node (its name) has been silent too long, with the last words of its connection."""
    joined: Callable[[str], None]
    """A node's supervisor is there for the first time."""
    clock: Callable[[float, float], None]
    """This node's clock minus the master's, and by how much that may be wrong."""
    over: Callable[[str], None]
    """The run is over on the master, and the state it left there."""
    leaves: Callable[[PeerMessage], bool] = lambda message: False  # noqa: ARG005
    """A node ends its part; True: the run continues without it."""


def heartbeat_seconds(lost_after: float) -> float:
    """Return how often to be heard, so that a few lost beats are no silence."""
    return min(2.0, lost_after / 5)


_ENDING: Dict[str, Tuple[type, ...]] = {
    "by": (str,),
    "reason": (str,),
    "node": (str,),
    "exit_code": (int, type(None)),
    "rank": (int, type(None)),
    "grace": (int, float),
    "signal": (str, type(None)),
    "file": (str, type(None)),
    "killed_by": (int, type(None)),
    "lost": (str, type(None)),
}
"""What an ending is made of; the first three are always there."""
_LONGEST = 10**8
"""Seconds of grace."""
_OVER = ("finished", "failed", "stopped", "lost")
"""The states in which a run is over on a node."""


def parse_over(message: PeerMessage) -> str:
    """Return the state in which the run is over on the master.

    Raises:
        ValueError: it is none.
    """
    state = message["over"]
    if state not in _OVER:
        raise ValueError("state of a run that is over: found %.200r" % (state,))
    return str(state)


def parse_ending(message: PeerMessage) -> PeerMessage:
    """Return the ending that a message reports, fit to be acted on and relayed.

    Raises:
        ValueError: it is not one.
    """
    ending = message["ending"]
    if not isinstance(ending, dict) or not {"by", "reason", "node"} <= set(ending):
        raise ValueError("expected an ending, found %.200r" % (ending,))
    for name, kinds in _ENDING.items():
        if name in ending and not isinstance(ending[name], kinds):
            raise ValueError("%s of an ending: found %.200r" % (name, ending[name]))
    if not 0 <= ending.get("grace", 0) <= _LONGEST:  # no timer waits for NaN
        raise ValueError("grace of an ending: found %.200r" % ending["grace"])
    try:
        signal_number(ending.get("signal") or "TERM")
    except KeyError as error:
        raise ValueError("signal of an ending: found %.200r" % ending["signal"]) from error
    return ending
