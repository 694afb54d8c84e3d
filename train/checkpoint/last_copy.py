"""What to do if the last checkpoint finds no room: the weights in memory are the only copy."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from train.checkpoint.room import NO_ROOM, SMALL_FILES, has_room
from train.errors import CheckpointError
from train.model.memory import size_in_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from train.checkpoint.save import Checkpoints
    from train.distributed.process_group import Ranks
    from train.lifecycle.signals import StopListener
    from train.lifecycle.status import Status
    from train.model.model import Model

PATIENCE = 3600.0
"""Seconds to wait for room."""
LOOK = 5.0
"""Seconds between two looks at the disk."""
MOST_LOOKS = 12
"""Looks between two tries to write, at most."""


def keep(
    step: int,
    model: Model,
    checkpoints: Checkpoints,
    ranks: Ranks,
    stop_listener: StopListener,
    status: Status,
    save: Callable[[], bool],
) -> str:
    """Export what was trained from memory, which takes less room; wait where there is none.

    Args:
        step: The last one.
        model: What was trained.
        checkpoints: The run's own; the last one could not be written.
        ranks: All ranks, each of which must call this.
        stop_listener: A new signal ends the wait.
        status: Gets what is waited for.
        save: Tries to write the checkpoint; returns whether it did.

    Returns:
        What is lost; nothing if the checkpoint was written after all.
    """
    until, looks, waits = time.monotonic() + PATIENCE, 1, False
    while True:
        try:
            folder = checkpoints.export(step, model)
        except CheckpointError as error:
            problem = str(error)
        else:
            return f"the last checkpoint could not be written; step {step} is in {folder}"
        needed = checkpoints.export_bytes(model)
        lacks = ranks.sum([float(checkpoints.writes and not _fits(checkpoints, needed))])[0]
        if not lacks and not NO_ROOM.search(problem):  # another fault, that no waiting mends
            return f"the last checkpoint could not be written, and {problem}"
        if not waits:
            waits = True
            stop_listener.listen_again("giving up the wait for room")
            wanted = size_in_words(needed + SMALL_FILES)
            line = (
                f"waiting up to {PATIENCE / 60:.0f} minutes for {wanted} of room in "
                f"{checkpoints.output}: step {step} is in memory only"
            )
            status.set("running", line)
            if ranks.is_first:
                print(f"{line}; Ctrl-C gives it up", file=sys.stderr, flush=True)
        if not _comes(checkpoints, needed, ranks, stop_listener, until, looks):
            return f"the last checkpoint could not be written, and {problem}"
        if save():
            return ""
        looks = min(2 * looks, MOST_LOOKS)  # a quota does not show in what is free


def _fits(checkpoints: Checkpoints, needed: int) -> bool:
    return has_room(checkpoints.output, needed)


def _comes(
    checkpoints: Checkpoints,
    needed: int,
    ranks: Ranks,
    stop_listener: StopListener,
    until: float,
    looks: int,
) -> bool:
    """Wait for room wherever it is lacking, for so many looks at least; return whether it came."""
    while True:
        time.sleep(LOOK)
        looks -= 1
        if stop_listener.agree().stop:
            return False
        lacks = float(checkpoints.writes and not _fits(checkpoints, needed))
        lacking, late = ranks.sum([lacks, float(ranks.is_first and time.monotonic() > until)])
        if late:
            return False
        if not lacking and looks <= 0:
            return True
