"""How a training stands or ended, in a small file that the launcher reads."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

State = Literal["starting", "running", "done", "preempted", "failed"]

STATUS = "status.json"


class Status:
    """The status.json of one run: written by rank 0, whole or not at all."""

    def __init__(self, output: Path, *, rank: int) -> None:
        self.step = 0
        """The last step that was done."""
        self._path = output / STATUS
        self._writes = rank == 0
        self._lock = threading.RLock()
        self._document: dict[str, object] = {}
        self._upload: Mapping[str, object] = {}

    def set(
        self, state: State, reason: str = "", *, phase: Mapping[str, str | int] | None = None
    ) -> None:
        """Write how the run stands; the first call replaces what an earlier run left."""
        if not self._writes:
            return
        document: dict[str, object] = {
            "schema": 1,
            "state": state,
            "step": self.step,
            "reason": reason,
        }
        document |= {"phase": dict(phase)} if phase else {}
        with self._lock:
            self._document = document
            self._write()

    def set_upload(self, upload: Mapping[str, object]) -> None:
        """Write how the upload of a checkpoint stands, from another thread than the run's."""
        with self._lock:
            self._upload = upload
            if self._document:
                self._write()

    def _write(self) -> None:
        document = self._document | ({"upload": dict(self._upload)} if self._upload else {})
        aside = self._path.with_name(f".{STATUS}.{os.getpid()}-{threading.get_ident()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            aside.write_text(json.dumps(document | {"time": time.time()}) + "\n")
            aside.replace(self._path)
        except OSError as error:
            # The training matters more than its status.
            print(f"{self._path}: cannot be written: {error}", file=sys.stderr)
