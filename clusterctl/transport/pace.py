"""Slows down a node that sends nothing but tiny parts: to take one costs more than to send it."""

import time

SMALL = 512
"""Bytes of a part that is counted."""
RATE = 5000
"""Parts a second; a node that follows 128 logs sends 4,300."""
BURST_SECONDS = 4.0
"""Of the rate, at once: a run's events all come at the beginning."""


class Pace:
    """Lets so many small parts through; makes the thread that takes them wait for more."""

    def __init__(self) -> None:
        """Start with nothing taken."""
        self._paid = 0.0
        """When the parts that came would have come at the rate."""

    def wait(self) -> None:
        """Count a part; wait if it came too early."""
        now = time.monotonic()
        self._paid = max(self._paid, now - BURST_SECONDS) + 1 / RATE
        if self._paid > now:
            time.sleep(self._paid - now)
