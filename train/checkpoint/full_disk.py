"""Names a full disk, which torch reports as a position in a file that it did not expect."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from torch.distributed.tensor import DTensor

from train.model.memory import size_in_words

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from torch import Tensor

OF_TORCH = ("inline_container", "PytorchStreamWriter")
"""Parts of what torch's writer of files says if a file does not take all bytes."""


def size_here(state: Iterable[Tensor]) -> int:
    """Return the bytes that this rank writes of tensors."""
    return sum((t.to_local() if isinstance(t, DTensor) else t).nbytes for t in state)


def words(error: BaseException, folder: Path, needed: int) -> str:
    """Return which disk is full; "" if the error is another one.

    Args:
        error: Of a write.
        folder: Where.
        needed: Bytes that were to be written.
    """
    full = isinstance(error, OSError) and error.errno == errno.ENOSPC
    if not full and not any(part in str(error) for part in OF_TORCH):
        return ""
    try:
        about = os.statvfs(folder)
    except OSError:
        return ""
    free = about.f_bavail * about.f_frsize
    if free >= needed:  # then it is a quota, or there is no inode: the error itself says more
        return ""
    place = folder.resolve()
    mount = next(path for path in (place, *place.parents) if path.is_mount())
    room = f"free {size_in_words(free)}, needs {size_in_words(needed)}"
    return f"No space left on {mount} ({room})"
