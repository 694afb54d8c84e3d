"""Room on a disk: what is needed, what is free, and whether a lack of it made a write fail."""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path

from train.model.memory import size_in_words

NO_ROOM = re.compile(r"No space left|quota exceeded", re.IGNORECASE)
"""What errors say that come without a number, such as those of safetensors."""
SMALL_FILES = 1 << 20
"""Bytes that a checkpoint or an export takes besides its tensors."""


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
