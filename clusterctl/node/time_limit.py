"""Limits how long a search may take: a pattern may take endlessly long on some lines."""

from __future__ import annotations

import contextlib
import signal
from typing import Iterator, NoReturn

LINE_CHARACTERS = 2000
"""Of a line in which a pattern is looked for."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Let the block run for so long; only in the main thread of a process that uses no SIGALRM.

    Raises:
        TimeoutError: it was not done.
    """
    signal.signal(signal.SIGALRM, _late)
    signal.setitimer(signal.ITIMER_REAL, seconds)  # `re` lets signals through
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _late(_number: int, _frame: object) -> NoReturn:
    raise TimeoutError
