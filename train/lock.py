"""A lock file in a folder that several machines may share: one living process owns it at a time.

The file names its owner, which touches it as long as it lives. A process of the same machine is
looked for itself, so that what a killed one held is free at once; of another machine's process
only the touches are visible, on the watcher's own clock. Processes that do not share the folder
see no lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

BEAT = 1.0
LOST = 20.0
"""Seconds without a touch until another machine's process counts as exited."""
LOOK = 0.25
PATIENCE = 2.0
"""Seconds that a process about to exit waits for its files to be removed: a disk may hang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process, distinguished from a later one with its number."""

    host: str
    machine: str
    """This boot of the host, and the container in it, in which the number is valid."""
    pid: int
    began: str
    """When, in the kernel's own clock."""

    @classmethod
    def here(cls) -> Process:
        """Return this process."""
        host, pid = socket.gethostname(), os.getpid()
        boot, container = "", ""
        with contextlib.suppress(OSError):  # not on Linux
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            container = str(Path("/proc/self/ns/pid").readlink())
        machine = f"{host} {boot} {container}"
        return cls(host=host, machine=machine, pid=pid, began=_began(pid))

    @classmethod
    def parse(cls, text: str | bytes) -> Process | None:
        """Read what `text` wrote; None for anything else."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return None

    def text(self) -> str:
        """Return what `parse` reads."""
        return json.dumps(asdict(self))

    def lives(self) -> bool:
        """Return whether it does; only for a process of this machine."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # another user's
        return self.began == _began(self.pid)


class Lock:
    """A lock, as one process sees it."""

    _held: set[Lock] = set()  # noqa: RUF012  (of this process)

    def __init__(self, path: Path, *, lost: float | None = None) -> None:
        """Use this file; of another machine, a file untouched for `lost` seconds is free."""
        self.path = path
        self.owner: Process | None = None
        """Who had it at the last try; None if the file does not say."""
        self.alive: bool | None = None
        """Whether the owner lived at the last try; None: not known yet, so try again later."""
        self._lost = LOST if lost is None else lost
        self._mine = Process.here()
        self._text = ""
        self._seen: tuple[int, float] | None = None
        self._over = threading.Event()

    def take(self) -> bool:
        """Become the owner, if there is none; touch the file until `release`."""
        while (handle := self._make()) is None:
            text, touched = self._look()
            if touched is None:
                continue  # released just now; a file of that name would be a new owner's
            self.alive = self._is_alive(text, touched)
            if self.alive is not False:
                return False
            self._remove(text, touched)
        self._over = threading.Event()
        threading.Thread(target=_beat, args=(handle, self._over), daemon=True).start()
        return True

    def _make(self) -> int | None:
        self._text = self._mine.text()
        Lock._held.add(self)  # before there is a file: a signal may raise at any moment
        try:
            handle = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except OSError as error:
            Lock._held.discard(self)
            if isinstance(error, FileExistsError):
                return None
            raise
        os.write(handle, self._text.encode())
        return handle

    def _is_alive(self, text: str, touched: int) -> bool | None:
        self.owner = Process.parse(text)
        if self.owner and self.owner.machine == self._mine.machine:
            return self.owner.lives()
        now, before = time.monotonic(), self._seen
        if before is None or before[0] != touched:
            self._seen = (touched, now)
            return None if before is None else True
        return False if now - before[1] > self._lost else None

    def release(self) -> None:
        """Give it back; do nothing if it is not ours, or another process has taken it over."""
        if self not in Lock._held:
            return
        self._over.set()
        with contextlib.suppress(OSError):
            self._remove(self._text)
        Lock._held.discard(self)  # last: a signal may raise before the file is removed

    @staticmethod
    def release_all() -> None:
        """Give back what this process holds, before it exits without unwinding."""

        def release() -> None:
            for lock in tuple(Lock._held):
                lock.release()

        thread = threading.Thread(target=release, daemon=True)
        thread.start()
        thread.join(PATIENCE)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Wait until it is ours, and hold it."""
        while not self.take():
            time.sleep(LOOK)
        try:
            yield
        finally:
            self.release()

    def _look(self) -> tuple[str, int | None]:
        """Return what the file holds and when it was touched; NFS asks its server at an open."""
        try:
            with self.path.open() as file:
                return file.read(), os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:
            return "", None

    def _remove(self, text: str, touched: int | None = None) -> None:
        """Remove the file that was read: of many that try, one does, and only that file."""
        mode = "r+" if os.access(self.path, os.W_OK) else "r"  # NFS locks what is open for writing
        with contextlib.suppress(FileNotFoundError), self.path.open(mode) as file:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            about = os.fstat(file.fileno())
            is_same = file.read() == text and touched in {None, about.st_mtime_ns}
            # As long as it is open here, no new file has its number.
            if is_same and self.path.stat().st_ino == about.st_ino:
                self.path.unlink()


def _beat(handle: int, over: threading.Event) -> None:
    """Touch this process's file, and never the one of another that took over its name."""
    while not over.wait(BEAT):
        with contextlib.suppress(OSError):
            os.utime(handle)
    with contextlib.suppress(OSError):
        os.close(handle)


def _began(pid: int) -> str:
    """Return when a process began; nothing for one that has exited, or without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in {"Z", "X"} else fields[19]
