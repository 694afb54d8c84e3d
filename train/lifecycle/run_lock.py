"""One run at a time owns an output folder: a second one is refused while the first is alive."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from train.errors import ConfigError
from train.lock import LOOK, LOST, Lock

NAME = ".owner"


def take(output: Path, *, lost: float = LOST) -> Callable[[], None]:
    """Become the owner of a folder, waiting `lost` seconds for an owner that may have exited.

    Returns:
        What releases it.
    """
    lock, said = Lock(output / NAME, lost=lost), False
    try:
        output.mkdir(parents=True, exist_ok=True)
        while not lock.take():
            if lock.alive:
                found = f"{_owner(lock)} in {output}"
                raise ConfigError(
                    f"output_dir: expected a folder that no other run uses, found {found}",
                    hint="wait for its end, stop it, or choose another output_dir",
                )
            if not said:
                said = True
                print(
                    f"{output}: {_owner(lock)} has it; waiting {lost:.0f} s for a sign of life",
                    file=sys.stderr,
                )
            time.sleep(LOOK)
    except OSError as error:
        raise ConfigError(f"output_dir: expected a folder to write to, found: {error}") from error
    return lock.release


def _owner(lock: Lock) -> str:
    return f"process {lock.owner.pid} on {lock.owner.host}" if lock.owner else "another process"
