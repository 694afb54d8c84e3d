"""The lines of a data set as the training reads them, without a token cache."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from train.data import encoding, formats, lines
from train.data.bad_line import BadLine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from train.config.config import Config
    from train.data.dataset import Located
    from train.data.documents import Document
    from train.data.encoding import Sample

TOGETHER = 64
"""Lines tokenized in one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """A line and what becomes of it."""

    where: str
    samples: list[Sample]
    reason: str = ""
    """Why it has no samples."""
    usable: bool = True
    """Whether that is no fault of the line: it is only too long."""


def read(config: Config, located: Located, tokenizer: Any) -> Iterator[Preview]:  # noqa: ANN401  (a transformers tokenizer)
    """Yield the lines of a data set, in their order."""
    reader = formats.Reader(tokenizer, config.chat_template_kwargs, located.rules)
    columns = frozenset(located.rules.columns_of_lines.values())
    waiting = lines.read(located.files, columns=columns)
    while together := list(islice(waiting, TOGETHER)):
        found: list[Document | str] = []
        for line in together:
            try:
                found.append(reader.read(line.content))
            except BadLine as error:
                found.append(str(error))
        documents = [document for document in found if not isinstance(document, str)]
        made = iter(encoding.encode(documents, tokenizer, config.seq_len, config.overlong))
        for line, document in zip(together, found, strict=True):
            if isinstance(document, str):
                yield Preview(where=line.where, samples=[], reason=document, usable=False)
            else:
                yield _preview(line.where, next(made), config)


def _preview(where: str, samples: list[Sample], config: Config) -> Preview:
    if kept := [sample for sample in samples if sample.ids]:
        return Preview(where=where, samples=kept)
    if samples:
        reason = f"dropped: {samples[0].whole} tokens are more than seq_len {config.seq_len}"
        return Preview(where=where, samples=[], reason=reason)
    reason = f"nothing to learn within seq_len {config.seq_len}"
    return Preview(where=where, samples=[], reason=reason, usable=False)
