"""Looks for the patterns of a job in what ranks printed last, each for a limited time.

A pattern may take endlessly long on some lines, so this runs in a child of the supervisor.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Sequence

from clusterctl.node.time_limit import LINE_CHARACTERS, time_limit

PATTERN_SECONDS = 1.0
"""How long one pattern may take in all lines."""


def find_patterns(patterns: Sequence[str], lines: Sequence[str]) -> Dict[str, Any]:
    """Return what `FoundPatterns` holds."""
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
    with time_limit(PATTERN_SECONDS):
        compiled = re.compile(pattern)
        return any(compiled.search(line[:LINE_CHARACTERS]) for line in lines)
