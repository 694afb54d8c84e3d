"""The batches of a stream: those of samples that are all there, taken window by window."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from train.config.batch_size import BatchSize
from train.config.config import Config
from train.data import dataset, hub, tally, token_cache, tokenizer_workers
from train.data.batches import Batches, Pool, Position, Step
from train.data.collate import MULTIPLE, Batch
from train.data.dataset import Corpus, Tokenizer
from train.data.fingerprint import nothing
from train.data.mixture import Mixture, Sizes
from train.data.progress import Phase
from train.data.stream import windows
from train.data.stream.windows import Maker, Place, Source
from train.data.token_store import Ints
from train.distributed.env import RankEnv, node_name
from train.errors import CheckpointError, ConfigError, StreamError, counted


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCorpus(Corpus):
    """What is known of a stream before its training: its first window with samples."""

    source: Source


def prepare(
    config: Config,
    env: RankEnv,
    tokenizer: Any = None,
    *,
    attempt: str = "",
    check: Callable[[], None] = nothing,
    report: Callable[[Phase], None] | None = None,
) -> Corpus:
    """Open the first window, and tokenize what is evaluated on, as `dataset.prepare` does.

    `attempt` is a word that the ranks of this start have in common, and no earlier one had.
    """
    model = hub.model_folder(config)
    located, *held_out = dataset.locate(config)
    load = Tokenizer(model, config, tokenizer)
    evaluation = [
        dataset.open_set(config, env, model, each, load, check, report) for each in held_out
    ]
    source = Source.of(config, located, load, attempt)
    if env.local_rank == 0:
        source.forget_earlier()
    place, notes = Place(), []
    while True:
        window = source.open(place, makes=env.local_rank == 0, check=check)
        notes += tally.notes_of(f"{located.label}, first lines", config, [window.about])
        if len(window.tokens):
            break
        place = window.next
        if place.epoch:
            raise ConfigError(
                *notes, f"{located.label}: expected samples to learn from, found none"
            )
    about = {"files": source.files, **token_cache.tokens_of(config, model, located.rules)}
    keys = (json.dumps(about, sort_keys=True), *(key for key, *_ in evaluation))
    return StreamCorpus(
        train=Mixture([window.tokens]),
        eval=Mixture([samples for _, samples, _ in evaluation]) if evaluation else None,
        key=hashlib.sha256("".join(keys).encode()).hexdigest(),
        train_key=hashlib.sha256(keys[0].encode()).hexdigest(),
        notes=(*notes, *dataset.files_taken([located, *held_out])),
        vision=load.vision,
        source=source,
    )


class Stream(Batches):
    """The batches of one rank; a step is the same whatever ranks share it."""

    def __init__(
        self, corpus: StreamCorpus, config: Config, size: BatchSize, *, rank: int, env: RankEnv,
        vocabulary: int,
    ) -> None:  # fmt: skip
        """Take what is streamed; `rank` is that of the rows, as `Batches` has it."""
        super().__init__(corpus.train, corpus.eval, config, size, rank=rank, vision=corpus.vision)
        self._source = corpus.source
        self._env = env
        self._vocabulary = vocabulary
        self._check_makers: Callable[[], None] = nothing
        self._opened: deque[tuple[Place, Place]] = deque()
        """Windows that steps are made of, and where each ends."""
        self._now: dict[Place, tuple[windows.Window, Mixture, Pool]] = {}
        self._done = multiprocessing.get_context("spawn").Value("q", 0, lock=False)

    @property
    def described(self) -> str:
        """What is trained on."""
        lines = self._config.stream_window
        order = f"shuffled within {lines} lines" if lines else "in their order"
        return f"streamed from {counted(len(self._source.located.items), 'file')}, {order}"

    @property
    def epoch_rows(self) -> int:
        """More rows than any epoch has: how many is unknown."""
        return 1 << 62

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step takes over all ranks, by the first window."""
        (pool,) = self._pools
        return pool.tokens / pool.count * self._size.total

    def largest(self) -> Batch:
        """Return a micro-batch as wide as any: longer samples may come than the first ones."""
        multiple = MULTIPLE * self._config.context_parallel
        width = -(-self._config.seq_len // multiple) * multiple
        rows = self._pools[0].longest(self._size.per_device)
        return self._collate(self._train_data, rows, packed=self._packed, multiple=width)

    @contextmanager
    def making(self, position: Position) -> Iterator[None]:
        """Have windows made ahead from a position on, by the first rank of each node."""
        begin, *_ = self._start(position)
        maker = Maker(source=self._source, begin=begin, done=self._done)
        is_maker = self._env.local_rank == 0
        count = windows.worker_count(self._env.local_world_size) if is_maker else 0
        with tokenizer_workers.running([0] * count, maker) as self._check_makers:
            yield

    def train(self, position: Position) -> Iterator[Step]:
        """Yield the steps; that the next one is wanted means that all ranks have done this one."""
        for step in super().train(position):
            yield step
            here, *_ = self._start(step.position)
            while self._opened and self._opened[0][0] != here:
                place, after = self._opened.popleft()
                if self._env.local_rank == 0:
                    self._source.forget(place, after)
                    self._done.value += 1

    def _start(self, position: Position) -> tuple[Place, int, int]:
        """Return the place of a position, the rows of its window before it, and bad lines before.

        Raises:
            CheckpointError: It is a position in other files.
        """
        about: Mapping[str, Any] = position.stream or {}
        if about.get("files") != self._source.files:
            if position.consumed:
                raise CheckpointError(
                    f"{self._source.located.label}: expected the files of the checkpoint, found "
                    "others (by name or size), in which its position means nothing\n"
                    "hint: resume with the files as they were then"
                )
            about = {"place": (position.epoch,)}
        return Place(*about.get("place", ())), about.get("row", 0), about.get("bad", 0)

    def _check(self) -> None:
        """Report the end of what makes windows ahead: this rank can make them, too, but slowly."""
        try:
            self._check_makers()
        except RuntimeError as error:
            print(
                f"warning: {error}; {node_name()} makes the windows of the stream late", flush=True
            )
            self._check_makers = nothing

    def _open(self, place: Place, bad: int) -> tuple[windows.Window, Mixture, Pool]:
        """Return a window, and its samples; refuse it on all ranks alike."""
        if place in self._now:
            return self._now[place]
        window = self._source.open(place, makes=self._env.local_rank == 0, check=self._check)
        label = self._source.located.label
        tally.notes_of(label, self._config, [window.about], before=bad)
        if self._env.rank == 0:
            for _, where, reason in window.about["bad"][: tally.SHOWN]:
                print(f"left out: {where}: {reason}", flush=True)
        if window.about["largest"] >= self._vocabulary:
            wanted = f"an embedding for token {window.about['largest']} of the data"
            raise ConfigError(f"{label}: expected {wanted}, found {self._vocabulary} embeddings")
        mixture = Mixture([window.tokens])
        shuffled = bool(self._config.stream_window) or self._packed
        pool = Pool(mixture, self._config, self._size.total, place.line, shuffled=shuffled)
        self._now[place] = window, mixture, pool
        self._opened.append((place, window.next))
        return self._now[place]

    def _take(self, position: Position) -> tuple[list[tuple[Sizes, list[Ints]]], Mixture, Position]:
        try:
            return self._following(position)
        except ConfigError as error:
            raise StreamError(*error.problems, hint=error.hint) from error

    def _following(
        self, position: Position
    ) -> tuple[list[tuple[Sizes, list[Ints]]], Mixture, Position]:
        place, row, bad = self._start(position)
        taken: list[Ints] = []
        used: list[Mixture] = []
        used_in = []
        while place.epoch == position.epoch:
            window, mixture, pool = self._open(place, bad)
            used_in.append(place)
            rows = pool.take(place.epoch, row)[: self._size.total - len(taken)]
            before = sum(map(len, used))
            taken += [numbers + before for numbers in rows]
            used += [mixture] if rows else []
            row += len(rows)
            if row < pool.count:
                break
            place, row, bad = window.next, 0, bad + len(window.about["bad"])
        consumed = position.consumed + len(taken)
        ended = place.epoch > position.epoch
        if not consumed:
            raise ConfigError(f"{self._source.located.label}: expected samples, found none")
        for done in [old for old in self._now if old not in used_in]:
            del self._now[done]
        data = used[0] if len(used) == 1 else Mixture(each for one in used for each in one.sets)
        about = {
            "files": self._source.files,
            "place": list(place),
            "row": row,
            "bad": 0 if ended else bad,
        }
        after = Position(epoch=place.epoch, consumed=0 if ended else consumed, stream=about)
        return [(data, taken)], data, after
