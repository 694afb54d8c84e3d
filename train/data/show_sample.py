"""`python -m train --show-sample N`: a sample as the model reads it, and what of it is learned.

It reads the data as tokenizing does, line by line up to the sample, so it needs no GPU and no
token cache. What is learned stands after a `+`, the rest after a `-`; colors only repeat that.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, TextIO

from train.config.config import Config
from train.data import dataset, hub, tally
from train.data.dataset import Located
from train.data.encoding import Sample
from train.data.images import Vision
from train.errors import DONE, ConfigError, counted

COLORS = {True: "\x1b[32m", False: "\x1b[2m"}
"""Of what is learned, and of what is not."""
RESET = "\x1b[0m"
WIDTH = 80
REPEATED = re.compile(r"(<[^<>]+>)\1{3,}")
"""Tokens of an image."""
UNSAFE = {"Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp"}
"""Categories of characters that move the cursor, are invisible, or turn the direction of text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A sample with the line that it is from."""

    number: int
    """Counted from 1, in the order of the lines."""
    where: str
    sample: Sample


def main(config: Config, number: int, out: TextIO | None = None) -> int:
    """Print a sample, counted from 1; return the exit code."""
    out = out or sys.stdout
    if number < 1:
        raise ConfigError(f"--show-sample: expected a number from 1 on, found {number}")
    hub.settle(config)
    model = hub.model_folder(config)
    located = [each for each in dataset.locate(config) if each.key == "dataset_path"]
    tokenizer = dataset.load_tokenizer(model, config)
    shown = find(config, located, tokenizer, number)
    if hasattr(out, "reconfigure"):
        out.reconfigure(errors="backslashreplace")  # a terminal may know ASCII only
    tty = out.isatty()
    color = tty and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    width = shutil.get_terminal_size((WIDTH, 24)).columns if tty else WIDTH
    for line in render(shown, tokenizer, config.seq_len, width=width, color=color):
        print(line, file=out)
    return DONE


def find(config: Config, located: list[Located], tokenizer: Any, number: int) -> Shown:
    """Return a sample, counted from 1 over all data sets; lines that cannot be used have none."""
    count = total = 0
    complaints: list[str] = []
    for each in chain.from_iterable(dataset.preview(config, set_, tokenizer) for set_ in located):
        total += 1
        if each.reason:
            complaints.append(f"{each.line.where}: {each.reason}")
        elif number <= count + len(each.samples):
            sample = each.samples[number - count - 1]
            return Shown(number=number, where=each.line.where, sample=sample)
        else:
            count += len(each.samples)
    wanted = f"a number from 1 to {count}" if count else "lines that have a sample"
    without = f" ({len(complaints)} of {total} lines have no sample)" if complaints else ""
    found = f"--show-sample: expected {wanted}{without}, found {number if count else 'none'}"
    raise ConfigError(*complaints[: tally.SHOWN], found)


def render(
    shown: Shown, tokenizer: Any, seq_len: int, *, width: int = WIDTH, color: bool = False
) -> Iterator[str]:
    """Yield the lines that show a sample."""
    ids, loss_mask = shown.sample.ids, shown.sample.loss_mask
    learned = sum(loss_mask)
    yield f"sample {shown.number}: {safe(shown.where)}"
    cut = f", cut from {shown.sample.whole}" if shown.sample.whole else ""
    counts_of = f"{learned} learned, {len(ids) - learned} not"
    yield f"{counted(len(ids), 'token')} of seq_len {seq_len}{cut}: {counts_of}"
    last = max(index for index, counts in enumerate(loss_mask) if counts)
    text = safe(tokenizer.decode([ids[last]]))
    yield from _pictures(shown.sample, getattr(tokenizer, "vision", None))
    yield f"last learned token: {text.strip() or repr(text)} ({ids[last]})"
    yield ""
    second = shown.sample.second
    for title, part in (
        (("chosen:", slice(second)), ("rejected:", slice(second, None)))
        if second
        else (("", slice(None)),)
    ):
        yield from filter(None, [title])
        for counts, stretch in _stretches(ids[part], loss_mask[part], tokenizer):
            for line in _wrapped(REPEATED.sub(_folded, stretch), max(1, width - 2)):
                written = f"{'+' if counts else '-'} {line}"
                yield f"{COLORS[counts]}{written}{RESET}" if color else written
        yield ""
    yield "+ learned, - not learned; \\n is a line break"


def _pictures(sample: Sample, vision: Vision | None) -> Iterator[str]:
    """Yield a line for each image: its size, its tokens and where these are."""
    places = [at for at, token in enumerate(sample.ids) if vision and token in vision.ids]
    for number, picture in enumerate(sample.pictures, start=1):
        first, last = places[0] + 1, places[picture.tokens - 1] + 1
        del places[: picture.tokens]
        size = f"{picture.width}x{picture.height}, {counted(picture.tokens, 'token')}"
        yield f"image {number}: {size} from token {first} to {last}: {safe(picture.name)}"


def _folded(found: re.Match[str]) -> str:
    """Return a token that is repeated once, with how often."""
    return f"{found[1]}x{len(found[0]) // len(found[1])}"


def _stretches(ids: list[int], loss_mask: list[bool], tokenizer: Any) -> Iterator[tuple[bool, str]]:
    start = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or loss_mask[end] != loss_mask[start]:
            # A tokenizer may drop the space before a stretch, but not within a text.
            before = tokenizer.decode(ids[:start], clean_up_tokenization_spaces=False)
            text = tokenizer.decode(ids[:end], clean_up_tokenization_spaces=False)
            if not text.startswith(before):  # in the middle of a character
                text, before = tokenizer.decode(ids[start:end]), ""
            yield loss_mask[start], text[len(before) :]
            start = end


def _wrapped(text: str, width: int) -> Iterator[str]:
    """Yield a text in lines of so many columns, nothing in it that a terminal acts on."""
    line, used = "", 0
    for character in text:
        piece = "\\n" if character == "\n" else safe(character)
        columns = sum(2 if unicodedata.east_asian_width(part) in "WF" else 1 for part in piece)
        if line and used + columns > width:
            yield line
            line, used = "", 0
        line, used = line + piece, used + columns
        if character == "\n":
            yield line
            line, used = "", 0
    if line:
        yield line


def safe(text: str) -> str:
    """Return a text with escapes for characters that a terminal acts on or does not show."""
    return "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in UNSAFE
        else character
        for character in text
    )
