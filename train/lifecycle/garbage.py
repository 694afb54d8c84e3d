"""Python's garbage, collected on all ranks in the same step: a pause of one keeps all waiting."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

EVERY = 50
"""Steps, or batches of an evaluation, between two collections."""


@contextmanager
def collected_by_steps() -> Iterator[None]:
    """Let Python collect nothing by itself, which it would do on each rank at another moment."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def collect_young(number: int) -> None:
    """Collect what has become garbage lately, after every so many steps or batches."""
    if number % EVERY == 0:
        gc.collect(1)


def collect_all() -> None:
    """Collect all garbage, at a moment when the ranks do something slow anyway."""
    gc.collect()
