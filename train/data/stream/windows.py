"""Windows of a stream: some thousand lines, tokenized while the training computes on earlier ones.

A window is a shard of the token store, in a folder of the run, with the place where the next one
begins. Any process can make it, because its place alone decides what is in it: those of a node make
windows ahead, and those of nodes that share the folder share the work.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from train.config.config import Config
from train.data import token_cache, token_store, tokenizer_workers
from train.data.dataset import Located, Tokenizer, TokenSet
from train.data.encoding import encode_lines
from train.data.files.lines import Line, Mark
from train.data.fingerprint import nothing
from train.errors import ConfigError
from train.files import write_text
from train.lock import Lock

UNSHUFFLED = 4096
"""Lines of a window whose order stays."""
FIRST = 512
"""Lines of the first window, which the first step waits for; a later one has at most as many as
are before it."""
BYTES = 1 << 26
"""A window ends after so many, whatever lines are left: a process holds them in memory."""
AHEAD = 4
"""Windows that are made while another one is trained on."""
LOOK = 0.05
MOST_WORKERS = 8


class Place(NamedTuple):
    """Where a window begins: how often the data was read, and a mark in it."""

    epoch: int = 0
    file: int = 0
    offset: int = 0
    line: int = 0
    within: int = 0

    @property
    def mark(self) -> Mark:
        """Return it without the epoch."""
        return Mark(file=self.file, offset=self.offset, line=self.line, within=self.within)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A window, opened."""

    tokens: TokenSet
    about: dict[str, Any]
    """Its shard.json."""

    @property
    def next(self) -> Place:
        """Where the next window begins."""
        return Place(*self.about["next"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A data set that is streamed; it can be sent to another process."""

    located: Located
    config: Config
    load: Tokenizer
    folder: Path
    files: str
    """SHA-256 of the names and sizes of the files: a place is one in these."""

    @classmethod
    def of(cls, config: Config, located: Located, load: Tokenizer, attempt: str = "") -> Source:
        """Return the stream of a data set; its folder has a name of this attempt's own."""
        about = [(item.path.name, item.size, item.changes) for item in located.items]
        run = hashlib.sha256(str(Path(config.output_dir).absolute()).encode()).hexdigest()[:20]
        return cls(
            located=located,
            config=config,
            load=load,
            folder=config.tokens / f"stream-{run}-{attempt}",
            files=hashlib.sha256(repr(about).encode()).hexdigest(),
        )

    def forget_earlier(self) -> None:
        """Remove what an attempt of this run that was killed has left: it may be half-written."""
        run = self.folder.name.rpartition("-")[0]
        for folder in self.folder.parent.glob(f"{run}-*"):
            if folder != self.folder:
                shutil.rmtree(folder, ignore_errors=True)

    def order(self, epoch: int) -> list[int]:
        """Return the order of the files in an epoch."""
        numbers = np.arange(len(self.located.items))
        if self.config.stream_window:
            np.random.default_rng([self.config.seed, epoch, 2]).shuffle(numbers)
        return [int(number) for number in numbers]

    def windows(self, place: Place) -> Iterator[tuple[Place, list[Line], Place]]:
        """Yield the lines of each window from a place on, without end, and where it ends."""
        limit = self.config.stream_window or UNSHUFFLED
        while True:
            most = min(limit, max(FIRST, place.line))
            part: list[Line] = []
            size = 0
            for file, line in self.located.lines(self.order(place.epoch), place.mark):
                if len(part) == most or size >= BYTES:
                    here = Place(place.epoch, file, line.offset, line.number, line.within)
                    yield place, part, here
                    place, part, size = here, [], 0
                    most = min(limit, max(FIRST, place.line))
                part.append(line)
                size += len(line.content) if isinstance(line.content, bytes) else 0
            yield place, part, (after := Place(place.epoch + 1))
            place = after

    def folder_of(self, place: Place) -> Path:
        """Return the folder of a window."""
        return self.folder / "-".join(map(str, ("window", *place)))

    def is_made(self, place: Place) -> bool:
        """Return whether a window can be opened."""
        return (self.folder_of(place) / "shard.json").exists()

    def make(self, place: Place, part: tuple[Place, list[Line], Place] | None = None) -> None:
        """Write a window, read already or not, unless another process is at it or has done it."""
        folder = self.folder_of(place)
        token_cache.make_folder(self.folder)
        lock = Lock(folder.with_suffix(".claim"))
        try:
            if lock.take() and not self.is_made(place):
                _, lines, after = part or next(self.windows(place))
                tokenizer, rules = self.load(), self.located.rules
                encoded = encode_lines(iter(lines), rules, tokenizer, self.config)
                more = {"next": after}
                token_store.write(folder, encoded, vocab_size=len(tokenizer), more=more)
        finally:
            lock.release()

    def refuse(self, place: Place, error: ConfigError) -> None:
        """Write why there is no window: all ranks read it, and end in the same step."""
        self.folder_of(place).mkdir(parents=True, exist_ok=True)
        text = json.dumps({"problems": error.problems, "hint": error.hint})
        write_text(self.folder_of(place) / "shard.json", text)

    def open(self, place: Place, *, makes: bool, check: Callable[[], None] = nothing) -> Window:
        """Open a window; wait for it, or make it if no other process does."""
        folder = self.folder_of(place)
        while not self.is_made(place):
            check()
            if makes:
                try:
                    self.make(place)
                except ConfigError as error:
                    self.refuse(place, error)
            time.sleep(0 if self.is_made(place) else LOOK)
        about = json.loads((folder / "shard.json").read_text())
        if problems := about.get("problems"):
            raise ConfigError(*problems, hint=about["hint"])
        shard = token_store.open_shard(folder)
        index = np.load(folder / "index.npy")
        return Window(tokens=TokenSet.of((shard,), index), about=about)

    def forget(self, place: Place, after: Place) -> None:
        """Remove a window that all ranks are done with, and what was downloaded for it."""
        shutil.rmtree(self.folder_of(place), ignore_errors=True)
        order = self.order(place.epoch)
        last = after.file if after.epoch == place.epoch else len(order)
        for number in order[place.file : last]:
            self.located.items[number].forget()

    def close(self) -> None:
        """Remove all windows, and what was downloaded for them."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for item in self.located.items:
            item.forget()


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """Makes windows ahead, in a process of its own."""

    source: Source
    begin: Place
    done: Any
    """Windows that the training is done with, which the processes of a node have in common."""

    def __call__(self, _count: Callable[[int], None]) -> None:
        """Make windows until this process is ended."""
        place, number = self.begin, 0
        windows = self.source.windows(place)
        with suppress(AttributeError, OSError):
            os.nice(5)  # the ranks' own threads come first
        while True:
            while number > self.done.value + AHEAD:
                time.sleep(LOOK)
            try:
                part = next(windows)
                if number >= self.done.value:
                    self.source.make(place, part)
            except ConfigError as error:
                self.source.refuse(place, error)
                return
            *_, place = part
            number += 1


def worker_count(local_world_size: int) -> int:
    """Return how many processes of a node make windows: each rank has a CPU of its own."""
    return max(1, min(MOST_WORKERS, tokenizer_workers.cpus() - local_world_size))
