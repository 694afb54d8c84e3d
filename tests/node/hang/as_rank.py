"""Stands in for a rank of NCCL that is asked for its flight recorder."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self


class AsRank:
    """Does what torch's monitor thread does: it polls its pipe, and then writes the file."""

    def __init__(self, pipe: str, file: Path, data: bytes) -> None:
        os.mkfifo(pipe)
        self._descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self._file, self._data = file, data
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._poll)

    def _poll(self) -> None:
        while not self._over.wait(0.02):
            if os.read(self._descriptor, 128):
                self._file.write_bytes(self._data[:99])  # a reader must wait for all of it
                self._over.wait(0.1)
                self._file.write_bytes(self._data)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        os.close(self._descriptor)
