"""The token cache: made once for each content, by whichever nodes see its folder, then verified.

Its name is a hash of the data, the tokenizer, the length and this code, so that it is never
stale. It is made of shards, each a stretch of the data that is read by itself; processes and nodes
that share the folder share the work (`train.lock`), and nodes that do not each do all of it. The
data alone decides how many shards there are: any number of processes makes the same files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import operator
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from train.config.config import Config
from train.data import fingerprint, formats, images, token_store, tokenizer_workers
from train.data.encoding import Encoded, encode_lines
from train.data.files import contents, lines
from train.data.fingerprint import LOOK, Scan, nothing, wait_for
from train.data.formats import Rules
from train.data.progress import SILENT, Reporter
from train.distributed.env import RankEnv
from train.errors import ConfigError
from train.files import measure, write_text
from train.lock import Lock
from train.versions import version

SHARD_BYTES = 1 << 20
"""So little that short chats, which take some hundred microseconds each, are work for many CPUs."""
MOST_SHARDS = 256
ALL_BAD = 100
"""So many unusable lines at the very start: the whole file is something else."""
INDEX = "index.npy"
"""A row a sample of all shards, which every rank maps into its memory."""
TOKENIZER_FILES = (
    "added_tokens.json", "chat_template.jinja", "chat_template.json", "merges.txt",
    "sentencepiece.bpe.model", "special_tokens_map.json", "spiece.model", "tekken.json",
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One set of files and where its tokens are kept."""

    files: tuple[Path, ...]
    key: str
    folder: Path
    shards: int
    scan: Scan
    start: int
    stride: int
    rules: Rules

    @property
    def complete(self) -> Path:
        """The file that is there when all shards are."""
        return self.folder / "COMPLETE"

    def shard(self, number: int) -> Path:
        """Return a shard's folder."""
        return self.folder / f"shard-{number:03}-of-{self.shards:03}"

    def is_done(self, number: int) -> bool:
        """Return whether a shard is made."""
        return (self.shard(number) / "shard.json").exists()

    def lines_of(self, number: int) -> int:
        """Return how many lines a shard is made from, those of all nodes and empty ones too."""
        begins = [mark.line for mark in self.scan.marks[number : number + 2]]
        return (begins[1] if len(begins) > 1 else self.scan.lines) - begins[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """What makes the shards of a source; it can be sent to another process."""

    source: Source
    config: Config
    env: RankEnv
    load: Callable[[], Any]
    """Returns the tokenizer."""

    def __call__(self, count: Callable[[int], None], check: Callable[[], None] = nothing) -> None:
        """Make what is missing, until nothing is, whichever node made it."""
        while self.missing():
            self.make_some(check, count)
            time.sleep(LOOK)  # others are at work on what is left

    def rows(self, counts: Iterable[int] = ()) -> int:
        """Return the rows that are done: of whole shards, and as counted in those being made."""
        source = self.source
        whole = (source.lines_of(n) for n in range(source.shards) if source.is_done(n))
        return (sum(whole) + sum(counts)) // source.stride

    def missing(self) -> list[int]:
        """Return the shards that no node has made yet, each node's in another order."""
        source = self.source
        ours = self.env.node_rank % source.shards
        missing = [number for number in range(source.shards) if not source.is_done(number)]
        return sorted(missing, key=lambda number: ((number - ours) % self.env.nodes, number))

    def make_some(self, check: Callable[[], None], count: Callable[[int], None]) -> None:
        """Make the missing shards that no other process is at work on; count the lines of each."""
        for number in self.missing():
            check()
            lock = Lock(self.source.shard(number).with_suffix(".claim"))
            try:
                if lock.take() and not self.source.is_done(number):
                    self._make(number, count)
            finally:
                lock.release()

    def _make(self, number: int, count: Callable[[int], None]) -> None:
        source, tokenizer = self.source, self.load()
        folder = source.shard(number)
        for half_done in source.folder.glob(f"{folder.name}.tmp-*"):
            shutil.rmtree(half_done, ignore_errors=True)  # its maker is dead: we have the lock
        begin, *after = source.scan.marks[number:]
        part = lines.read(
            source.files,
            begin,
            after[0] if after else None,
            start=source.start,
            stride=source.stride,
            columns=frozenset(source.rules.columns_of_lines.values()),
        )
        encoded = encode_lines(part, source.rules, tokenizer, self.config)

        def of_unchanged() -> Iterator[Encoded]:
            # Only a whole data set that cannot be used is something else; a stretch may be bad.
            for each in encoded if number else _refuse_all_bad(encoded):
                yield each
                count(each.line.number + 1 - begin.line)
            count(0)  # from now on the shard itself is counted
            fingerprint.same(source.files, source.scan.identity)

        token_store.write(folder, of_unchanged(), vocab_size=len(tokenizer))


def _refuse_all_bad(encoded: Iterator[Encoded]) -> Iterator[Encoded]:
    """Pass on lines; refuse the data set if the first ALL_BAD of them cannot be used."""
    first = None
    for count, each in enumerate(encoded, start=1):
        yield each
        if each.usable:
            break
        first = first or each
        if count == ALL_BAD:
            problem = f"{first.line.where}: {first.reason}"
            hint = contents.of_line(first.line.where, first.reason)
            raise ConfigError(problem, f"and so are the {ALL_BAD - 1} lines after it", hint=hint)
    yield from encoded


def make(
    maker: Maker, workers: int, check: Callable[[], None] = nothing, reporter: Reporter = SILENT
) -> None:
    """Have the tokens on this node: the first process makes them, the others wait for it."""
    source = maker.source
    if maker.env.local_rank == 0:
        if not source.complete.exists():
            _make(maker, workers, check, reporter)
        # Only what is verified: what other nodes write aside or claim may be gone at any moment.
        wanted = [INDEX, *(f"{source.shard(number).name}/*" for number in range(source.shards))]
        files = (path for pattern in wanted for path in source.folder.glob(pattern))
        size = sum(path.stat().st_size for path in files)
        with reporter.during("verifying", size=size):
            _verify(source)
    else:
        wait_for(source.complete.exists, check)


def source(
    config: Config,
    env: RankEnv,
    model: Path,
    files: tuple[Path, ...],
    check: Callable[[], None] = nothing,
    rules: Rules | None = None,
    reporter: Reporter = SILENT,
) -> Source:
    """Return where the tokens of these files belong, named by all that they depend on.

    Without rules of their own, the configuration's count.
    """
    rules = rules or Rules.of(config)
    size = sum(path.stat().st_size for path in files)
    parts = min(MOST_SHARDS, 1 + size // SHARD_BYTES)
    cache = config.tokens
    make_folder(cache)
    with reporter.during("reading", size=size):
        found = fingerprint.shared(files, parts, cache, local_rank=env.local_rank, check=check)
    strided = config.node_data == "strided" and env.nodes > 1
    about = {"data": found.digest, **tokens_of(config, model, rules)}
    key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    part = f"-node-{env.node_rank}-of-{env.nodes}" if strided else ""
    return Source(
        files=files,
        key=key,
        folder=cache / f"{key[:20]}{part}",
        shards=parts,
        scan=found,
        start=env.node_rank if strided else 0,
        stride=env.nodes if strided else 1,
        rules=rules,
    )


def tokens_of(config: Config, model: Path, rules: Rules) -> dict[str, Any]:
    """Return what tokens depend on besides the data."""
    return {
        "tokenizer": {
            str(path.relative_to(model)): measure(path).sha256
            for path in (
                *(model / name for name in (*TOKENIZER_FILES, *images.FILES)),
                *sorted(model.glob("additional_chat_templates/*.jinja")),
            )
            if path.is_file()
        },
        "chat_template_kwargs": config.chat_template_kwargs,
        "rules": dataclasses.asdict(rules),
        "seq_len": config.seq_len,
        "overlong": config.overlong,
        "code": formats.VERSION,
        "versions": {name: version(name) for name in ("tokenizers", "transformers")},
    }


def _make(maker: Maker, workers: int, check: Callable[[], None], reporter: Reporter) -> None:
    """Tokenize the shards that no other process does, await the others, close the manifest."""
    source = maker.source
    make_folder(source.folder)
    workers = min(workers, len(maker.missing()))
    counts = [0] * max(1, workers)
    total = source.scan.lines // source.stride
    with reporter.during("tokenizing", total=total, rows=lambda: maker.rows(counts)):
        if workers > 1:
            with tokenizer_workers.running(counts, maker) as check_workers:
                while maker.missing():
                    check()
                    check_workers()
                    time.sleep(LOOK)
        maker(partial(operator.setitem, counts, 0), check)
        if not source.complete.exists():
            _close(source)


def make_folder(folder: Path) -> None:
    """Make a folder, or name the key that says where it is."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cache_dir: expected a folder to write {folder}, found: {error.strerror}"
        raise ConfigError(problem) from error


def _close(source: Source) -> None:
    """Write the index, MANIFEST.json and then COMPLETE; several nodes may write the same."""
    folders = [source.shard(number) for number in range(source.shards)]
    about = [json.loads((folder / "shard.json").read_text()) for folder in folders]
    index = token_store.write_index(source.folder / INDEX, folders)
    text = json.dumps({"schema": 2, "key": source.key, "index": index, "shards": about})
    write_text(source.folder / "MANIFEST.json", text)
    write_text(source.complete, hashlib.sha256(text.encode()).hexdigest())


def _verify(source: Source) -> None:
    """Compare the files with the manifest: a flipped bit in a token would go unnoticed."""
    manifest = source.folder / "MANIFEST.json"
    text = manifest.read_bytes() if manifest.exists() else b""
    wrong = [manifest]
    if hashlib.sha256(text).hexdigest() == source.complete.read_text():
        about = json.loads(text)
        wanted = {source.folder / INDEX: about["index"]}
        for number, shard in enumerate(about["shards"]):
            wanted |= {
                source.shard(number) / name: digest for name, digest in shard["files"].items()
            }
        wrong = [
            path
            for path, digest in wanted.items()
            if not path.exists() or measure(path).sha256 != digest
        ]
    if wrong:
        raise ConfigError(
            *tuple(f"{path}: the token cache is damaged" for path in wrong),
            hint=f"rm -r '{source.folder}' and start again, which rebuilds it",
        )
