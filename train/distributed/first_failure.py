"""Which rank failed first, and why: the others only see that a connection was closed."""

from __future__ import annotations

import socket
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed import DistError

from train.errors import AnotherRankFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.distributed_c10d import Store

KEY = "first-failure"
PATIENCE = 2.0
"""Seconds for a failing rank to say why; and for the store, whose own process may be gone."""
CONSEQUENCES = ("closed by peer", "reset by peer", "broken pipe", "timed out", "remote process")
"""What gloo says on ranks that have done nothing wrong."""


class FirstFailure:
    """The first failure of a run, kept where all ranks have met."""

    def __init__(self, store: Store, rank: int) -> None:
        self._store = store
        self._rank = rank

    def behind(self, error: BaseException) -> AnotherRankFailed | None:
        """Return the other rank's failure that an error came of; keep one that came of none."""
        if not is_consequence(error):
            text = f"{type(error).__name__}: {error}"
            who = f"rank {self._rank} on {socket.gethostname()}"
            _patiently(lambda: self._store.compare_set(KEY, "", f"{who}: {text}"))
            return None
        heard: list[str] = []
        _patiently(lambda: heard.append(self._hear()))
        return AnotherRankFailed(heard[0]) if heard else None

    def _hear(self) -> str:
        self._store.wait([KEY], timedelta(seconds=PATIENCE / 2))
        return self._store.get(KEY).decode()


def is_consequence(error: BaseException) -> bool:
    """Return whether an error may be no more than that another rank has ended."""
    if isinstance(error, DistError):
        return True
    words = str(error).lower()
    return isinstance(error, RuntimeError) and any(text in words for text in CONSEQUENCES)


def _patiently(work: Callable[[], object]) -> None:
    """Do something with the store, which may not answer any more, but not for long."""

    def attempt() -> None:
        try:
            work()
        except RuntimeError:  # (torch's own are of this kind) nobody to ask, or nothing said
            return

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(PATIENCE)
