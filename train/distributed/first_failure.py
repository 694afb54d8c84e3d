"""Which rank failed first, and why: the others only see that a connection was closed."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from torch.distributed import DistBackendError, DistError
from torch.distributed.distributed_c10d import Store

from train.distributed.env import node_name
from train.errors import UNEXPECTED, AnotherRankFailed
from train.lock import Lock

KEY, HEARD = "first-failure", "heard-of-it"
PATIENCE = 2.0
"""Seconds for a failing rank to report why; and for the store, whose process may have exited."""
CONSEQUENCES = (
    "closed by peer", "reset by peer", "broken pipe", "timed out", "remote process",
    "monitoredbarrier",
)  # fmt: skip
"""What gloo reports on ranks that have not failed themselves."""
OF_NCCL = (*CONSEQUENCES, "closed by remote peer", "connection refused", "aborted", "timeout")
"""What NCCL reports there. Its other errors are a rank's own: memory, a GPU, a card of RDMA."""
LOOK = 1.0
"""Seconds between two looks for another rank's failure."""
GRACE = 10.0
"""Seconds for this rank to learn of it by its own collective, which ends it in better order."""


class FirstFailure:
    """The first failure of a run, kept where all ranks have met."""

    def __init__(self, store: Store, rank: int, world_size: int) -> None:
        self._store = store
        self._rank = rank
        self._others = world_size - 1

    def cause_of(self, error: BaseException) -> AnotherRankFailed | None:
        """Return the other rank's failure that an error came of; keep one that came of none."""
        if not is_consequence(error):
            text = f"{type(error).__name__}: {error}"
            _within_patience(lambda: self._store.compare_set(KEY, "", f"{self._who()}: {text}"))
            if self._rank == 0:  # the store may end with this process
                _within_patience(self._wait_until_all_heard)
            return None
        heard: list[str] = []
        _within_patience(lambda: heard.append(self._hear()))
        return AnotherRankFailed(heard[0]) if heard else None

    def watch(self, on_failure: Callable[[str], None]) -> Callable[[], None]:
        """End this process if another rank failed and this one does not learn of it.

        gloo ends a collective as soon as another process has exited. NCCL blocks, without holding
        Python's lock, until its watchdog aborts. `on_failure` is called with the cause at once, in
        another thread, while this process may still be ended from outside.

        Returns:
            What ends watching.
        """
        done = threading.Event()
        threading.Thread(target=self._watch, args=(on_failure, done), daemon=True).start()
        return done.set

    def _watch(self, on_failure: Callable[[str], None], done: threading.Event) -> None:
        while not done.wait(LOOK):
            try:
                if not self._store.check([KEY]):
                    continue
                cause = self._hear()
            except RuntimeError:
                cause = "rank 0, where the ranks met, has exited"
            if cause.startswith(f"{self._who()}:"):
                return  # this rank is about to end by itself
            if done.is_set():
                return
            on_failure(cause)
            if not done.wait(GRACE):
                print(f"error: {cause}", file=sys.stderr, flush=True)
                sys.stdout.flush()
                Lock.release_all()  # else the next start on another machine has to wait
                os._exit(UNEXPECTED)
            return

    def _who(self) -> str:
        return f"rank {self._rank} on {node_name()}"

    def _hear(self) -> str:
        self._store.wait([KEY], timedelta(seconds=PATIENCE / 2))
        cause = self._store.get(KEY).decode()
        self._store.add(HEARD, 1)
        return cause

    def _wait_until_all_heard(self) -> None:
        while self._store.add(HEARD, 0) < self._others:
            time.sleep(0.05)


def is_consequence(error: BaseException) -> bool:
    """Return whether an error may be no more than that another rank has ended."""
    words = str(error).lower()
    if isinstance(error, DistBackendError):
        # `Call to ibv_modify_qp failed with error Connection timed out` is of the network.
        return "ibv_" not in words and any(text in words for text in OF_NCCL)
    if isinstance(error, DistError):
        return True
    return isinstance(error, RuntimeError) and any(text in words for text in CONSEQUENCES)


def _within_patience(work: Callable[[], object]) -> None:
    """Do something with the store, which may not answer any more, but not for long."""

    def attempt() -> None:
        with suppress(RuntimeError):  # (torch's own too) the store has exited, or holds nothing
            work()

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(PATIENCE)
