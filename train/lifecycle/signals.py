"""Stop and save requests: a signal or a file anywhere becomes one decision of all ranks."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Self

from train.errors import DONE, INTERRUPTED
from train.lifecycle.resume_command import resume_command
from train.lock import Lock

if TYPE_CHECKING:
    from train.distributed.process_group import Ranks

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
FILES = ("SAVE", "STOP")
STARTED = time.time()


GRACE = 3.0
"""Seconds for Python to see a signal; torch's waiting for other ranks hides it until its limit."""


class Stopped(BaseException):
    """A signal came while no other rank waited for this one; no `except Exception` takes it."""


class SignalWatch:
    """Hears each signal at once: the main thread may be busy until the end of a step."""

    def __init__(self, heard: Callable[[signal.Signals], None]) -> None:
        """Call `heard` in a thread of its own, with one signal after the other."""
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        # What is written here is written at once, whatever the main thread is busy with.
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        threading.Thread(target=self._listen, args=(reader, heard), daemon=True).start()

    def close(self) -> None:
        """Hear nothing more."""
        signal.set_wakeup_fd(-1)
        os.close(self._writer)

    @staticmethod
    def _listen(reader: int, heard: Callable[[signal.Signals], None]) -> None:
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            while came := pipe.read(1):
                if came[0] in SIGNALS:
                    heard(signal.Signals(came[0]))


class EarlySignals:
    """Takes the signals until `StopListener` does; within a `with` statement."""

    def __init__(self, end: Callable[[str], None]) -> None:
        """Call `end` with the signal's name if Python sees nothing of it in time."""
        self._end = end
        self._signal: signal.Signals | None = None
        self._meeting = False
        self._over = threading.Event()

    def __enter__(self) -> Self:
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        self._watch = SignalWatch(self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        self.over()

    def meet(self) -> None:
        """Stop raising on a signal: from now on other ranks may wait for this one."""
        self._meeting = True

    def over(self) -> signal.Signals | None:
        """End watching; return a signal that came while the ranks met."""
        if not self._over.is_set():
            self._over.set()
            self._watch.close()
        return self._signal

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signal = signal.Signals(number)
        if not self._meeting:
            raise Stopped(self._signal.name)

    def _heard(self, number: signal.Signals) -> None:
        """End the process if a signal came and the main thread does not get to it."""
        if not self._over.wait(GRACE):
            self._end(number.name)
            Lock.release_all()
            os._exit(DONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopDecision:
    """What was asked for, the same on every rank."""

    stop: bool = False
    save: bool = False

    def __or__(self, other: StopDecision) -> StopDecision:
        return StopDecision(stop=self.stop or other.stop, save=self.save or other.save)


class StopListener:
    """Collects the requests of users and launchers while this process trains.

    SIGTERM, SIGUSR1, SIGINT and a file STOP end the run with a checkpoint; a file SAVE writes one
    and the run continues. Files are looked for in the run's folder and in the current one.
    """

    def __init__(self, ranks: Ranks, output: Path, end: Callable[[str], None]) -> None:
        """Call `end` with the reason if a second Ctrl-C ends this process abruptly."""
        self.reason = ""
        """Why the run is stopped, once all ranks agree that it is."""
        self.doing = "stopping before the first step"
        """What a signal leads to now, as a line says it."""
        self.newest: Callable[[], tuple[int, str]] = lambda: (0, "")
        """Returns the newest whole checkpoint's step, and what to resume from; nothing before the
        history of this training is known."""
        self._ranks = ranks
        self._end = end
        self._folders = tuple(dict.fromkeys((output.resolve(), Path.cwd())))
        self._signal: signal.Signals | None = None
        self._announced: signal.Signals | None = None
        self._files: frozenset[str] = frozenset()
        self._looked = 0.0
        self._over = threading.Event()

    def listen(self, early_signals: EarlySignals) -> None:
        """Take the signals over, and remove files that were meant for an earlier run."""
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        came = early_signals.over()
        self._signal = self._signal or came
        if self._signal:
            self._announce(self._signal)
        self._watch = SignalWatch(self._heard)
        if self._ranks.is_leader:
            for folder in self._folders:
                for name in FILES:
                    _remove_old(folder / name)

    def listen_again(self, doing: str) -> None:
        """Take the next signal for a new request: the one before, if any, has been obeyed."""
        self._signal = self._announced = None
        self.doing = doing

    def close(self) -> None:
        """Report signals no longer: the training is over."""
        if not self._over.is_set():
            self._over.set()
            self._watch.close()

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
        """Ask all ranks now, if no other sum carries the question along."""
        return self.decide(self._ranks.sum(self.vote()))

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._signal is signal.SIGINT:
            # A second Ctrl-C: the user does not want to wait for the checkpoint.
            raise KeyboardInterrupt(self._loss())
        self._signal = signal.Signals(number)

    def _heard(self, number: signal.Signals) -> None:
        """Print what a signal does; see to it that a second Ctrl-C ends the process soon."""
        if number is not signal.SIGINT or self._announced is not signal.SIGINT:
            self._announce(number)
            return
        self._print(f"stopped at once: {self._loss()}\nhint: {self._hint()}")
        if not self._over.wait(GRACE):
            self._end(f"KeyboardInterrupt: {self._loss()}")
            Lock.release_all()
            os._exit(INTERRUPTED)

    def _announce(self, number: signal.Signals) -> None:
        if number is not self._announced:
            self._announced = number
            step, _ = self.newest()
            risk = ""
            if self._ranks.env.launched:  # its own Ctrl-C and patience come first
                risk = f"; if the launcher ends it earlier, what came after step {step} is lost"
            elif number is signal.SIGINT:
                risk = f"; Ctrl-C again stops at once, and loses what came after step {step}"
            self._print(f"{number.name}: {self.doing}{risk}")

    def _loss(self) -> str:
        step, _ = self.newest()
        return f"what came after step {step} is lost"

    def _hint(self) -> str:
        _, checkpoint = self.newest()
        return resume_command(checkpoint, launched=self._ranks.env.launched)

    def _print(self, text: str) -> None:
        """Print on the first rank of a node, past the buffer that the main thread may be in."""
        if self._ranks.is_leader:
            with contextlib.suppress(OSError):
                os.write(sys.stderr.fileno(), f"{text}\n".encode())

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
