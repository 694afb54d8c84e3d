"""From a line of JSONL to token ids, and which of them the loss counts: text, completion, chat."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION = 5
"""Part of the token cache's key: raise it when the same line would give other tokens."""
IGNORED = -100
"""Hugging Face's label of a token that no loss is taken of."""
FORMS = 'text, prompt with completion, or messages ({"role", "content"} each)'


class BadLine(ValueError):  # noqa: N818  (said of the line, not of the program)
    """A line cannot be used; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of text that is tokenised by itself."""

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


def read(line: bytes, tokenizer: Any) -> Document:  # noqa: ANN401  (a transformers tokenizer)
    """Return what a line says.

    Raises:
        BadLine: it is not JSON, has none of the known forms, or its text is none.
    """
    document = _document(line, tokenizer)
    try:
        for piece in document.pieces:
            piece.text.encode()
    except UnicodeEncodeError as error:
        found = f"half a character, {error.object[error.start]!r}"
        raise BadLine(f"expected text, found {found}") from None
    return document


def _document(line: bytes, tokenizer: Any) -> Document:  # noqa: ANN401  (as above)
    try:
        record = json.loads(line)
    except UnicodeDecodeError as error:
        raise BadLine(f"expected UTF-8 text, found byte {error.object[error.start]:#x}") from None
    except json.JSONDecodeError as error:
        raise BadLine(
            f"expected a JSON object, found: {error.msg} (column {error.colno})"
        ) from None
    except (ValueError, RecursionError) as error:  # too long a number, too many brackets
        raise BadLine(f"expected a JSON object, found: {error}") from None
    if not isinstance(record, dict):
        raise BadLine(f"expected a JSON object, found {type(record).__name__}")
    if "messages" in record:
        return _chat(record["messages"], tokenizer, learn_from=0)
    if "prompt" in record and "completion" in record:
        return _completion(record["prompt"], record["completion"], tokenizer)
    if "text" in record:
        text = _text(record, "text")
        pieces = (Piece(text=text, special=True, spans="all"),)
        return Document(pieces=pieces, ends=True, splits=True)
    raise BadLine(f"expected {FORMS}, found the keys {', '.join(map(str, record)) or '(none)'}")


def _text(record: dict[str, Any], key: str) -> str:
    value = record[key]
    if not isinstance(value, str) or not value.strip():
        found = "nothing" if value in ("", None) else repr(value)[:40]
        raise BadLine(f"{key}: expected some text, found {found}")
    return value


def _completion(prompt: Any, completion: Any, tokenizer: Any) -> Document:  # noqa: ANN401
    if isinstance(prompt, list) and isinstance(completion, list):
        return _chat([*prompt, *completion], tokenizer, learn_from=len(prompt))
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


def _chat(messages: Any, tokenizer: Any, *, learn_from: int) -> Document:  # noqa: ANN401
    """Return a chat as its template writes it; the loss counts the assistant's words."""
    if not isinstance(messages, list) or not all(
        isinstance(item, dict) and isinstance(item.get("role"), str) for item in messages
    ):
        raise BadLine('messages: expected a list of {"role", "content"}')
    if not tokenizer.chat_template:
        raise BadLine("messages: expected a tokenizer with a chat template, found none")
    whole = _render(tokenizer, messages, prompt=False)
    _refuse_printed(messages, whole)
    answers = {
        index: str(message.get("content") or "")
        for index, message in enumerate(messages)
        if message["role"] == "assistant"
    }
    ends = _ends(whole, messages, answers, tokenizer)
    spans = []
    for index, answer in answers.items():
        if index < learn_from:
            continue
        if not answer.strip():
            said = f"messages: message {index + 1}, an answer: expected some text, found nothing"
            raise BadLine(said)
        before = _render(tokenizer, messages[:index], prompt=True)
        end = ends.get(index, -1)
        if not whole.startswith(before) or end < len(before):
            said = f"message {index + 1}, an answer, is not to be found in the template's text"
            raise BadLine(f"messages: {said}")
        spans.append((len(before), end))
    if not spans:
        raise BadLine("messages: expected an answer of the assistant to learn, found none")
    piece = Piece(text=whole, special=False, spans=tuple(spans))
    return Document(pieces=(piece,), ends=False, splits=False)


