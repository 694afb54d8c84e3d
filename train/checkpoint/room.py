"""Room on a disk: what is needed, what is free, and what to do if a checkpoint finds none.

If it is the last checkpoint, the weights in memory are the only copy.
"""

from __future__ import annotations

import errno
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from train.errors import CheckpointError
from train.model.memory import size_in_words

if TYPE_CHECKING:
    from train.checkpoint.save import Checkpoints
    from train.distributed.process_group import Ranks
    from train.lifecycle.signals import StopListener
    from train.lifecycle.status import Status
    from train.model.model import Model

NO_ROOM = re.compile(r"No space left|quota exceeded", re.IGNORECASE)
"""What errors say that come without a number, such as those of safetensors."""
SMALL_FILES = 1 << 20
"""Bytes that a checkpoint or an export takes besides its tensors."""
PATIENCE = 3600.0
"""Seconds to wait for room."""
LOOK = 5.0
"""Seconds between two looks at the disk."""
MOST_LOOKS = 12
"""Looks between two tries to write, at most."""


def has_room(folder: Path, needed: int) -> bool:
    """Return whether tensors of so many bytes fit, by the count of the file system."""
    return shutil.disk_usage(folder).free >= needed + SMALL_FILES


def lack(folder: Path, needed: int) -> str:
    """Return how much room is missing after a write has failed; nothing if that was not the cause.

    Torch's own error names no cause: `unexpected pos 704 vs 598`.
    """
    wanted, here = needed + SMALL_FILES, shutil.disk_usage(folder).free
    if here >= wanted:
        return ""
    return (
        f"no space left in {folder}: expected {size_in_words(wanted)}, found "
        f"{size_in_words(here)} free, so {size_in_words(wanted - here)} more are needed"
    )


def words(error: BaseException) -> str:
    """Return an error in one line; a full disk by its own name, whatever reports it."""
    text = " ".join([f"{type(error).__name__}:", *str(error).splitlines()[:1]])
    number = getattr(error, "errno", None)
    if number in {errno.ENOSPC, errno.EDQUOT} and not NO_ROOM.search(text):
        text += f" (No space left: {errno.errorcode[number]})"
    return text


def export_or_wait(
    step: int,
    model: Model,
    checkpoints: Checkpoints,
    ranks: Ranks,
    stop_listener: StopListener,
    status: Status,
    save: Callable[[], bool],
) -> str:
    """Export what was trained from memory, which takes less room; wait if there is none.

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
