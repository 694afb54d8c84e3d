"""How a training ended, in a small file that the launcher reads; and the exit codes beside it."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

State = Literal["starting", "running", "done", "preempted", "failed"]

STATUS = "status.json"

DONE = 0
"""All steps are done; or (`preempted`) all ranks agreed to stop, or they had not even met."""
UNEXPECTED = 1
"""A fault of the program or the machine; the traceback says which."""
USAGE = 2
"""The configuration, the data, the environment or the folder cannot be used."""
NODES_DIFFER = 3
"""Nodes have different code, data, models or devices, or the model cannot be sharded."""
CHECKPOINT = 4
"""No whole checkpoint to go on from, or the last one or its export could not be written."""
NON_FINITE = 5
"""A loss or gradient was not a number; nothing of it reached the weights."""


class Status:
    """The status.json of one run: written by rank 0, whole or not at all."""

    def __init__(self, output: Path, *, rank: int) -> None:
        self.step = 0
        """The last step that was done."""
        self._path = output / STATUS
        self._writes = rank == 0

    def set(self, state: State, reason: str = "") -> None:
        """Say how the run stands; what an earlier run left is gone with the first word."""
        if not self._writes:
            return
        document = {"schema": 1, "state": state, "step": self.step, "reason": reason}
        aside = self._path.with_name(f".{STATUS}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            aside.write_text(json.dumps(document | {"time": time.time()}) + "\n")
            aside.replace(self._path)
        except OSError as error:
            # The training matters more than what is said of it.
            print(f"{self._path}: cannot be written: {error}", file=sys.stderr)
