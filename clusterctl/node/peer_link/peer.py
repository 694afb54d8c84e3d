"""What the supervisor of a run knows of another node's: one record, and what changes it. Pure.

The master has one of each worker, a worker that of the master. Who joins, who may connect, whom the
end of an attempt waits for and who takes part in the next one is read from nowhere else.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional

from clusterctl.node.run.files.node_job import Seat

AWAITED, ADMITTED, THERE, OVER, LOST = "awaited", "admitted", "there", "over", "lost"
"""Part of the attempt, but not there yet; let in by `join`, but not there yet; there; its part has
ended, as it told, or it never came; silent too long.

AWAITED → THERE → OVER or LOST; LOST, or one that left → ADMITTED → THERE, else LOST again.
"""
COME_SECONDS = 15.0
"""How long a node that was let in takes at most, as a rule, until it is there."""


class Peer(NamedTuple):
    """A node of the run, as this attempt has seen it."""

    number: int
    """What no other node of the run has had."""
    phase: str = AWAITED
    came: bool = False
    """Its supervisor has been there."""
    left: bool = False
    """It ended its part, and the run continues without it."""
    lost_at: Optional[float] = None
    """When it was lost, on the monotonic clock; kept if it comes back in the same attempt."""
    spare: bool = False
    """It stands by: its end is not the run's."""
    seat: Optional[Seat] = None
    """Where it is, of one that has joined and stands by."""
    heard: Optional[float] = None
    """When it was heard last, or is to be heard; None: that is open."""
    error: str = "it stopped answering"
    """The last words of its connection."""
    ready: bool = False
    """Its ranks may start."""
    life: Optional[Dict[str, Any]] = None
    """What it told of its ranks."""
    after: Optional[Dict[str, Any]] = None
    """What it told with its bye, of a run that may restart."""

    @property
    def present(self) -> bool:
        """It counts as a node of the run."""
        return self.phase in (AWAITED, THERE, OVER) and not self.left

    @property
    def done(self) -> bool:
        """Nothing waits for it."""
        return self.phase not in (AWAITED, THERE)

    def arrived(self, now: float, seat: Optional[Seat]) -> Peer:
        """Its supervisor is there: for the first time, or let in again; with a seat it stands by.

        One that came so late that it counted as lost stays that.
        """
        if self.phase == LOST:
            return self._replace(came=True, heard=now, lost_at=now)  # it hears that only now
        spare = self.spare or seat is not None
        return self._replace(phase=THERE, came=True, heard=now, seat=seat, spare=spare)

    def ended(self, after: Optional[Dict[str, Any]]) -> Peer:
        """It has told that its part is over."""
        return self._replace(phase=OVER, after=after) if self.phase == THERE else self

    def lost(self, now: float) -> Peer:
        """It fell silent, or did not come although it was let in."""
        at = self.lost_at if self.phase == ADMITTED else now
        return self._replace(phase=LOST, lost_at=at, seat=None, after=None)

    def admitted(self, now: float) -> Peer:
        """It is let in again: of its earlier part only what the attempt lost by it is kept."""
        at = self.lost_at if self.phase in (LOST, ADMITTED) else now
        return Peer(
            self.number, ADMITTED, self.came, lost_at=at, spare=self.spare, heard=now + COME_SECONDS
        )
