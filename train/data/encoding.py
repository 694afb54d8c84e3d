"""From texts to token ids, and which of them the loss counts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, islice, pairwise
from typing import Any

from train.config.config import Config, Overlong
from train.data.files.bad_line import BadLine
from train.data.files.lines import Line
from train.data.formats import Document, Piece, Reader, Rules
from train.data.images import Picture
from train.data.tally import Tally
from train.errors import ConfigError

Offsets = list[tuple[int, int]]
"""Of each token where it begins and ends in its text."""
IGNORED = -100
"""Hugging Face's label of a token that no loss is taken of."""
BEGINS = -101
"""Label of the first token of a pair's second text: no loss is taken of it either."""
TOGETHER = 256
"""Lines tokenized in one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Token ids, and for each whether the loss counts it."""

    ids: list[int]
    loss_mask: list[bool]
    tally: Tally | None = None
    """What of a chat is learned."""
    pictures: tuple[Picture, ...] = ()
    whole: int = 0
    """How many tokens the line has, if that is more than seq_len; a sample that is dropped for
    it has no ids."""
    second: int = 0
    """Of a pair, where the rejected text begins after the chosen one; 0 without a pair."""

    @classmethod
    def pair(cls, chosen: list[Sample], rejected: list[Sample]) -> list[Sample]:
        """Return both texts as one sample; none if one has none, without ids if one is dropped."""
        if not (chosen and rejected):
            return []
        both, (one, other) = (*chosen, *rejected), (chosen[0], rejected[0])
        whole = max(each.whole for each in both)
        if not (one.ids and other.ids):
            return [cls(ids=[], loss_mask=[], whole=whole)]
        tally = Tally()
        for each in both:
            tally.add(each.tally or Tally())
        return [
            cls(
                ids=one.ids + other.ids,
                # Nothing predicts the first token of a text.
                loss_mask=[*one.loss_mask, False, *other.loss_mask[1:]],
                tally=tally,
                whole=whole,
                second=len(one.ids),
            )
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A line of the data as samples."""

    line: Line
    samples: list[Sample]
    reason: str = ""
    """Why there is none to learn from."""
    usable: bool = True
    """Whether that is no fault of the line: it is only too long."""


def encode_lines(
    lines: Iterator[Line], rules: Rules, tokenizer: Any, config: Config
) -> Iterator[Encoded]:
    """Yield each line's samples, or why it has none."""
    reader = Reader(tokenizer, config.chat_template_kwargs, rules)
    nothing = f"nothing to learn within seq_len {config.seq_len}: a long prompt needs a larger one"
    while together := list(islice(lines, TOGETHER)):
        documents: dict[int, list[Document]] = {}
        reasons: dict[int, str] = {}
        for line in together:
            try:
                documents[line.number] = reader.read_all(line.content, line.where)
            except BadLine as error:
                reasons[line.number] = str(error)
        every = list(chain.from_iterable(documents.values()))
        made = encode(every, tokenizer, config.seq_len, config.overlong)
        if config.in_pairs:
            made = [Sample.pair(*both) for both in zip(made[::2], made[1::2], strict=True)]
        samples_of = dict(zip(documents, made, strict=True))
        for line in together:
            samples = samples_of.get(line.number, [])
            if not samples:
                reason = reasons.get(line.number, nothing)
                yield Encoded(line=line, samples=[], reason=reason, usable=False)
            elif samples[0].ids:
                yield Encoded(line=line, samples=samples)
            else:
                whole = samples[0].whole
                reason = f"dropped: {whole} tokens are more than seq_len {config.seq_len}"
                yield Encoded(line=line, samples=samples, reason=reason)


def begin_of(tokenizer: Any) -> list[int]:
    """Return the tokens that come before every text; no setting says it for all tokenizers."""
    marked, bare = (
        list(tokenizer("a", add_special_tokens=special)["input_ids"]) for special in (True, False)
    )
    starts = range(len(marked) - len(bare) + 1)
    return marked[: next(at for at in starts if marked[at : at + len(bare)] == bare)]


def encode(
    documents: Sequence[Document], tokenizer: Any, seq_len: int, overlong: Overlong = "cut"
) -> list[list[Sample]]:
    """Return the samples of each document; a document without anything to learn has none.

    With `drop`, a document that is longer than seq_len has one without ids.
    """
    split = [list(_pieces(document)) for document in documents]
    tokens = _tokens(split, tokenizer)
    # A token that begins before an answer, as " Yes" after "assistant: ", is none that the model
    # writes: there the answer is tokenized by itself, as it is after a prompt.
    apart = [at for at, found in enumerate(tokens) if any(each.straddles for each in found)]
    if apart:
        again = [list(_pieces(documents[at], answers_apart=True)) for at in apart]
        for at, pieces, found in zip(apart, again, _tokens(again, tokenizer), strict=True):
            split[at], tokens[at] = pieces, found
    return [
        _samples(document, pieces, found, tokenizer.eos_token_id, seq_len, overlong)
        for document, pieces, found in zip(documents, split, tokens, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The tokens of a piece."""

    ids: list[int]
    loss_mask: list[bool]
    begins: list[int]
    """Where in its text each begins; empty if not asked for."""
    straddles: bool = False
    """Whether one of them begins before an answer and ends in it."""


def _pieces(document: Document, *, answers_apart: bool = False) -> Iterator[Piece]:
    """Yield the pieces of a document; what is to be tokenized by itself is one."""
    if document.chat is None or not (document.literals or answers_apart):
        yield from document.pieces
        return
    (piece,) = document.pieces
    spans = document.chat.spans
    begins = {low for low, _ in spans} if answers_apart else set()
    bounds = {0, len(piece.text), *begins, *chain.from_iterable(document.literals)}
    for begin, end in pairwise(sorted(bounds)):
        yield replace(
            piece,
            text=piece.text[begin:end],
            spans=tuple(
                (max(low, begin) - begin, min(high, end) - begin)
                for low, high in spans
                if low < end and high > begin
            ),
            within=begin > 0,
            literal=(begin, end) in document.literals,
        )


def _tokens(split: Sequence[list[Piece]], tokenizer: Any) -> list[list[Tokens]]:
    """Return the tokens of each document's pieces; like pieces are tokenized in one call."""
    pieces = list(chain.from_iterable(split))
    groups: dict[tuple[bool, bool, bool], list[int]] = {}
    for at, piece in enumerate(pieces):
        kind = (isinstance(piece.spans, tuple), piece.within, piece.literal)
        groups.setdefault(kind, []).append(at)
    found: dict[int, Tokens] = {}
    for numbers in groups.values():
        group = [pieces[at] for at in numbers]
        found.update(zip(numbers, _tokenize(group, tokenizer), strict=True))
    ordered = iter(found[at] for at in range(len(pieces)))
    return [list(islice(ordered, len(each))) for each in split]


def _tokenize(group: list[Piece], tokenizer: Any) -> Iterator[Tokens]:
    """Tokenize like pieces in one call: the tokenizer uses all cores for that."""
    spanned = isinstance(group[0].spans, tuple)
    if spanned and not tokenizer.is_fast:
        kind = type(tokenizer).__name__
        raise ConfigError(
            f"name_or_path: expected a fast tokenizer for chats, found {kind}, a slow one",
            hint="lines of text, or of prompt and completion, need no fast one",
        )
    # Tokenizers of SentencePiece's kind put a space before a text, but not after a line break.
    before = "\n" if group[0].within else ""
    literal = group[0].literal

    def tokens(texts: list[str]) -> Iterator[tuple[list[int], Offsets]]:
        answer = tokenizer(
            texts,
            add_special_tokens=False,
            return_attention_mask=False,
            return_offsets_mapping=spanned,
            split_special_tokens=literal,
        )
        none: list[Offsets] = [[]] * len(texts)
        return zip(answer["input_ids"], answer["offset_mapping"] if spanned else none, strict=True)

    line_break = list(tokenizer("\n", add_special_tokens=False)["input_ids"]) if before else []
    begin, skip = begin_of(tokenizer), len(line_break)
    found = tokens([before + piece.text for piece in group])
    for piece, (all_ids, all_offsets) in zip(group, found, strict=True):
        ids = list(all_ids[skip:])
        offsets = [(low - len(before), high - len(before)) for low, high in all_offsets[skip:]]
        if list(all_ids[:skip]) != line_break:  # one token with what follows
            ((ids, offsets),) = tokens([piece.text])
        if piece.special and ids[: len(begin)] != begin:  # else the text has them already
            ids = [*begin, *ids]
        if isinstance(piece.spans, tuple):
            yield _spanned(ids, offsets, piece.spans)
        else:
            yield Tokens(ids=ids, loss_mask=[piece.spans == "all"] * len(ids), begins=[])


def _spanned(ids: list[int], offsets: Offsets, spans: tuple[tuple[int, int], ...]) -> Tokens:
    """Mark the tokens that begin in one of the spans, which are in order."""
    loss_mask = []
    straddles = False
    following = iter(spans)
    end, after = -1, next(following, None)
    for begin, stop in offsets:
        while after and begin >= after[0]:
            end, after = after[1], next(following, None)
        loss_mask.append(begin < end and stop > 0)
        straddles = straddles or (after is not None and stop > after[0])
    begins = [low for low, _ in offsets]
    return Tokens(ids=ids, loss_mask=loss_mask, begins=begins, straddles=straddles)


def _samples(
    document: Document,
    pieces: Sequence[Piece],
    tokens: Sequence[Tokens],
    eos: int | None,
    seq_len: int,
    overlong: Overlong,
) -> list[Sample]:
    ids = list(chain.from_iterable(each.ids for each in tokens))
    loss_mask = list(chain.from_iterable(each.loss_mask for each in tokens))
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
        whole = len(ids) if len(ids) > seq_len else 0
        if whole and overlong == "drop":
            return [Sample(ids=[], loss_mask=[], whole=whole)]
        begins = _begins(pieces, tokens) if whole and document.chat else []
        end, pictures = _end_beside_pictures(document.pictures, begins, seq_len)
        tally = _tally(document, pictures, begins[end] if begins[end:] else None)
        made = [
            Sample(
                ids=ids[:end],
                loss_mask=loss_mask[:end],
                whole=whole,
                tally=tally,
                pictures=pictures,
            )
        ]
    return [sample for sample in made if any(sample.loss_mask[1:])]


def _begins(pieces: Sequence[Piece], tokens: Sequence[Tokens]) -> list[int]:
    """Return where in the whole text each token begins."""
    starts = accumulate((len(piece.text) for piece in pieces), initial=0)
    return [
        start + begin for start, each in zip(starts, tokens, strict=False) for begin in each.begins
    ]


def _end_beside_pictures(
    pictures: tuple[Picture, ...], begins: Sequence[int], seq_len: int
) -> tuple[int, tuple[Picture, ...]]:
    """Return where a sample of this length ends, before an image that is not whole, and its images.

    Without `begins` nothing is cut.
    """
    if not begins[seq_len:]:
        return seq_len, pictures
    at = begins[seq_len]
    kept = tuple(each for each in pictures if each.span[1] <= at)
    if len(kept) < len(pictures) and pictures[len(kept)].span[0] < at:
        return bisect_left(begins, pictures[len(kept)].span[0]), kept
    return seq_len, kept


def _tally(document: Document, pictures: Sequence[Picture], cut_at: int | None) -> Tally | None:
    """Count what is learned of a chat; an answer that is cut is not learned as a whole."""
    chat = document.chat
    if chat is None:
        return None
    end = len(chat.text) if cut_at is None else cut_at
    whole = [answer for answer in chat.answers if answer.end <= end]
    special = [chat.text[low:high] for low, high in chat.literals if not document.literals]
    special += chat.hidden
    return Tally.of(whole, chat.unlearned, special, [each.tokens for each in pictures])
