"""Stop and save requests: a signal or a file anywhere becomes one decision of all ranks."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from train.errors import DONE
from train.lock import Lock

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from train.distributed.process_group import Ranks

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
FILES = ("SAVE", "STOP")
STARTED = time.time()


GRACE = 3.0
"""Seconds for Python to see a signal; torch's waiting for other ranks hides it until its limit."""


class Stopped(BaseException):
    """A signal came while no other rank waited for this one; no `except Exception` takes it."""


class EarlySignals:
    """Takes the signals until `train.lifecycle.signals` does; within a `with` statement."""

    def __init__(self, end: Callable[[str], None]) -> None:
        """Call `end` with the signal's name where Python sees nothing of it in time."""
        self._end = end
        self._signal: signal.Signals | None = None
        self._meeting = False
        self._over = threading.Event()

    def __enter__(self) -> Self:
        """Take the signals over."""
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        # What is written here is written at once, whatever the main thread is busy with.
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(reader,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """End watching, however it ended."""
        self.over()

    def meet(self) -> None:
        """Stop raising on a signal: from now on other ranks may wait for this one."""
        self._meeting = True

    def over(self) -> signal.Signals | None:
        """End watching; return a signal that came while the ranks met."""
        if not self._over.is_set():
            self._over.set()
            signal.set_wakeup_fd(-1)
            os.close(self._writer)
        return self._signal

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signal = signal.Signals(number)
        if not self._meeting:
            raise Stopped(self._signal.name)

    def _watch(self, reader: int) -> None:
        """End the process where a signal came and the main thread does not get to it."""
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            while came := pipe.read(1):
                if came[0] in SIGNALS and not self._over.wait(GRACE):
                    self._end(signal.Signals(came[0]).name)
                    Lock.release_all()
                    os._exit(DONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopDecision:
    """What was asked for, the same on every rank."""

    stop: bool = False
    save: bool = False

    def __or__(self, other: StopDecision) -> StopDecision:
        """Do what either asks for."""
        return StopDecision(stop=self.stop or other.stop, save=self.save or other.save)


class StopListener:
    """Collects the requests of users and launchers while this process trains.

    SIGTERM, SIGUSR1, SIGINT and a file STOP end the run with a checkpoint; a file SAVE writes one
    and the run continues. Files are looked for in the run's folder and in the current one.
    """

    def __init__(self, ranks: Ranks, output: Path) -> None:
        self.reason = ""
        """Why the run is stopped, once all ranks agree that it is."""
        self._ranks = ranks
        self._folders = tuple(dict.fromkeys((output.resolve(), Path.cwd())))
        self._signal: signal.Signals | None = None
        self._files: frozenset[str] = frozenset()
        self._looked = 0.0

    def listen(self, early_signals: EarlySignals) -> None:
        """Take the signals over, and remove files that were meant for an earlier run."""
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        came = early_signals.over()
        self._signal = self._signal or came
        if self._ranks.is_leader:
            for folder in self._folders:
                for name in FILES:
                    _remove_old(folder / name)

    def vote(self) -> list[float]:
        """Return this rank's vote, to be summed over all ranks."""
        files = self._look()
        return [float(self._signal is not None or "STOP" in files), float("SAVE" in files)]

    def decide(self, sums: list[float]) -> StopDecision:
        """Turn the sums into the decision; the ranks that asked give the reason."""
        decision = StopDecision(stop=sums[0] > 0, save=sums[1] > 0)
        if decision.stop and not self.reason:
            mine = self._signal.name if self._signal else "STOP file" * ("STOP" in self._files)
            self.reason = " and ".join(dict.fromkeys(filter(None, self._ranks.gather(mine))))
        if (decision.stop or decision.save) and self._ranks.is_leader:
            self._files = frozenset()
            for folder in self._folders:
                for name in FILES[: 1 + decision.stop]:
                    _remove(folder / name)
        return decision

    def agree(self) -> StopDecision:
        """Ask all ranks now, where no other sum carries the question along."""
        return self.decide(self._ranks.sum(self.vote()))

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._signal is signal.SIGINT:
            # A second Ctrl-C: the user does not want to wait for the checkpoint.
            raise KeyboardInterrupt
        self._signal = signal.Signals(number)

    def _look(self) -> frozenset[str]:
        """Look for the files, at most once a second: the folder may be far away."""
        now = time.monotonic()
        if self._ranks.is_leader and now - self._looked >= 1:
            self._looked = now
            self._files = frozenset(
                name for name in FILES for folder in self._folders if (folder / name).is_file()
            )
        return self._files


def _remove_old(path: Path) -> None:
    """Remove a file that was meant for an earlier run."""
    with contextlib.suppress(FileNotFoundError):  # another node was faster
        if path.is_file() and path.stat().st_mtime < STARTED:
            print(f"{path}: older than this run, removed", file=sys.stderr)
            _remove(path)


def _remove(path: Path) -> None:
    """Remove a file that was read; one that stays must not end this rank alone."""
    try:
        if path.is_file():
            path.unlink(missing_ok=True)
    except OSError as error:
        print(f"{path}: could not be removed: {error}", file=sys.stderr)
