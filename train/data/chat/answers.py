"""Where the answers of a chat begin and end in what its template writes.

An answer begins after what the model is given when it answers: what the template writes for the
messages before it, with the beginning of an answer. It ends with the token that ends it at
inference: what the template writes after it whatever follows, or the mark of who speaks next.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from os.path import commonprefix

from train.data.chat.messages import Message, is_learned
from train.data.chat.parts import THINKING, begins_thoughts
from train.data.chat.text import ChatText
from train.data.files.bad_line import BadLine

NO_THOUGHTS = re.compile(r"<\|channel>thought\s*<channel\|>")
"""Gemma 4's words for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The tokens of a tokenizer that are no ordinary text."""

    every: re.Pattern[str]
    special: re.Pattern[str]
    """Those between messages; `</tool_call>` is none of them."""
    end: str
    """The tokenizer's own end of a text; nothing if it has none."""

    def shared(self, one: str, other: str) -> str:
        """Return what two texts begin with, without a part of a token."""
        same = len(commonprefix([one, other]))  # noqa: RUF071
        for text in (one, other):
            for token in self.every.finditer(text):
                if token.start() < same < token.end():
                    same = token.start()
                    break
        return one[:same]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer that is learned."""

    begin: int
    end: int
    """After the token that ends it."""
    ends: bool
    """Whether it has such a token."""
    thoughts: bool
    """Whether it has thoughts."""
    calls: int
    """How many functions it calls."""
    unended: bool
    """Whether it begins thoughts and does not end them."""


class Answers:
    """The answers of a chat that are learned, and what is not."""

    def __init__(self, messages: Sequence[Message], chat: ChatText, tokens: Tokens) -> None:
        self._messages = messages
        self._chat = chat
        self._tokens = tokens
        self.text = chat.text
        """The chat; with a token that ends the last answer if the template writes none."""
        self.unlearned: Counter[str] = Counter()
        """What is not learned → how often; `tally.UNLEARNED` has the words."""

    def find(self, learn_from: int) -> Iterator[Answer]:
        """Yield the answers from a message on."""
        for index, message in enumerate(self._messages):
            if message["role"] != "assistant" or index < learn_from:
                continue
            if not is_learned(message):
                self.unlearned["weight 0"] += 1
            elif not self._chat.of(index):
                self.unlearned["empty"] += 1
            elif answer := self._answer(index):
                yield answer

    def _answer(self, index: int) -> Answer | None:
        """Return where an answer begins and ends; None if the template does not want it learned."""
        written = self._chat.written(index)
        self._refuse_lost(index, written)
        if not written:  # nothing but thoughts
            return None
        first = min(written, key=lambda part: self._chat.places[part][0])
        last = max(written, key=lambda part: self._chat.places[part][1])
        start, stop = self._chat.places[first][0], self._chat.places[last][1]
        if any(start < begin < stop for begin, _ in self._others(index)):
            raise BadLine(f"{_named(index)}: the chat template writes another message within it")
        begin = self._begin(index, first)
        if self._chat.generated:
            inside = [low for low, high in self._chat.generated if low < stop and high > start]
            if not inside:
                self.unlearned["not generated"] += 1
                return None
            begin = max(begin, inside[0])
        end, ends = self._end(index, last)
        return Answer(
            begin=begin,
            end=end,
            ends=ends,
            thoughts=any(self._chat.parts[part].kind == "thought" for part in written),
            calls=len(self._messages[index].get("tool_calls") or []),
            unended=begins_thoughts(THINKING.findall(self._messages[index]["content"])),
        )

    def _refuse_lost(self, index: int, written: Sequence[int]) -> None:
        """Refuse an answer that is not written as a whole; count what templates leave out."""
        parts = self._chat.parts
        calls = range(len(self._messages[index].get("tool_calls") or []))
        lost = [part for part in self._chat.of(index) if part not in written]
        kinds = {parts[part].kind for part in lost if self._chat.is_marked(part)}
        called = {parts[part].call for part in written if parts[part].kind == "call"}
        texts = [part for part in lost if parts[part].kind == "text"]
        if "call" in kinds or not called.issuperset(calls) or (texts and not calls):
            raise BadLine(f"{_named(index)}, is not to be found in the template's text")
        if texts:
            self.unlearned["texts"] += 1
        if "thought" in kinds:
            self.unlearned["thoughts"] = 1

    def _begin(self, index: int, first: int) -> int:
        """Return where the model begins to write: after what it is given."""
        at = self._chat.places[first][0]
        low, begin = self._after_prompt(index, at) if index else (0, None)
        # The prompt differs if an empty answer is before it, or if a template begins an
        # answer only after a question; but the answers in the text begin alike.
        header = self._after_header(low if begin is None else begin, at)
        begin = begin if header is None else header
        if begin is not None:
            return begin
        lead = self._chat.parts[first].lead
        if lead is not None and self._chat.text.endswith(lead, 0, at):
            return at - len(lead)  # without anything that the template puts before it
        given = self._chat.given(index)[1] if index else self._headers[0]
        said = f"the model is given {given[-40:]!r} before it, and the template writes another text"
        raise BadLine(f"{_named(index)}: {said}")

    def _after_prompt(self, index: int, first: int) -> tuple[int, int | None]:
        """Return where the last part before an answer ends, and what the model is given with it.

        The second is None if the text has something else.
        """
        at, given = self._chat.given(index)
        same = self._tokens.shared(given, self._chat.text[at:first])
        # The prompt may begin thoughts that an answer of an earlier turn has not.
        return at, at + len(same) if _is_thinking(given[len(same) :]) else None

    def _after_header(self, low: int, first: int) -> int | None:
        """Return where the beginning of an answer ends, among the template's own words."""
        if not self._tokens.special.search(self._chat.text, low, first):
            return None
        for header in self._headers:
            for length in range(len(header), 0, -1):
                at = self._chat.text.rfind(header[:length], low, first)
                if at >= 0 and _is_thinking(header[length:]):
                    after = self._chat.text[at + length : first]
                    another = any(token in after for token in self._ends)
                    return None if another else at + length
        return None

    @cached_property
    def _ends(self) -> set[str]:
        ends = {token.group() for token in self._tokens.special.finditer(self._chat.question()[0])}
        return {*ends, self._tokens.end} - {""}

    @cached_property
    def _headers(self) -> tuple[str, ...]:
        """Return what the template begins an answer with; also without what ends a question."""
        without, asked = self._chat.question()
        header = asked[len(self._tokens.shared(without, asked)) :]
        end = self._first_token(header)
        return header, header[end.end() :].lstrip() if end else ""

    def _end(self, index: int, last: int) -> tuple[int, bool]:
        """Return where an answer ends, and whether a token ends it."""
        if index == len(self._messages) - 1:
            return self._end_of_chat(index, last)
        at = self._chat.places[last][1]
        starts = [begin for begin, _ in self._others(index) if begin >= at]
        after = self._chat.text[at : min(starts, default=None)]
        own = self._own(index, last, after)
        if length := self._closed(index, own):
            return at + length, True
        token = self._first_token(after[len(own) :])
        if token and (
            self._messages[index + 1]["role"] not in {"assistant", "system"}
            or token.group() == self._token_after(index, last)
        ):
            return at + len(own) + token.end(), True
        return at + len(own.rstrip()), False

    def _end_of_chat(self, index: int, last: int) -> tuple[int, bool]:
        """Return where the last answer ends; it gets a token that ends it if it has none."""
        at = self._chat.places[last][1]
        tail = self._chat.text[at:]
        token = self._first_token(tail)
        if token and token.group() == tail.strip():
            return at + token.end(), True
        after = self._chat.after(index, last)
        own = tail if after is None else self._tokens.shared(tail, after)
        if length := self._closed(index, own):
            return at + length, True
        if token := self._tokens.special.search(tail):
            return at + token.end(), True
        added = self._token_after(index, last)
        own = own if added and own.rstrip() == tail.rstrip() else tail.rstrip()
        added = added or self._tokens.end
        self.text = self._chat.text[:at] + own + added
        return len(self.text), bool(added)

    def _own(self, index: int, last: int, after: str) -> str:
        """Return what the template writes after an answer whatever follows it."""
        tail = self._chat.tail(index, last)
        own = self._tokens.shared(tail or "", after)
        ended = tail is not None and own.rstrip() == tail.rstrip()
        if self._messages[index].get("tool_calls") and not ended and not self._closed(index, own):
            raise BadLine(f"{_named(index)}: it cannot be found where its calls end")
        return own

    def _closed(self, index: int, own: str) -> int:
        """Return how far it is to the end of the token that ends an answer; 0 without one."""
        calls = self._messages[index].get("tool_calls")
        special = calls or self._tokens.special.search(own)
        tokens = list((self._tokens.special if special else self._tokens.every).finditer(own))
        # What ends a call comes last: a name among its arguments may well be a token. A template
        # may begin the next answer after another's end, whether asked to or not.
        last = _run(own, tokens) or ([] if calls else tokens[:1])
        ends = [token for token in last if token.group() == self._tokens.end] or last[-1:]
        return ends[0].end() if ends else 0

    def _token_after(self, index: int, last: int) -> str:
        """Return the mark of who speaks after an answer; nothing without one."""
        after = self._chat.after(index, last)
        if after is None:
            return ""
        token = self._first_token(after[len(self._own(index, last, after)) :])
        return token.group() if token else ""

    def _first_token(self, text: str) -> re.Match[str] | None:
        """Return the special token that a text begins with, after space."""
        token = self._tokens.special.search(text)
        return token if token and not text[: token.start()].strip() else None

    def _others(self, index: int) -> list[tuple[int, int]]:
        parts = self._chat.parts
        return [at for part, at in self._chat.places.items() if parts[part].message != index]


def _run(text: str, tokens: Sequence[re.Match[str]]) -> list[re.Match[str]]:
    """Return the tokens at the end of a text that have nothing but space after them."""
    begin, low = len(tokens), len(text)
    while begin and not text[tokens[begin - 1].end() : low].strip():
        begin -= 1
        low = tokens[begin].start()
    return list(tokens[begin:])


def _is_thinking(text: str) -> bool:
    """Return whether a text does no more than to begin thoughts, or to say that there are none."""
    return not THINKING.sub("", NO_THOUGHTS.sub("", text)).strip()


def _named(index: int) -> str:
    return f"messages: message {index + 1}, an answer"
