"""metrics.jsonl: a line for each step and evaluation, none twice however often one resumes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from train.files import write_text

NAME = "metrics.jsonl"


class Records:
    """The file of a run, appended to."""

    def __init__(self, path: Path) -> None:
        """Keep records at the path; the file is made with the first one."""
        self._path = path
        self._told = False

    def cut(self, step: int) -> None:
        """Drop what comes after a step: it is about to be done again. Torn lines go too."""
        if self._path.exists():
            kept = [record for record in read(self._path) if record["step"] <= step]
            write_text(self._path, "".join(json.dumps(record) + "\n" for record in kept))

    def add(self, record: dict[str, Any]) -> None:
        """Append a record, whole, so that a concurrent reader sees whole lines.

        A full disk must not end the training: it is reported once, and tried again with the next.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            if not self._told:
                print(f"{self._path}: cannot be written: {error}", file=sys.stderr)
            self._told = True


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file; a line that was never finished is left out."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                yield record
