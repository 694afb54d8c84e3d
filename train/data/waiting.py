"""Wait for the process of this node that makes a file, as long as it shows signs of life."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING

from train.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BEAT = 1.0
LOOK = 0.1
PATIENCE = 120.0
"""Seconds without any sign of life until waiting is given up."""


@contextlib.contextmanager
def beating(path: Path) -> Iterator[None]:
    """Have a file that is touched all the time: a sign of life for whoever waits."""
    path.touch()
    done = threading.Event()

    def beat() -> None:
        while not done.wait(BEAT):
            with contextlib.suppress(OSError):
                os.utime(path)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        path.unlink(missing_ok=True)


def wait_for(ready: Callable[[], bool], folder: Path, *, what: Path) -> None:
    """Wait until the first process of this node is ready, as long as its folder shows life.

    Raises:
        ConfigError: nothing has moved for `PATIENCE` seconds; `what` was waited for.
    """

    def moving() -> object:
        with contextlib.suppress(OSError):  # not there yet, or just renamed
            return sorted((i.name, i.stat().st_mtime_ns) for i in folder.iterdir())
        return None

    if not wait_until(ready, moving, patience=PATIENCE):
        raise ConfigError(
            (f"cache_dir: expected {what}, found that no process makes it",),
            hint="the first process on this node has ended: its own message says why",
        )


def wait_until(ready: Callable[[], bool], moving: Callable[[], object], *, patience: float) -> bool:
    """Wait for `ready`; give up (False) once `moving` has not changed for `patience` seconds."""
    last, since = moving(), time.monotonic()
    while not ready():
        time.sleep(LOOK)
        now = moving()
        if now != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > patience:
            return False
    return True
