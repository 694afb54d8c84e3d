"""Uploads during a training: a process for each checkpoint, so no step waits for a store."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import train
from train.checkpoint import manifest
from train.errors import DONE, without_credentials
from train.lifecycle.status import Status
from train.object_store import growing

State = Literal["uploading", "done", "failed"]
LOOK = 0.2
NEWS = 60.0
"""Seconds between two lines while the end of the training waits for an upload."""
PATIENCE_AFTER_ERROR = 60.0


class Uploads:
    """Uploads the newest checkpoint, one at a time, on rank 0; within a `with` statement."""

    def __init__(
        self,
        url: str,
        status: Status,
        record: Callable[[dict[str, Any]], None],
        *,
        patience: float,
        gives_up: Callable[[], bool],
    ) -> None:
        """Upload below a URL; at the end wait for `patience` seconds, unless asked to give up."""
        self.current: Path | None = None
        """What is being read, and must not be removed."""
        self._url = url
        self._status = status
        self._record = record
        self._patience = patience
        self._gives_up = gives_up
        self._changed = threading.Condition()
        self._next: Path | None = None
        self._over = False
        self._process: subprocess.Popen[str] | None = None
        threading.Thread(target=self._work, name="uploads", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._finish(self._patience if kind is None else min(self._patience, PATIENCE_AFTER_ERROR))

    def add(self, folder: Path) -> None:
        """Upload a whole checkpoint next; an older one that waits for its turn is skipped."""
        with self._changed:
            self._next = folder
            self._changed.notify()

    def _finish(self, limit: float) -> None:
        """Wait for the last upload, and end it if that takes too long."""
        began, news = time.monotonic(), 0.0
        while (folder := self._left()) and not self._over:
            waited = time.monotonic() - began
            if waited >= limit or self._gives_up():
                why = "stopped" if waited < limit else f"not done within {limit:.0f} s"
                url = without_credentials(self._url)
                by_hand = f"hint: python -m train.tools.upload {folder} {url}"
                self._over = True
                self._say(folder, "failed", f"{why}; {folder} is whole\n{by_hand}")
            elif waited >= news:
                news = waited + NEWS
                self._say(folder, "uploading", f"waiting up to {limit - waited:.0f} s for its end")
            time.sleep(LOOK)
        with self._changed:
            self._over = True
            self._changed.notify()
            if self._process:
                self._process.kill()

    def _is_asked(self) -> bool:
        """Whether another thread ended the uploads, or has a newer checkpoint to upload."""
        return self._over or self._next is not None

    def _left(self) -> Path | None:
        with self._changed:
            return self._next or self.current

    def _work(self) -> None:
        while not self._over:
            with self._changed:
                self._changed.wait_for(self._is_asked)
                folder, self._next = self._next, None
                self.current = folder
            if folder is None:
                return
            for wait in growing():
                try:
                    code = self._upload(folder)
                    ended = f"its process was ended by signal {-code}"
                except OSError as error:  # no process can be started
                    code, ended = -1, str(error)
                if code >= 0 or self._is_asked():
                    break
                self._say(folder, "uploading", f"{ended}; trying again in {wait:.0f} s")
                time.sleep(wait)
            self.current = None

    def _upload(self, folder: Path) -> int:
        """Run one process to its end; return its exit code."""
        began, tries, line = time.monotonic(), 1, ""
        process = start(["-m", "train.tools.upload", str(folder), self._url])
        with self._changed:
            self._process = process
            if self._over:
                process.kill()
        assert process.stdout
        with process:
            self._say(folder, "uploading", "")
            for line in process.stdout:
                tries += "trying again" in line
                if not self._over:
                    self._say(folder, "uploading", line.strip())
        code = process.returncode
        if code >= 0 and not self._over:
            self._say(folder, "done" if code == DONE else "failed", line.strip(), prints=False)
            record = {
                "kind": "upload", "time": time.time(), "step": manifest.step_of(folder),
                "ok": code == DONE, "upload_s": time.monotonic() - began, "upload_tries": tries,
            }  # fmt: skip
            self._record(record)
        return code

    def _say(self, folder: Path, state: State, said: str, *, prints: bool = True) -> None:
        """Print what happens, and keep the last of it in status.json."""
        if said and prints:
            print(f"upload of {folder.name}: {said}", flush=True)
        about = {"step": manifest.step_of(folder), "state": state, "said": said.partition("\n")[0]}
        self._status.set_upload(about)


def start(words: Sequence[str]) -> subprocess.Popen[str]:
    """Start a program of train/ that ends with this process, and hears none of its signals."""
    here = str(Path(train.__file__).parents[1])
    paths = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, *words, "--until-eof"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        process_group=0,
        env={**os.environ, "PYTHONPATH": paths},
    )
