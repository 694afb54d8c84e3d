"""Looks for the patterns of a job in what ranks printed last, each for a limited time.

A pattern may take endlessly long on some lines, so this runs in a child of the supervisor.
"""

from __future__ import annotations

import re
import signal
from typing import Any, Dict, List, NoReturn, Sequence

LINE_CHARACTERS = 2000
"""Of a line in which a pattern is looked for."""
PATTERN_SECONDS = 1.0
"""How long one pattern may take in all lines."""


def find_patterns(patterns: Sequence[str], lines: Sequence[str]) -> Dict[str, Any]:
    """Return what `FoundPatterns` holds.

    The signal that limits each search belongs to this process from now on.
    """
    signal.signal(signal.SIGALRM, _late)
    told: Dict[str, List[str]] = {"found": [], "unreadable": [], "late": []}
    for pattern in patterns:
        try:
            if _is_in(pattern, lines):
                told["found"].append(pattern)
        except TimeoutError:
            told["late"].append(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            told["unreadable"].append("%r: %s" % (pattern, error))
    return told


def _is_in(pattern: str, lines: Sequence[str]) -> bool:
    signal.setitimer(signal.ITIMER_REAL, PATTERN_SECONDS)  # `re` lets signals through
    try:
        compiled = re.compile(pattern)
        return any(compiled.search(line[:LINE_CHARACTERS]) for line in lines)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _late(_number: int, _frame: object) -> NoReturn:
    raise TimeoutError
