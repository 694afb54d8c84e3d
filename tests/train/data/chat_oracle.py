"""What must be learned of a chat: found without train/, from templates that mark it themselves."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass, replace
from datetime import date
from os.path import commonprefix
from typing import TYPE_CHECKING, Any

from tests.train.data.chat_templates import BEGIN, END, OWN, Family

if TYPE_CHECKING:
    from tests.train.data.chat_kinds import Kind

Message = dict[str, Any]
DATE = date(2024, 7, 26)
PROBE = "(a text of nobody)"
OPENED = "<think>"


class TemplateError(Exception):
    """The template refuses a chat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What of a text is one answer."""

    begin: int
    own: int
    """From where it must be learned: what is before it may be given to the model, or not."""
    end: int
    sure: int = 0
    """Until where it must be learned, if not until its end: one whose text has the end, too."""
    is_certain: bool = True
    """Whether it has text or calls, not thoughts only."""

    def moved(self, by: int) -> Answer:
        """Return the answer in a text that is longer before it."""
        return replace(self, begin=self.begin + by, own=self.own + by, end=self.end + by)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a chat must become."""

    text: str
    answers: tuple[Answer, ...]

    @property
    def may(self) -> set[int]:
        """Which characters may be learned."""
        return {at for each in self.answers for at in range(each.begin, each.end)}

    @property
    def must(self) -> set[int]:
        """Which characters must be."""
        certain = (each for each in self.answers if each.is_certain)
        return {at for each in certain for at in range(each.own, each.sure or each.end)}

    def wrong(self, text: str, spans: tuple[tuple[int, int], ...]) -> str:
        """Return what is wrong about a text and the spans learned of it; nothing if it is right."""
        if text != self.text:
            return f"the text is {text!r}, not {self.text!r}"
        counted = {at for span in spans for at in range(*span)}
        if self.must <= counted <= self.may:
            return ""
        return f"learned {shown(text, counted)!r}, not {shown(text, self.may)!r}"


def shown(text: str, places: set[int]) -> str:
    """Return the characters at some places; ¦ where others are between them."""
    said = ""
    for at in sorted(places):
        said += ("¦" if said and at - 1 not in places else "") + text[at]
    return said


