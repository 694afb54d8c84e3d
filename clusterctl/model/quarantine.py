"""A node in quarantine: why it is kept out, since when and until when."""

from __future__ import annotations

from clusterctl.model.from_json import Seconds
from clusterctl.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """What is known against one node."""

    node: str
    """The node's name."""
    reason: str
    """Why, in words."""
    run: str = ""
    """The run that failed because of it; empty: a user put it there."""
    since: Seconds
    """When it failed, or was put there."""
    until: Seconds
    """When it is over by itself."""
    age_s: Seconds = 0.0
    """How long ago `since` was, when this was read."""
    replaced: bool = False
    """The machine has another host key now: it is not kept out."""
    absent: bool = False
    """The inventory has no such node any more."""

    @property
    def left_s(self) -> float:
        """How long it still lasts."""
        return max(0.0, self.until - self.since - self.age_s)
