"""The data as token ids: tokenized once, before any rank talks to another, and memory-mapped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from train.config.config import Config
from train.data import hub, images, overlap, token_cache, token_store, tokenizer_workers
from train.data.encoding import BEGINS, IGNORED, Encoded, encode_lines
from train.data.files import lines
from train.data.files.lines import BEGIN, Line, Mark
from train.data.fingerprint import nothing
from train.data.formats import Rules, named
from train.data.images import Picture, Vision, unpacked
from train.data.mixture import Mixture
from train.data.progress import Phase, Reporter
from train.data.stored import Item
from train.data.tally import SHOWN, notes_of
from train.data.token_store import Ints, Shard
from train.distributed.env import RankEnv
from train.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSet:
    """Samples on disk; the order is that of the lines, whatever shard they are in."""

    parts: tuple[Shard, ...]
    index: Ints
    """A row a sample of all shards: COLUMNS, mapped from disk and shared by a node's ranks."""
    chosen: Ints | None = None
    """Rows of the index that are its samples; without it all of them."""
    lengths: Ints
    targets: Ints
    """Tokens of each sample that are predicted and count."""
    numbers: Ints
    """Of each sample's pixels."""

    @classmethod
    def of(cls, parts: tuple[Shard, ...], index: Ints) -> TokenSet:
        """Return all samples of an index."""
        named = {"lengths": 1, "targets": 2, "numbers": 4}
        return cls(parts=parts, index=index, **{name: index[:, at] for name, at in named.items()})

    def __len__(self) -> int:
        return len(self.lengths)

    def column(self, name: str) -> Ints:
        """Return a column of the index, for its samples only."""
        column = self.index[:, token_store.COLUMNS.index(name)]
        return column if self.chosen is None else column[self.chosen]

    @property
    def largest(self) -> int:
        """Return the largest token in its files."""
        return max((part.largest for part in self.parts), default=0)

    def sample(self, number: int) -> tuple[Ints, Ints]:
        """Return the ids, and their labels (-100: masked; -101: a pair's second text begins)."""
        part, (_, length, _, offset, *_) = self._row(number)
        ids = np.array(part.tokens[offset : offset + length], np.int64)
        mask = part.loss_mask[offset : offset + length]
        return ids, np.where(mask == 1, ids, np.where(mask, BEGINS, IGNORED))

    def pictures(self, number: int) -> list[Picture]:
        """Return the images of a sample."""
        part, (*_, at) = self._row(number)
        return unpacked(part.images, int(at))[0] if at >= 0 else []

    def refuse_changed_images(self, check: Callable[[], None] = nothing) -> None:
        """Refuse files of images that are not there, or not as they were."""
        for part in self.parts:
            at = 0
            while at < len(part.images):
                check()
                found, at = unpacked(part.images, at, bytes_too=False)
                for picture in found:
                    images.refuse_changed(picture)

    def _row(self, number: int) -> tuple[Shard, Ints]:
        """Return the shard of a sample, and its row of the index."""
        row = number if self.chosen is None else int(self.chosen[number])
        found = self.index[row]
        for part in self.parts:
            if row < part.samples:
                return part, found
            row -= part.samples
        raise IndexError(number)

    def where(self, mask: npt.NDArray[np.bool_]) -> TokenSet:
        """Return the samples of the mask only."""
        rows: Ints = np.flatnonzero(mask).astype(token_store.index_dtype(len(self.index)))
        return replace(
            self,
            chosen=rows if self.chosen is None else self.chosen[rows],
            lengths=self.lengths[rows].astype(np.int32),
            targets=self.targets[rows].astype(np.int32),
            numbers=self.numbers[rows].astype(np.int64),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """What is trained on and what is evaluated on."""

    train: Mixture
    eval: Mixture | None
    key: str
    """SHA-256 of all that the tokens depend on: equal on all nodes, or something is wrong."""
    train_key: str
    """The same of what is trained on."""
    notes: tuple[str, ...]
    """What the user should know: lines left out, samples cut."""
    vision: Vision | None = None
    """The model's image processor, if there is one."""

    @property
    def largest_token(self) -> int:
        """Return the largest token that the model may be given."""
        return max(self.train.largest, self.eval.largest if self.eval else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """A data set and its files on this node."""

    key: str
    """The key that names it."""
    name: str
    """Its path or hub id."""
    label: str
    """What messages call it."""
    items: tuple[Item, ...]
    rules: Rules

    @property
    def files(self) -> tuple[Path, ...]:
        """Return their paths; what is streamed from a store may not be there yet."""
        return tuple(item.path for item in self.items)

    def lines(self, order: Sequence[int] = (), begin: Mark = BEGIN) -> Iterator[tuple[int, Line]]:
        """Yield the lines from a mark on, each with the number of its file.

        Files are taken as `order` has them, and opened as they are reached.
        """
        columns = frozenset(self.rules.columns_of_lines.values())
        order = order or range(len(self.items))
        for at in range(begin.file, len(order)):
            here, number = self.items[order[at]].here(), begin.line
            for line in lines.read((here,), replace(begin, file=0), columns=columns):
                yield at, line
                number = line.number + 1
            begin = Mark(file=0, offset=0, line=number, within=0)


def locate(config: Config) -> Iterator[Located]:
    """Yield the data sets to train on, in their order, and the one to evaluate on."""
    for key, name, rules in named(config):
        if config.stream and key == "dataset_path":
            items = hub.dataset_items(name, config, key=key)
        else:
            files = hub.dataset_files(name, config, key=key)
            items = tuple(Item(path=path) for path in files)
        yield Located(key=key, name=name, label=label(config, key, name), items=items, rules=rules)


def preview(config: Config, located: Located, tokenizer: Any) -> Iterator[Encoded]:
    """Yield the lines of a data set as the training reads them, without a token cache."""
    return encode_lines((line for _, line in located.lines()), located.rules, tokenizer, config)


def label(config: Config, key: str, name: str) -> str:
    """Return what messages call a data set: its key, and its name if there are several."""
    several = key == "dataset_path" and len(config.datasets) > 1
    return f"{key} {name}" if several else key


def prepare(
    config: Config,
    env: RankEnv,
    tokenizer: Any = None,
    *,
    check: Callable[[], None] = nothing,
    report: Callable[[Phase], None] | None = None,
) -> Corpus:
    """Tokenize what is not yet tokenized, and open it; call it before the ranks meet.

    Args:
        config: Says where the data, the tokenizer and the cache are.
        env: This process among the ranks; the first process of each node does the work.
        tokenizer: Instead of the model's own, for programs that have it in hand.
        check: Called while this process waits for others; raises if that is vain.
        report: Called every few seconds, from another thread, with how far it is.
    """
    model = hub.model_folder(config)
    located = list(locate(config))

    load = Tokenizer(model, config, tokenizer)
    opened = [open_set(config, env, model, each, load, check, report) for each in located]
    count = len(config.datasets)
    train = [samples for _, samples, _ in opened[:count]]
    held_out = [samples for _, samples, _ in opened[count:]]
    if config.eval_split:
        share = _share_held_out(train, config, env)
        masks = [_held_out(samples.column("line"), config.seed, share) for samples in train]
        held_out = [samples.where(mask) for samples, mask in zip(train, masks, strict=True)]
        train = [samples.where(~mask) for samples, mask in zip(train, masks, strict=True)]
    for label, found in (
        *((each.label, samples) for each, samples in zip(located, train, strict=False)),
        *(("evaluation", samples) for samples in held_out),
    ):
        if not len(found):
            said = (note for *_, notes in opened for note in notes)
            raise ConfigError(*said, f"{label}: expected samples to learn from, found none")
    weights = [each.weight for each in config.datasets]
    notes = (*(note for *_, notes in opened for note in notes), *files_taken(located))
    if env.rank == 0 and (both := overlap.count(held_out, train)):
        of_all = sum(map(len, held_out))
        notes += (f"{both} of {of_all} evaluation samples are also trained on",)
    return Corpus(
        vision=load.vision,
        train=Mixture(train, weights),
        eval=Mixture(held_out) if held_out else None,
        key=_key([key for key, _, _ in opened], weights),
        train_key=_key([key for key, _, _ in opened[:count]], weights),
        notes=notes,
    )


def _key(keys: list[str], weights: list[float]) -> str:
    """Return the key of the data sets together; one of weight 1 needs no weights in it."""
    mixed = "" if weights == [1.0] else json.dumps(weights)
    return hashlib.sha256(("".join(keys) + mixed).encode()).hexdigest()


def files_taken(located: list[Located]) -> Iterator[str]:
    """Say which files of a folder, or of a data set on the hub, were taken without being named."""
    for each in located:
        if Path(each.name) not in each.files:
            shown = ", ".join(_short(path, each.name) for path in each.files[:SHOWN])
            more = f", and {len(each.files) - SHOWN} more" if len(each.files) > SHOWN else ""
            on_hub = hub.is_hub_dataset(each.name)
            where = f"{each.name} on the hub" if on_hub else each.name
            yield f"{each.key}: {shown}{more} of {where}"
    of_key: dict[str, set[Path]] = {"dataset_path": set(), "eval_dataset_path": set()}
    for each in located:
        of_key[each.key].update(each.files)
    if both := of_key["dataset_path"] & of_key["eval_dataset_path"]:
        yield f"eval_dataset_path: {min(both).name} is trained on as well"


def _short(path: Path, folder: str) -> str:
    """Return a file's path from its data set's folder; from another place its name."""
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else path.name


def load_tokenizer(model: Path, config: Config) -> Any:
    """Return the model's tokenizer; as `vision` it has the image processor, or None."""
    from transformers import AutoTokenizer

    trust = config.trust_remote_code
    vision = None
    try:
        if images.has_processor(model):
            processor = images.load(model, trust_remote_code=trust)
            tokenizer, vision = processor.tokenizer, Vision(processor)
            tokenizer.chat_template = processor.chat_template or tokenizer.chat_template
        else:
            tokenizer = AutoTokenizer.from_pretrained(
                str(model), local_files_only=True, trust_remote_code=trust
            )
    except ConfigError:
        raise
    except Exception as error:  # (transformers raises what it likes)
        found = " ".join(str(error).split())
        problem = f"name_or_path: expected a tokenizer in {model}, found: {found}"
        raise ConfigError(problem) from error
    tokenizer.model_max_length = 1 << 30  # train's seq_len decides; no warnings about others
    tokenizer.vision = vision
    return tokenizer


class Tokenizer:
    """The tokenizer, loaded when it is first asked for; each other process loads its own."""

    def __init__(self, model: Path, config: Config, loaded: Any = None) -> None:
        """Take the model's; or one that a program has in hand, which stays in this process."""
        self.is_of_model = loaded is None
        self._model = model
        self._config = config
        self._loaded = loaded

    def __call__(self) -> Any:
        """Return it."""
        if self._loaded is None:
            self._loaded = load_tokenizer(self._model, self._config)
        return self._loaded

    @property
    def vision(self) -> Vision | None:
        """The model's image processor, if there is one."""
        return getattr(self(), "vision", None) if images.has_processor(self._model) else None

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out what is loaded."""
        return type(self), (self._model, self._config)


def open_set(
    config: Config,
    env: RankEnv,
    model: Path,
    located: Located,
    load: Tokenizer,
    check: Callable[[], None],
    report: Callable[[Phase], None] | None,
) -> tuple[str, TokenSet, tuple[str, ...]]:
    """Return key, samples and notes of one set, made first if it is missing."""
    reporter = Reporter(dataset=located.label, report=report)
    source = token_cache.source(config, env, model, located.files, check, located.rules, reporter)
    maker = token_cache.Maker(source=source, config=config, env=env, load=load)
    size = sum(path.stat().st_size for path in located.files)
    workers = 1  # (a tokenizer that a program has in hand stays in its process)
    if load.is_of_model:
        rows = source.scan.lines
        workers = tokenizer_workers.worker_count(
            rows // source.stride, size // source.stride, source.shards
        )
    token_cache.make(maker, workers, check, reporter)
    manifest = json.loads((source.folder / "MANIFEST.json").read_text())
    notes = notes_of(located.label, config, manifest["shards"])
    shards = tuple(token_store.open_shard(source.shard(n)) for n in range(source.shards))
    empty = not any(shard.samples for shard in shards)
    index = np.load(source.folder / token_cache.INDEX, mmap_mode=None if empty else "r")
    samples, key = TokenSet.of(shards, np.asarray(index)), source.key
    if samples.numbers.any():
        if env.local_rank == 0:
            samples.refuse_changed_images(check)
        # The lines name images; what these are is in the manifest. Strided nodes have others each.
        key += source.complete.read_text() if source.stride == 1 else ""
    return key, samples, tuple(notes)


def _share_held_out(train: list[TokenSet], config: Config, env: RankEnv) -> float:
    """Return the share of each dataset's lines that is for evaluation.

    Raises:
        ConfigError: as many lines as eval_split names, or more, are not there.
    """
    if config.eval_split < 1:
        return config.eval_split
    there = sum(len(np.unique(samples.column("line"))) for samples in train)
    if config.node_data == "strided":  # the others have as many
        there *= env.nodes
    if config.eval_split >= there:
        raise ConfigError(
            f"eval_split: expected less than the {there} samples that there are,"
            f" found {config.eval_split:g}"
        )
    return config.eval_split / there


def _held_out(line_numbers: Ints, seed: int, share: float) -> npt.NDArray[np.bool_]:
    """Choose whole lines for evaluation: parts of one text are never on both sides."""
    begins = np.flatnonzero(np.diff(line_numbers, prepend=-1))  # (lines are in order)
    count = max(1, round(len(begins) * share))
    held_out = np.zeros(len(begins), np.bool_)
    held_out[np.random.default_rng([seed, 1]).permutation(len(begins))[:count]] = True
    return np.repeat(held_out, np.diff(begins, append=len(line_numbers)))
