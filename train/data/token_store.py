"""Tokens on disk: one folder a shard, written aside and renamed; read through memory maps."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from array import array
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from train.data.tally import Tally
from train.files import measure, write_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from train.data.encoding import Sample

Ints = npt.NDArray[np.signedinteger[Any]]
COLUMNS = ("line", "length", "targets", "offset")
BLOCK = 1 << 22
ROUND = 128
"""The lengths of lines that are too long are counted in multiples of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """A line that could not be used."""

    line: int
    """Counted over all files, from 0."""
    where: str
    """`file:line`, as a person counts."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A part of the tokens, opened."""

    tokens: npt.NDArray[Any]
    loss_mask: npt.NDArray[np.uint8]
    samples: int
    largest: int
    """The largest token."""


def index_dtype(count: int) -> np.dtype[Any]:
    """Return the type for numbers up to a count: a rank keeps several for each sample."""
    return np.dtype(np.int32 if count <= np.iinfo(np.int32).max else np.int64)


def write(
    folder: Path,
    batches: Iterable[tuple[int, list[Sample]]],
    complaints: list[Complaint],
    *,
    vocab_size: int,
) -> None:
    """Write a shard: of every line its samples. Another's finished folder of that name stays.

    Args:
        folder: Where the shard will be.
        batches: Line number and its samples, in the order of the lines.
        complaints: Filled by whoever makes the batches; read when they are through.
        vocab_size: Decides how many bytes a token takes.
    """
    aside = folder.with_name(f"{folder.name}.tmp-{secrets.token_hex(4)}")
    aside.mkdir(parents=True)
    try:
        _write(aside, batches, complaints, vocab_size=vocab_size)
    except BaseException:  # a signal too
        shutil.rmtree(aside, ignore_errors=True)
        raise
    try:
        aside.rename(folder)
    except OSError:  # somebody else has written the same in the meantime
        shutil.rmtree(aside)
        if not (folder / "shard.json").exists():
            raise


def _write(
    aside: Path,
    batches: Iterable[tuple[int, list[Sample]]],
    complaints: list[Complaint],
    *,
    vocab_size: int,
) -> None:
    """Write the files of a shard."""
    kind = np.uint16 if vocab_size <= 1 << 16 else np.uint32
    rows = array("q")  # plain numbers: a data set of short lines has millions of samples
    offset = largest = 0
    overlong: Counter[int] = Counter()
    tally = Tally()
    with (
        (aside / "tokens.bin").open("wb") as tokens,
        (aside / "loss_mask.bin").open("wb") as loss_mask,
    ):
        for line, samples in batches:
            for sample in samples:
                if sample.whole:
                    overlong[-(-sample.whole // ROUND) * ROUND] += 1
                if not sample.ids:  # dropped
                    continue
                if sample.tally:
                    tally.add(sample.tally)
                length = len(sample.ids)
                tokens.write(np.asarray(sample.ids, kind).tobytes())
                loss_mask.write(np.asarray(sample.loss_mask, np.uint8).tobytes())
                rows.extend((line, length, sum(sample.loss_mask[1:]), offset))
                offset += length
                largest = max(largest, max(sample.ids, default=0))
        for file in (tokens, loss_mask):
            file.flush()
            os.fsync(file.fileno())
    index = np.asarray(rows, np.int64).reshape(-1, len(COLUMNS))
    np.save(aside / "index.npy", index)
    about = {
        "dtype": np.dtype(kind).name,
        "samples": len(index),
        "tokens": offset,
        "largest": largest,
        "overlong": overlong,
        "chats": tally.as_json(),
        "bad": [[item.line, item.where, item.reason] for item in complaints],
        "files": {
            name: measure(aside / name).sha256
            for name in ("tokens.bin", "loss_mask.bin", "index.npy")
        },
    }
    write_text(aside / "shard.json", json.dumps(about, indent=1))


def write_index(path: Path, folders: list[Path]) -> str:
    """Write the index of all shards as one file, column by column; return its hash."""
    parts = [np.load(folder / "index.npy", mmap_mode="r") for folder in folders]
    shape = (sum(len(part) for part in parts), len(COLUMNS))
    aside = path.with_name(f"{path.name}.tmp-{secrets.token_hex(4)}")
    with aside.open("wb") as file:
        about = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.int64))}
        np.lib.format.write_array_header_1_0(file, about | {"fortran_order": True, "shape": shape})
        for column in range(len(COLUMNS)):
            for part in parts:
                file.write(np.ascontiguousarray(part[:, column]).tobytes())
        file.flush()
        os.fsync(file.fileno())
    found = measure(aside).sha256
    aside.replace(path)
    return found


def open_shard(folder: Path) -> Shard:
    """Map a shard into memory."""
    about = json.loads((folder / "shard.json").read_text())
    if not about["tokens"]:
        empty = np.zeros(0, about["dtype"])
        return Shard(
            tokens=empty,
            loss_mask=empty.astype(np.uint8),
            samples=0,
            largest=0,
        )
    return Shard(
        tokens=np.memmap(folder / "tokens.bin", about["dtype"], mode="r"),
        loss_mask=np.memmap(folder / "loss_mask.bin", np.uint8, mode="r"),
        samples=about["samples"],
        largest=about["largest"],
    )
