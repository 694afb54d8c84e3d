"""Waits for the words that starting processes write to pipes."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path
from typing import Self

from clusterctl.errors import ClusterError

START_SECONDS = 20.0


class Waiting:
    """Pipes from processes that are starting; waits for all of them together."""

    def __init__(self) -> None:
        self._ends: dict[int, tuple[str, Path]] = {}
        self._said: dict[int, str] = {}
        self._theirs: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for end in (*self._ends, *self._theirs):
            os.close(end)

    def expect(self, name: str, log: Path) -> int:
        """Return the descriptor that the process called `name` writes to."""
        ours, theirs = os.pipe()
        self._ends[ours], self._said[ours] = (name, log), ""
        self._theirs.append(theirs)
        return theirs

    def until(self, word: str) -> None:
        """Wait until every process has written the word.

        Raises:
            ClusterError: a process exited or wrote nothing in time; with its log.
        """
        while self._theirs:
            os.close(self._theirs.pop())
        deadline = time.monotonic() + START_SECONDS
        while silent := [end for end, said in self._said.items() if word not in said]:
            readable, _, _ = select.select(silent, [], [], max(0.0, deadline - time.monotonic()))
            for end in readable or silent[:1]:
                data = os.read(end, 64).decode() if readable else ""
                if not data:
                    name, log = self._ends[end]
                    raise ClusterError(f"{name} did not start: {log.read_text().strip()}")
                self._said[end] += data
