"""One run at a time owns an output folder: a second one is refused while the first is alive.

The owner's file names its process, which touches the file as long as it lives. On the same machine
the process itself is checked, so that a killed run's folder is free at once; of another machine's
process only the touches are visible.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from train.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = ".owner"
BEAT = 1.0
LOST = 20.0
"""Seconds without a touch until another machine's process counts as exited."""
LOOK = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process, distinguished from a later one with its number."""

    host: str
    machine: str
    """This boot of the host, and the container in it: where the number means anything."""
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

    def lives(self) -> bool:
        """Return whether it does; only for a process of this machine."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # another user's
        return self.began == _began(self.pid)


def take(output: Path) -> Callable[[], None]:
    """Become the owner of a folder, waiting a little for an owner that may have exited.

    Returns:
        What releases it.

    Raises:
        ConfigError: Another run is alive in it, or nothing can be written there.
    """
    path, mine = output / NAME, Process.here()
    text = json.dumps(asdict(mine))
    try:
        output.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            except FileExistsError:
                _free(path, mine)
                continue
            with os.fdopen(handle, "w") as file:
                file.write(text)
            break
    except OSError as error:
        raise ConfigError(
            (f"output_dir: expected a folder to write to, found: {error}",)
        ) from error
    done = threading.Event()
    threading.Thread(target=_beat, args=(path, done), daemon=True).start()

    def release() -> None:
        done.set()
        with contextlib.suppress(OSError):
            if path.read_text() == text:
                path.unlink()

    return release


def _beat(path: Path, done: threading.Event) -> None:
    while not done.wait(BEAT):
        with contextlib.suppress(OSError):
            os.utime(path)


def _free(path: Path, mine: Process) -> None:
    """Remove the file of an owner that has exited.

    Raises:
        ConfigError: It is alive.
    """
    text, touched = _look(path)
    if touched is None:
        return  # it has just been removed
    owner = _parsed(text)
    if owner and owner.machine == mine.machine:
        if owner.lives():
            raise _in_use(path, owner)
    else:
        who = f"process {owner.pid} on {owner.host}" if owner else "another process"
        print(
            f"{path.parent}: {who} has it; waiting {LOST:.0f} s for a sign of life", file=sys.stderr
        )
        until = time.monotonic() + LOST
        while time.monotonic() < until:
            time.sleep(LOOK)
            _, now = _look(path)
            if now is None:
                return  # it has ended
            if now != touched:
                raise _in_use(path, _parsed(_look(path)[0]))
    _remove(path, text)


def _remove(path: Path, text: str) -> None:
    """Remove the file that was read: of many processes that try, one does, and only that file."""
    mode = "r+" if os.access(path, os.W_OK) else "r"  # NFS locks what is open for writing
    with contextlib.suppress(FileNotFoundError), path.open(mode) as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        # As long as it is open here, no new file has its number.
        if file.read() == text and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
            path.unlink()


def _in_use(path: Path, owner: Process | None) -> ConfigError:
    who = f"process {owner.pid} on {owner.host}" if owner else "another process"
    return ConfigError(
        (f"output_dir: expected a folder that no other run uses, found {who} in {path.parent}",),
        hint="wait for its end, stop it, or choose another output_dir",
    )


def _look(path: Path) -> tuple[str, int | None]:
    """Return what the file holds and when it was touched; NFS asks its server at an open."""
    try:
        with path.open() as file:
            return file.read(), os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return "", None


def _parsed(text: str) -> Process | None:
    try:
        return Process(**json.loads(text))
    except (ValueError, TypeError):
        return None


def _began(pid: int) -> str:
    """Return when a process began; nothing for one that has exited, or without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in {"Z", "X"} else fields[19]
