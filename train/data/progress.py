"""How far the preparation of a data set is: reported every few seconds, if it takes long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

FIRST = 1.5
"""Seconds until the first report: a small data set is prepared without any."""
EVERY = 5.0
"""Seconds between two reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What is done with a data set, and how far that is."""

    name: str
    """`reading`, `tokenizing` or `verifying`."""
    dataset: str
    """What messages call the data set."""
    seconds: float
    """Since it began."""
    size: int = 0
    """Bytes, if it is not rows that are counted."""
    rows: int = 0
    total: int = 0
    """Rows that are done, whichever process or node did them, and all rows."""
    rate: float = 0.0
    """Rows a second, since this process began to watch."""
    over: bool = False

    def words(self) -> str:
        """Return it as a line of the log."""
        took = duration(self.seconds)
        speed = f", {self.rate:,.0f} rows/s" if self.rate else ""
        if not self.total:
            return f"{self.name} {self.dataset}: {self.size / 2**30:.2f} GiB, {took} so far"
        if self.over:
            return f"{self.name} {self.dataset}: all {self.total:,} rows in {took}{speed}"
        left = f", {duration((self.total - self.rows) / self.rate)} left" if self.rate else ""
        return f"{self.name} {self.dataset}: {self.rows:,} of {self.total:,} rows{speed}{left}"

    def about(self) -> dict[str, str | int]:
        """Return it as status.json has it."""
        counted = {"rows": self.rows, "total": self.total} if self.total else {}
        return {"name": self.name, "dataset": self.dataset, **counted}


def duration(seconds: float) -> str:
    """Return seconds as 1:02:03."""
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporter:
    """Reports on one data set; a process without a reader prints nothing."""

    dataset: str = ""
    report: Callable[[Phase], None] | None = None

    @contextmanager
    def during(
        self, name: str, *, size: int = 0, total: int = 0, rows: Callable[[], int] = int
    ) -> Iterator[None]:
        """Report on the work within, from a thread: the work itself may wait or compute."""
        report = self.report
        if report is None:
            yield
            return
        began = time.monotonic()
        over = threading.Event()
        reported = False
        since, first = began, rows()
        done = first

        def send(*, last: bool) -> None:
            nonlocal reported, since, done
            now = time.monotonic()
            with suppress(OSError):  # a folder that does not answer now may do so the next time
                done = total if last else min(total, max(done, rows()))
            if done == first:  # the tokenizer is being loaded
                since = now
            rate = (done - first) / (now - since) if now > since else 0.0
            seconds = now - began
            how_far = Phase(
                name=name, dataset=self.dataset, seconds=seconds, size=size, rows=done,
                total=total, rate=rate, over=last,
            )  # fmt: skip
            report(how_far)
            reported = True

        def watch() -> None:
            pause = FIRST
            while not over.wait(pause):
                send(last=False)
                pause = EVERY

        watching = threading.Thread(target=watch, name=name, daemon=True)
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()
        if reported and total:
            send(last=True)


SILENT = Reporter()
