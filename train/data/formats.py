"""From a line of data to token ids, and which of them the loss counts: text, completion, chat."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from train.data import other_forms
from train.data.bad_line import NO_UTF8, BadLine
from train.data.chat import ChatTemplate
from train.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VERSION = 10
"""Part of the token cache's key: raise it when the same line would give other tokens
or the files of the cache change."""
IGNORED = -100
"""Hugging Face's label of a token that no loss is taken of."""
FORMS = (
    'text, prompt with completion, messages ({"role", "content"} each), conversations ({"from", '
    '"value"} each), or instruction with output'
)

KEYS = frozenset({
    "text", "prompt", "completion", "messages", "conversations", "system", "tools",
    "chat_template_kwargs", "instruction", "input", "output",
})  # fmt: skip
"""All keys of a line that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of text that is tokenized by itself."""

    text: str
    special: bool
    """Whether the tokenizer adds its own begin and end marks."""
    spans: tuple[tuple[int, int], ...] | Literal["all", "none"]
    """Which characters the loss counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A line as pieces of text, in order."""

    pieces: tuple[Piece, ...]
    ends: bool
    """Whether the end-of-text token is appended (and counts); a chat's template has its own."""
    splits: bool
    """Whether what is too long goes on in a further sample, or is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Token ids, and for each whether the loss counts it."""

    ids: list[int]
    loss_mask: list[bool]
    cut: bool = False
    """Whether something of the line was left out."""


class Reader:
    """Reads lines for one tokenizer."""

    def __init__(self, tokenizer: Any, template_arguments: Mapping[str, Any] | None = None) -> None:  # noqa: ANN401  (a transformers tokenizer)
        """Take a tokenizer, and what its chat template is given besides messages and tools."""
        self._template = ChatTemplate(tokenizer, template_arguments)

    def read(self, line: bytes | BadLine) -> Document:
        """Return what a line says.

        Raises:
            BadLine: it is not JSON, has none of the known forms, or its text is none.
        """
        document = self._document(record_of(line))
        try:
            for piece in document.pieces:
                piece.text.encode()
        except UnicodeEncodeError as error:
            found = f"half a character, {error.object[error.start]!r}"
            raise BadLine(f"expected text, found {found}") from None
        return document

    def _document(self, record: dict[str, Any]) -> Document:
        if "messages" in record:
            return self._chat(record, record["messages"], learn_from=0)
        if "conversations" in record:
            return self._chat(record, other_forms.messages_of_sharegpt(record), learn_from=0)
        if "instruction" in record and "output" in record:
            return self._alpaca(record)
        if "prompt" in record and "completion" in record:
            prompt, completion = record["prompt"], record["completion"]
            if isinstance(prompt, list) and isinstance(completion, list):
                return self._chat(record, [*prompt, *completion], learn_from=len(prompt))
            return _completion(prompt, completion)
        if "text" in record:
            text = _text(record, "text")
            pieces = (Piece(text=text, special=True, spans="all"),)
            return Document(pieces=pieces, ends=True, splits=True)
        raise BadLine(f"expected {FORMS}, found the keys {', '.join(map(str, record)) or '(none)'}")

    def _alpaca(self, record: dict[str, Any]) -> Document:
        """Return a task as a chat, as LLaMA-Factory does; without a template in Alpaca's words."""
        task = other_forms.Task.of(record)
        if self._template.exists:
            return self._chat(record, task.messages(), learn_from=0)
        return _completion(task.prompt(), task.output)

    def _chat(self, record: dict[str, Any], messages: Any, *, learn_from: int) -> Document:  # noqa: ANN401
        chat = self._template.write(
            messages,
            tools=record.get("tools"),
            arguments=record.get("chat_template_kwargs"),
            learn_from=learn_from,
        )
        piece = Piece(text=chat.text, special=False, spans=chat.spans)
        return Document(pieces=(piece,), ends=False, splits=False)


def is_known(record: dict[str, Any]) -> bool:
    """Whether a record has the keys of one of the forms."""
    several = ({"prompt", "completion"}, {"instruction", "output"})
    return is_chat(record) or "text" in record or any(keys <= record.keys() for keys in several)


def is_chat(record: dict[str, Any]) -> bool:
    """Whether only a chat template can write a record."""
    return "messages" in record or "conversations" in record


def record_of(line: bytes | BadLine) -> dict[str, Any]:
    """Return the JSON object of a line.

    Raises:
        BadLine: it is none.
    """
    if isinstance(line, BadLine):
        raise line
    try:
        record = json.loads(line)
    except UnicodeDecodeError as error:
        found = f"{error.object[error.start]:#x} (Windows-1252 or Latin-1?)"
        raise BadLine(f"{NO_UTF8}, found byte {found}") from None
    except json.JSONDecodeError as error:
        raise BadLine(
            f"expected a JSON object, found: {error.msg} (column {error.colno})"
        ) from None
    except (ValueError, RecursionError) as error:  # too long a number, too many brackets
        raise BadLine(f"expected a JSON object, found: {error}") from None
    if not isinstance(record, dict):
        raise BadLine(f"expected a JSON object, found {type(record).__name__}")
    return record


