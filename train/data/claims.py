"""Share work between processes that may or may not see the same folder, with no words exchanged.

Whoever makes the claim file does the work and touches the file while at it. A claim that nobody
has touched for a while belongs to somebody who is gone, and is taken over. Processes that do not
share the folder see no claims and do everything themselves, so nobody has to know which it is.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from typing import TYPE_CHECKING

from train.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BEAT = 1.0
LOST = 20.0
"""Seconds without a touch until a claim is taken over, on the watcher's own clock."""
LOOK = 0.1
PATIENCE = 120.0
"""Seconds without any sign of life until waiting is given up."""


class Claims:
    """The claims in one folder, as seen by one process."""

    def __init__(self, folder: Path, *, lost: float = LOST) -> None:
        """Watch the folder; a claim untouched for `lost` seconds is free again."""
        self._folder = folder
        self._lost = lost
        self._seen: dict[str, tuple[int, float]] = {}

    @contextlib.contextmanager
    def take(self, name: str) -> Iterator[bool]:
        """Claim a piece of work; yields whether it is ours to do."""
        path = self._path(name)
        if self._is_lost(name):
            path.unlink(missing_ok=True)
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            yield False
            return
        with os.fdopen(handle, "w") as file:
            file.write(f"{socket.gethostname()} {os.getpid()}\n")
        with beating(path):
            yield True

    def _is_lost(self, name: str) -> bool:
        """Whether the claim has not been touched for too long, by our own clock alone."""
        try:
            touched = self._path(name).stat().st_mtime_ns
        except FileNotFoundError:
            self._seen.pop(name, None)
            return False
        last, since = self._seen.setdefault(name, (touched, time.monotonic()))
        if last != touched:
            self._seen[name] = (touched, time.monotonic())
            return False
        return time.monotonic() - since > self._lost

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.claim"


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