@functools.cache
def tokenizer_of(family: Family) -> Any:
    """Return a tokenizer of bytes and the family's own tokens."""
    # (seconds to import: only these tests need them)
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = {letter: at for at, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    bare = Tokenizer(models.BPE(letters, []))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bare.decoder = decoders.ByteLevel()
    marks = [AddedToken(mark, special=True, rstrip=family.strips) for mark in family.marks]
    bare.add_special_tokens(marks)
    bare.add_tokens([AddedToken(word, special=False) for word in family.words])
    return PreTrainedTokenizerFast(
        tokenizer_object=bare,
        bos_token=family.bos or None,
        eos_token=family.eos,
        chat_template=family.template,
    )


def render(family: Family, kind: Kind, *, marked: bool = False, prompt: bool = False) -> str:
    """Return a chat as a family's template writes it.

    Raises:
        TemplateError: it refuses the chat.
    """
    messages = [_plain(message, as_text=family.text_arguments) for message in kind.messages]
    chat = json.dumps([messages, kind.tools, kind.arguments])
    return _rendered(family, chat, marked=marked, prompt=prompt)


@functools.lru_cache(maxsize=4096)
def _rendered(family: Family, chat: str, *, marked: bool, prompt: bool) -> str:
    """Return what a template writes of a chat: the same is asked for three times."""
    template = re.sub(
        r"strftime_now\('([^']*)'\)",
        lambda found: repr(DATE.strftime(found[1])),
        family.marked if marked else family.template,
    )
    messages, tools, arguments = json.loads(chat)
    try:
        return str(
            tokenizer_of(family).apply_chat_template(
                messages,
                tools=tools,
                chat_template=template,
                add_generation_prompt=prompt,
                tokenize=False,
                **arguments,
            )
        )
    except Exception as error:
        raise TemplateError(str(error)) from error


def expected(family: Family, kind: Kind) -> tuple[Expected, ...]:
    """Return what may become of a chat: all of it is right.

    Raises:
        TemplateError: the template refuses it.
    """
    text, answers = _read(render(family, kind, marked=True))
    assert text == render(family, kind), "the marks change what a template writes"
    found = _learned(family, kind, text, answers)
    *before, last = kind.messages
    if last["role"] == "assistant" and before:
        asked = replace(kind, messages=before)
        given = render(family, asked, prompt=True)
        header = _added(given, render(family, asked))
        written = text[: answers[-1].begin]
        if not text.startswith(given) and written.endswith(header):
            # The template writes other things before the last answer once it is there: the last
            # answer after what the model reads when it answers is as right.
            _, earlier = _read(render(family, asked, marked=True, prompt=True))
            moved = len(given) - len(written)
            last_one = answers[-1].moved(moved)
            told = _learned(family, kind, given + text[len(written) :], [*earlier, last_one])
            needs_it = family.asks_last and kind.messages[0]["role"] == "system"
            is_blank = not needs_it or not kind.messages[0]["content"].strip()
            found = [*found, *told] if is_blank else told
    return tuple(found)


def _learned(family: Family, kind: Kind, text: str, answers: list[Answer]) -> list[Expected]:
    """Return what may become of a text; the answers in it have no ends yet that it lacks."""
    places = [at for at, message in enumerate(kind.messages) if message["role"] == "assistant"]
    found = []
    for place, each in zip(places, answers, strict=True):  # a template marks every answer once
        message = kind.messages[place]
        begun = _begun(family, kind, place, text, each)
        is_empty = not (message.get("content") or "").strip() and not message.get("tool_calls")
        has_thoughts = bool((message.get("reasoning_content") or "").strip())
        if message.get("weight") != 0 and (has_thoughts or not is_empty):
            said = (message.get("content") or "").rpartition("</think>")[2]
            is_bare = not message.get("tool_calls") and not _bare(said)
            found.append(_judged(family, text, begun, is_bare=is_bare))
    last = kind.messages[-1]
    if family.writes_end == "always" or last["role"] != "assistant":
        return [Expected(text=text, answers=tuple(found))]
    # The last answer gets the token that ends it at inference; once, if its text has the token.
    end = answers[-1].end
    if not found or found[-1].end != end:
        return [Expected(text=text, answers=tuple(found))]
    closing = (family.end_of_call if last.get("tool_calls") else "") or family.end
    closed = [_closed(family, text[:end] + closing, found[-1], end + len(closing))]
    texts = [text[:end] + closing]
    if text[:end].endswith(closing) or not found[-1].is_certain:
        closed.append(found[-1])
        texts.append(text)
    return [
        Expected(text=each, answers=(*found[:-1], answer))
        for each, answer in zip(texts, closed, strict=True)
    ]


def causes(family: Family, kind: Kind) -> tuple[str, ...]:
    """Return why a chat cannot be learned as it is; nothing if it can."""
    try:
        whole = expected(family, kind)[-1]
    except TemplateError as error:
        return (f"template: {error}",)
    found = set()
    if kind.tools and whole.text == expected(family, replace(kind, tools=None))[-1].text:
        found.add("tools")
    for place, message in enumerate(kind.messages):
        if message["role"] in {"system", "tool"}:
            found |= _unwritten(family, kind, place, {"content": PROBE}, message["role"])
        for at, each in enumerate(message.get("tool_calls") or ()):
            calls = [*message["tool_calls"]]
            calls[at] = {**each, "function": {**each["function"], "name": PROBE}}
            found |= _unwritten(family, kind, place, {"tool_calls": calls}, "calls")
    if not whole.answers:
        found.add("nothing")
    if family.starts_calls_once and sum("tool_calls" in each for each in kind.messages) > 1:
        found.add("start")
    return tuple(sorted(found))


def _unwritten(
    family: Family, kind: Kind, place: int, probe: dict[str, Any], reason: str
) -> set[str]:
    """Return a reason if a template leaves out what is put into a message."""
    probed = [*kind.messages]
    probed[place] = {**probed[place], **probe}
    text = expected(family, replace(kind, messages=probed))[-1].text
    return set() if PROBE in text else {reason}


def _plain(message: Message, *, as_text: bool) -> Message:
    """Return a message as templates want it: no nulls, the arguments of calls as they read them."""
    kept = {"content": "", **{key: value for key, value in message.items() if value is not None}}
    if not kept.get("reasoning_content", "").strip():  # no thoughts
        kept.pop("reasoning_content", None)
    if calls := kept.get("tool_calls"):
        kept["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _arguments(call, as_text)}}
            for call in calls
        ]
    return kept


def _arguments(call: Message, as_text: bool) -> Any:  # noqa: FBT001
    given = call["function"]["arguments"]
    if as_text:
        return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return json.loads(given) if isinstance(given, str) else given


def _read(marked: str) -> tuple[str, list[Answer]]:
    """Return a marked text without its marks, and the answers that they are around."""
    text, answers, places = "", [], {}
    for part in re.split(f"([{BEGIN}{OWN}{END}])", marked):
        if part not in {BEGIN, OWN, END} or not part:
            text += part
            continue
        places[part] = len(text)
        if part == END:
            begin = places[BEGIN]
            answers.append(Answer(begin=begin, own=max(begin, places.get(OWN, 0)), end=len(text)))
            places = {}
    return text, answers


def _begun(family: Family, kind: Kind, place: int, text: str, answer: Answer) -> Answer:
    """Return an answer that begins after what the model is given, if that is what was written."""
    asked = replace(kind, messages=kind.messages[:place])
    try:
        given = render(family, asked, prompt=True)
        header = _added(given, render(family, asked))
    except TemplateError:
        return answer
    if place and text.startswith(given) and answer.begin <= len(given) <= answer.end:
        return replace(answer, begin=len(given), own=len(given))
    written = text[: answer.begin]
    given_too = next(
        header[at:] for at in range(len(header), -1, -1) if written.endswith(header[:at])
    )
    for opened in (given_too, OPENED):
        if given_too.startswith(opened) and text.startswith(opened, answer.begin):
            # What the model is given, or some of it: earlier messages were written otherwise.
            return replace(answer, own=max(answer.own, answer.begin + len(opened)))
    return answer


def _added(given: str, before: str) -> str:
    """Return what a prompt adds to the messages before it."""
    return given[len(commonprefix([given, before])) :]  # noqa: RUF071  (no paths)


def _judged(family: Family, text: str, answer: Answer, *, is_bare: bool) -> Answer:
    """Return an answer with the next message's mark that ends it, and whether it has text."""
    own = text[answer.own : answer.end].removesuffix(family.end).removesuffix(family.eos)
    marks = family.next_marks if family.writes_end == "never" else ()
    follows = next((mark for mark in marks if text.startswith(mark, answer.end)), "")
    certain = replace(answer, is_certain=bool(_bare(own)) and not is_bare)
    return _closed(family, text, certain, answer.end + len(follows))


def _bare(text: str) -> str:
    return text.replace("<think>", "").replace("</think>", "").strip()


def _closed(family: Family, text: str, answer: Answer, end: int) -> Answer:
    """Return an answer with its end; if its own text has an end, too, the first one is enough."""
    own = text[answer.own : end]
    closing = next((mark for mark in family.marks if own.endswith(mark)), "")
    said = own.removesuffix(closing).rstrip()
    ends = tuple({family.end, family.eos, family.end_of_call, *family.next_marks} - {""})
    sure = answer.own + len(said) if closing and said.endswith(ends) else end
    return replace(answer, end=end, sure=sure)