def _refuse_printed(messages: list[Any], whole: str) -> None:
    """Refuse contents in parts where the template has written them as Python prints a list."""
    for number, message in enumerate(messages, start=1):
        content = message.get("content")
        parts = isinstance(content, list | dict)
        if parts and (message["role"] == "assistant" or str(content) in whole):
            found = type(content).__name__
            raise BadLine(f"messages: content of message {number}: expected text, found {found}")


def _ends(
    whole: str,
    messages: list[Any],
    answers: dict[int, str],
    tokenizer: Any,  # noqa: ANN401
) -> dict[int, int]:
    """Return where each answer ends in a chat as it is written.

    The template is given marks for answers, to see what it writes between them: a short answer
    may well be found in that too.
    """
    marks = {index: f"(answer {index} of this chat)" for index in answers}
    marked = [
        {**message, "content": marks[index]} if index in marks else message
        for index, message in enumerate(messages)
    ]
    rest, at = _render(tokenizer, marked, prompt=False), 0
    ends: dict[int, int] = {}
    for index, answer in answers.items():
        between, _, rest = rest.partition(marks[index])
        if whole.startswith(between, at):
            at += len(between)
        stripped = answer.strip()
        # A template that looks into an answer, for thoughts say, writes other things around it.
        found = at if whole.startswith(stripped, at) else whole.find(stripped, at)
        if found < 0:
            return ends
        at = found + len(stripped)
        ends[index] = at
    return ends


def _render(tokenizer: Any, messages: list[Any], *, prompt: bool) -> str:  # noqa: ANN401
    if not messages:
        return ""
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
    except Exception as error:  # noqa: BLE001  (templates raise what they like)
        raise BadLine(f"messages: the chat template refuses them: {error}") from None
    return str(text)


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
            tokens |= _tokenise(group, tokenizer)
    return [_samples(document, tokens, tokenizer.eos_token_id, seq_len) for document in documents]


def _tokenise(group: list[Piece], tokenizer: Any) -> dict[int, tuple[list[int], list[bool]]]:  # noqa: ANN401
    """Tokenise like pieces in one call: the tokenizer uses all cores for that."""
    if not group:
        return {}
    spanned = isinstance(group[0].spans, tuple)
    answer = tokenizer(
        [piece.text for piece in group],
        add_special_tokens=group[0].special,
        return_attention_mask=False,
        return_offsets_mapping=spanned,
    )
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    result = {}
    for number, piece in enumerate(group):
        ids = list(answer["input_ids"][number])
        if piece.spans == "none" and _has_end_added(ids, piece, tokenizer):
            ids.pop()
        if isinstance(piece.spans, tuple):
            loss_mask = _within(ids, answer["offset_mapping"][number], piece.spans, special)
        else:
            loss_mask = [piece.spans == "all"] * len(ids)
        result[id(piece)] = (ids, loss_mask)
    return result


def _has_end_added(ids: list[int], piece: Piece, tokenizer: Any) -> bool:  # noqa: ANN401
    """Return whether the tokenizer has ended a prompt, as some do with every text: more follows."""
    ended = len(ids) > 1 and ids[-1] == tokenizer.eos_token_id
    return ended and not piece.text.endswith(tokenizer.eos_token)


def _within(
    ids: list[int],
    offsets: list[tuple[int, int]],
    spans: tuple[tuple[int, int], ...],
    special: set[int],
) -> list[bool]:
    """Mark the tokens of the spans, and the mark with which the template ends each of them."""
    loss_mask = [False] * len(ids)
    for start, end in spans:
        inside = [i for i, (begin, stop) in enumerate(offsets) if start <= begin < end and stop]
        for index in inside:
            loss_mask[index] = True
        after = range(inside[-1] + 1, min(inside[-1] + 4, len(ids))) if inside else range(0)
        closing = next((index for index in after if ids[index] in special), None)
        if closing is not None:
            loss_mask[after.start : closing + 1] = [True] * (closing + 1 - after.start)
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
