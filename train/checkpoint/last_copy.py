"""What to do if the last checkpoint finds no room: the weights in memory are the only copy."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from train.checkpoint.room import NO_ROOM, SMALL_FILES, has_room
from train.checkpoint.save import Checkpoints
from train.distributed.process_group import Ranks
from train.errors import CheckpointError
from train.lifecycle.signals import StopListener
from train.lifecycle.status import Status
from train.model.memory import size_in_words
from train.model.model import Model

PATIENCE = 3600.0
"""Seconds to wait for room."""
LOOK = 5.0
"""Seconds between two looks at the disk."""
MOST_LOOKS = 12
"""Looks between two tries to write, at most."""


def export_or_wait(
    step: int,
    model: Model,
    checkpoints: Checkpoints,
    ranks: Ranks,
    stop_listener: StopListener,
    status: Status,
    save: Callable[[], bool],
) -> str:
    """Export what was trained from memory, which takes less room; wait where there is none.

    Returns:
        What is lost; nothing if the checkpoint was written after all.
    """
    until, looks, waits = time.monotonic() + PATIENCE, 1, False
    unwritten = "the last checkpoint could not be written"
    needed = checkpoints.export_bytes(model)

    def lacks_room() -> float:
        return float(checkpoints.writes and not has_room(checkpoints.output, needed))

    while True:
        try:
            return f"{unwritten}; step {step} is in {checkpoints.export(step, model)}"
        except CheckpointError as error:
            problem = f"{unwritten}, and {error}"
            is_room = bool(NO_ROOM.search(str(error)))
        lacking = ranks.sum([lacks_room()])[0]
        if not lacking and not is_room:  # another fault, which waiting does not fix
            return problem
        if not waits:
            waits = True
            stop_listener.listen_again("giving up the wait for room")
            line = (
                f"waiting up to {PATIENCE / 60:.0f} minutes for "
                f"{size_in_words(needed + SMALL_FILES)} of room in {checkpoints.output}: "
                f"step {step} is in memory only"
            )
            status.set("running", line)
            if ranks.is_first:
                print(f"{line}; Ctrl-C gives it up", file=sys.stderr, flush=True)
        if not _room_comes(lacks_room, ranks, stop_listener, until, looks):
            return problem
        if save():
            return ""
        looks = min(2 * looks, MOST_LOOKS)  # a quota does not show in what is free


def _room_comes(
    lacks_room: Callable[[], float],
    ranks: Ranks,
    stop_listener: StopListener,
    until: float,
    looks: int,
) -> bool:
    """Wait until no node lacks room, for so many looks at least; all ranks decide alike."""
    while True:
        time.sleep(LOOK)
        looks -= 1
        if stop_listener.agree().stop:
            return False
        is_late = float(ranks.is_first and time.monotonic() > until)
        lacking, late = ranks.sum([lacks_room(), is_late])
        if late or (not lacking and looks <= 0):
            return not late
