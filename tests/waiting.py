"""Waits in a test until something holds, also on a machine that is busy or slow."""

from __future__ import annotations

import time
from collections.abc import Callable

BUSY = 300.0
"""Seconds that any step of a test may take. Only a test that fails waits so long."""
SOON = 30.0
"""Seconds for what must end at once: what was left behind would end by itself later on."""


def wait_until(
    condition: Callable[[], object],
    seconds: float = BUSY,
    *,
    why: Callable[[], object] = lambda: "it never came true",
) -> None:
    """Wait until a function returns something true; `why` says what is there instead."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, why()
        time.sleep(0.02)