def _text(record: dict[str, Any], key: str) -> str:
    value = record[key]
    if not isinstance(value, str) or not value.strip():
        found = "nothing" if value in ("", None) else repr(value)[:40]
        raise BadLine(f"{key}: expected some text, found {found}")
    return value


def _completion(prompt: Any, completion: Any) -> Document:  # noqa: ANN401  (as the line has them)
    if not isinstance(prompt, str):
        raise BadLine(f"prompt: expected text, found {type(prompt).__name__}")
    answer = _text({"completion": completion}, "completion")
    return Document(
        pieces=(
            Piece(text=prompt, special=True, spans="none"),
            Piece(text=answer, special=False, spans="all"),
        ),
        ends=True,
        splits=False,
    )


def encode(documents: Sequence[Document], tokenizer: Any, seq_len: int) -> list[list[Sample]]:  # noqa: ANN401
    """Return the samples of each document; a document without anything to learn has none."""
    pieces = [piece for document in documents for piece in document.pieces]
    tokens: dict[int, tuple[list[int], list[bool]]] = {}
    for special in (True, False):
        for spanned in (True, False):
            group = [
                piece
                for piece in pieces
                if piece.special is special and isinstance(piece.spans, tuple) is spanned
            ]
            tokens |= _tokenize(group, tokenizer)
    return [_samples(document, tokens, tokenizer.eos_token_id, seq_len) for document in documents]


def _tokenize(group: list[Piece], tokenizer: Any) -> dict[int, tuple[list[int], list[bool]]]:  # noqa: ANN401
    """Tokenize like pieces in one call: the tokenizer uses all cores for that.

    Raises:
        ConfigError: only a fast tokenizer tells which characters a token is made of.
    """
    if not group:
        return {}
    spanned = isinstance(group[0].spans, tuple)
    if spanned and not tokenizer.is_fast:
        kind = type(tokenizer).__name__
        raise ConfigError(
            (f"name_or_path: expected a fast tokenizer for chats, found {kind}, a slow one",),
            hint="lines of text, or of prompt and completion, need no fast one",
        )
    answer = tokenizer(
        [piece.text for piece in group],
        add_special_tokens=group[0].special,
        return_attention_mask=False,
        return_offsets_mapping=spanned,
    )
    result = {}
    for number, piece in enumerate(group):
        ids = list(answer["input_ids"][number])
        if piece.spans == "none" and _has_end_added(ids, piece, tokenizer):
            ids.pop()
        if isinstance(piece.spans, tuple):
            loss_mask = _within(answer["offset_mapping"][number], piece.spans)
        else:
            loss_mask = [piece.spans == "all"] * len(ids)
        result[id(piece)] = (ids, loss_mask)
    return result


def _has_end_added(ids: list[int], piece: Piece, tokenizer: Any) -> bool:  # noqa: ANN401
    """Return whether the tokenizer has ended a prompt, as some do with every text: more follows."""
    ended = len(ids) > 1 and ids[-1] == tokenizer.eos_token_id
    return ended and not piece.text.endswith(tokenizer.eos_token)


def _within(offsets: list[tuple[int, int]], spans: tuple[tuple[int, int], ...]) -> list[bool]:
    """Mark the tokens that begin in one of the spans, which are in order."""
    starts = [start for start, _ in spans]
    loss_mask = []
    for begin, stop in offsets:
        number = bisect_right(starts, begin) - 1
        loss_mask.append(number >= 0 and begin < spans[number][1] and stop > 0)
    return loss_mask


def _samples(
    document: Document,
    tokens: dict[int, tuple[list[int], list[bool]]],
    eos: int | None,
    seq_len: int,
) -> list[Sample]:
    ids: list[int] = []
    loss_mask: list[bool] = []
    for piece in document.pieces:
        ids += tokens[id(piece)][0]
        loss_mask += tokens[id(piece)][1]
    if document.ends and eos is not None and ids[-1:] != [eos]:
        ids.append(eos)
        loss_mask.append(True)
    if document.splits:
        starts = range(0, len(ids), seq_len)
        made = [
            Sample(ids=ids[at : at + seq_len], loss_mask=loss_mask[at : at + seq_len])
            for at in starts
        ]
    else:
        cut = len(ids) > seq_len
        made = [Sample(ids=ids[:seq_len], loss_mask=loss_mask[:seq_len], cut=cut)]
    return [sample for sample in made if any(sample.loss_mask[1:])]
