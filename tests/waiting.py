"""Waits in a test until something holds, also on a machine that is busy or slow."""

from __future__ import annotations

import time
from collections.abc import Callable

BUSY = 300.0
"""Seconds that any step of a test may take. Only a test that fails waits so long."""


def wait_until(
    condition: Callable[[], object],
    seconds: float = BUSY,
    *,
    why: Callable[[], object] = lambda: "it never came true",
) -> None:
    """Wait until a function returns something true; `why` says what is there instead.

    What must end at once gets few `seconds`: left behind, it would end by itself later on.
    """
    until = time.monotonic() + seconds
    asked = time.monotonic()
    while not condition():
        now = time.monotonic()
        assert now < until, why()
        # To ask may start processes: what is waited for gets more of the machine than that.
        time.sleep(min(max(0.02, 3 * (now - asked)), 1.0))
        asked = time.monotonic()
