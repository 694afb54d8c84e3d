"""`python -m train --show-sample N`: a sample as the model reads it, and what of it is learned.

It reads the data as tokenizing does, line by line up to the sample, so it needs no GPU and no
token cache. What is learned stands after a `+`, the rest after a `-`; colors only repeat that.
"""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from train.data import dataset, formats, hub, lines
from train.data.bad_line import BadLine
from train.errors import DONE, ConfigError, counted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import TextIO

    from train.config.config import Config
    from train.data.formats import Sample

TOGETHER = 64
"""Lines tokenized in one call."""
COLORS = {True: "\x1b[32m", False: "\x1b[2m"}
"""Of what is learned, and of what is not."""
RESET = "\x1b[0m"
WIDTH = 80
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
    """Print a sample, counted from 1; return the exit code.

    Raises:
        ConfigError: there is no such sample, or no data, or no tokenizer.
    """
    out = out or sys.stdout
    hub.settle(config)
    model = hub.model_folder(config)
    files = [hub.dataset_files(each.path, config, key="dataset_path") for each in config.datasets]
    tokenizer = dataset.load_tokenizer(model, config)
    shown = find(config, files, tokenizer, number)
    if hasattr(out, "reconfigure"):
        out.reconfigure(errors="backslashreplace")  # a terminal may know ASCII only
    tty = out.isatty()
    color = tty and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    width = shutil.get_terminal_size((WIDTH, 24)).columns if tty else WIDTH
    for line in render(shown, tokenizer, config.seq_len, width=width, color=color):
        print(line, file=out)
    return DONE


def find(config: Config, files: list[tuple[Path, ...]], tokenizer: Any, number: int) -> Shown:  # noqa: ANN401
    """Return a sample, counted from 1 over all data sets; lines that cannot be used have none.

    Raises:
        ConfigError: there are not so many.
    """
    reader = formats.Reader(tokenizer, config.chat_template_kwargs)
    waiting = chain.from_iterable(map(lines.read, files))
    count = 0
    complaints: list[str] = []
    while number > 0 and (together := list(islice(waiting, TOGETHER))):
        documents = []
        for line in together:
            try:
                documents.append((line.where, reader.read(line.content)))
            except BadLine as error:
                complaints.append(f"{line.where}: {error}")
        made = formats.encode([document for _, document in documents], tokenizer, config.seq_len)
        for (where, _), samples in zip(documents, made, strict=True):
            if count < number <= count + len(samples):
                return Shown(number=number, where=where, sample=samples[number - count - 1])
            count += len(samples)
    found = f"--show-sample: expected a number from 1 to {count}, found {number}"
    raise ConfigError((*complaints[: dataset.SHOWN], found))


def render(
    shown: Shown,
    tokenizer: Any,  # noqa: ANN401  (a transformers tokenizer)
    seq_len: int,
    *,
    width: int = WIDTH,
    color: bool = False,
) -> Iterator[str]:
    """Yield the lines that show a sample."""
    ids, loss_mask = shown.sample.ids, shown.sample.loss_mask
    learned = sum(loss_mask)
    yield f"sample {shown.number}: {safe(shown.where)}"
    cut = ", cut" if shown.sample.cut else ""
    counts_of = f"{learned} learned, {len(ids) - learned} not"
    yield f"{counted(len(ids), 'token')} of seq_len {seq_len}{cut}: {counts_of}"
    last = max(index for index, counts in enumerate(loss_mask) if counts)
    text = safe(tokenizer.decode([ids[last]]))
    yield f"last learned token: {text.strip() or repr(text)} ({ids[last]})"
    yield ""
    for counts, stretch in _stretches(ids, loss_mask, tokenizer):
        for line in _wrapped(stretch, max(1, width - 2)):
            written = f"{'+' if counts else '-'} {line}"
            yield f"{COLORS[counts]}{written}{RESET}" if color else written
    yield ""
    yield "+ learned, - not learned; \\n is a line break"


def _stretches(
    ids: list[int],
    loss_mask: list[bool],
    tokenizer: Any,  # noqa: ANN401  (as above)
) -> Iterator[tuple[bool, str]]:
    """Yield what is learned and what is not, in turn, as text."""
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
