"""Tells whether a launcher ended a rank only because another one had ended.

The supervisor asks this to find what ends the run, `logs` to name the first cause.
"""

from __future__ import annotations

import signal
from typing import Iterable, Optional

REACTION_SECONDS = 1.0
"""Seconds in which a launcher sends SIGTERM to its other ranks, once it saw one of them end."""


def is_reaction(killed_by: Optional[int], ended: float, unknown: Iterable[float]) -> bool:
    """Tell whether the launcher ended a rank because one with an unknown exit code had ended.

    Args:
        killed_by: the signal that ended the rank, if one did.
        ended: when that was.
        unknown: when ranks of the same node ended whose exit code is lost.
    """
    return killed_by == signal.SIGTERM and any(
        0 <= ended - other <= REACTION_SECONDS for other in unknown
    )
