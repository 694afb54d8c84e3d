"""When a checkpoint is written: every so many steps, epochs or minutes."""

from __future__ import annotations

import time
from collections.abc import Callable

from train.config.config import Config


class Schedule:
    """Decides which steps a checkpoint follows.

    Steps and epochs are the same on every rank. Clocks are not: only rank 0 reads its own, and
    sends the others its vote in the sum that every step makes anyway.
    """

    def __init__(
        self, config: Config, *, is_clock: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every = config.save_every
        self._is_clock = is_clock
        self._clock = clock
        self._last = clock()

    def vote(self) -> float:
        """Return 1.0 if the minutes are over by this rank's clock, to be summed over all ranks."""
        over = self._clock() - self._last >= self._every.minutes * 60
        return float(self._is_clock and self._every.minutes > 0 and over)

    def follows(self, step: int, *, finished_epochs: int | None) -> bool:
        """Return whether a checkpoint follows a step, however long it has taken until there."""
        steps, epochs = self._every.steps, self._every.epochs
        ended = finished_epochs is not None and epochs > 0 and finished_epochs % epochs == 0
        return ended or (steps > 0 and step % steps == 0)

    def saved(self) -> None:
        """Start to measure the time again."""
        self._last = self._clock()
