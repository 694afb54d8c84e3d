"""Tokens on disk: one folder a shard, written aside and renamed; read through memory maps."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from train.data.encoding import Encoded
from train.data.images import packed
from train.data.tally import Tally
from train.files import measure, write_text

Ints = npt.NDArray[np.signedinteger[Any]]
COLUMNS = ("line", "length", "targets", "offset", "numbers", "hash", "images")
"""Of each sample; `numbers` are those of its pixels, `images` where its images begin, or -1. The
hash is of its tokens."""
FILES = ("tokens.bin", "loss_mask.bin", "images.bin", "index.npy")
SECOND = 2
"""In the loss mask, the first token of a pair's second text."""
MORE: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A part of the tokens, opened."""

    tokens: npt.NDArray[Any]
    loss_mask: npt.NDArray[np.uint8]
    images: npt.NDArray[np.uint8]
    samples: int
    largest: int
    """The largest token."""


def index_dtype(count: int) -> np.dtype[Any]:
    """Return the type for numbers up to a count: a rank keeps several for each sample."""
    return np.dtype(np.int32 if count <= np.iinfo(np.int32).max else np.int64)


def write(
    folder: Path, lines: Iterable[Encoded], *, vocab_size: int, more: Mapping[str, Any] = MORE
) -> None:
    """Write a shard from its lines, in their order; another's finished one of that name stays.

    `more` is kept in its shard.json, besides what is counted.
    """
    aside = folder.with_name(f"{folder.name}.tmp-{secrets.token_hex(4)}")
    aside.mkdir(parents=True)
    try:
        _write(aside, lines, vocab_size, more)
    except BaseException:  # a signal too
        shutil.rmtree(aside, ignore_errors=True)
        raise
    try:
        aside.rename(folder)
    except OSError:  # another process has written the same in the meantime
        shutil.rmtree(aside)
        if not (folder / "shard.json").exists():
            raise


def _rounded(length: int) -> int:
    """Return a length of few digits in base 2 that holds this one: few are different."""
    step = max(8, min(128, 1 << length.bit_length() - 4))
    return -(-length // step) * step


def _write(aside: Path, lines: Iterable[Encoded], vocab_size: int, more: Mapping[str, Any]) -> None:
    kind = np.uint16 if vocab_size <= 1 << 16 else np.uint32
    rows = array("q")  # plain numbers: a data set of short lines has millions of samples
    offset = largest = 0
    overlong: Counter[int] = Counter()
    tally = Tally()
    bad: list[tuple[int, str, str]] = []
    with (
        (aside / "tokens.bin").open("wb") as tokens,
        (aside / "loss_mask.bin").open("wb") as loss_mask,
        (aside / "images.bin").open("wb") as images,
    ):
        for each in lines:
            if not each.usable:
                bad.append((each.line.number, each.line.where, each.reason))
            for sample in each.samples:
                if sample.whole:
                    overlong[_rounded(sample.whole)] += 1
                if not sample.ids:  # dropped
                    continue
                if sample.tally:
                    tally.add(sample.tally)
                length = len(sample.ids)
                content = np.asarray(sample.ids, kind).tobytes()
                tokens.write(content)
                mask = np.asarray(sample.loss_mask, np.uint8)
                mask[sample.second :][: sample.second > 0] = SECOND
                loss_mask.write(mask.tobytes())
                rows.extend((each.line.number, length, sum(sample.loss_mask[1:]), offset))
                rows.append(sum(picture.numbers for picture in sample.pictures))
                rows.frombytes(hashlib.blake2b(content, digest_size=rows.itemsize).digest())
                rows.append(images.tell() if sample.pictures else -1)
                if sample.pictures:
                    images.write(packed(sample.pictures))
                offset += length
                largest = max(largest, max(sample.ids, default=0))
        for file in (tokens, loss_mask, images):
            file.flush()
            os.fsync(file.fileno())
    index = np.asarray(rows, np.int64).reshape(-1, len(COLUMNS))
    np.save(aside / "index.npy", index)
    about = {
        **more,
        "dtype": np.dtype(kind).name,
        "samples": len(index),
        "tokens": offset,
        "largest": largest,
        "overlong": overlong,
        "chats": tally.as_json(),
        "bad": bad,
        "files": {name: measure(aside / name).sha256 for name in FILES},
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
    kinds = {"tokens": about["dtype"], "loss_mask": np.uint8, "images": np.uint8}
    columns = {
        name: np.memmap(folder / f"{name}.bin", kind, mode="r")
        if (folder / f"{name}.bin").stat().st_size
        else np.zeros(0, kind)
        for name, kind in kinds.items()
    }
    return Shard(**columns, samples=about["samples"], largest=about["largest"])
