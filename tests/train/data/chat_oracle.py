"""What must be learned of a chat: found without train/, from templates that mark it themselves."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any

from tests.train.data.chat_templates import BEGIN, END, OWN, Family

if TYPE_CHECKING:
    from tests.train.data.chat_kinds import Kind

Message = dict[str, Any]
DATE = date(2024, 7, 26)
PROBE = "(a text of nobody)"


class TemplateError(Exception):
    """The template refuses a chat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What of a text is one answer."""

    begin: int
    own: int
    """From where it must be learned: what is before it may be given to the model, or not."""
    end: int
    is_certain: bool = True
    """Whether it has more than its end and empty thoughts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a chat must become."""

    text: str
    answers: tuple[Answer, ...]

    def wrong(self, text: str, spans: tuple[tuple[int, int], ...]) -> str:
        """Return what is wrong about a text and the spans learned of it; nothing if all is right."""
        if text != self.text:
            return f"the text is {text!r}, not {self.text!r}"
        counted = {at for span in spans for at in range(*span)}
        may = {at for each in self.answers for at in range(each.begin, each.end)}
        must = {at for each in self.answers if each.is_certain for at in range(each.own, each.end)}
        if must <= counted <= may:
            return ""
        return f"learned {shown(text, counted)!r}, not {shown(text, may)!r}"


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
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    letters = {letter: at for at, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    bare = Tokenizer(models.BPE(letters, []))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bare.decoder = decoders.ByteLevel()
    bare.add_special_tokens([AddedToken(mark, special=True) for mark in family.marks])
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
    template = re.sub(
        r"strftime_now\('([^']*)'\)",
        lambda found: repr(DATE.strftime(found[1])),
        family.marked if marked else family.template,
    )
    try:
        return str(
            tokenizer_of(family).apply_chat_template(
                [_plain(message, as_text=family.text_arguments) for message in kind.messages],
                tools=kind.tools,
                chat_template=template,
                add_generation_prompt=prompt,
                tokenize=False,
                **kind.arguments,
            )
        )
    except Exception as error:
        raise TemplateError(str(error)) from error


def expected(family: Family, kind: Kind) -> Expected:
    """Return what must be learned of a chat.

    Raises:
        TemplateError: the template refuses it.
    """
    text, answers = _read(render(family, kind, marked=True))
    assert text == render(family, kind), "the marks change what a template writes"
    *before, last = kind.messages
    if family.asks_last and last["role"] == "assistant" and before:
        asked = replace_messages(kind, before)
        given = render(family, asked, prompt=True)
        if not text.startswith(given):
            # The last answer follows what the model reads when it answers.
            _, earlier = _read(render(family, asked, marked=True, prompt=True))
            moved = len(given) - answers[-1].begin
            text = given + text[answers[-1].begin :]
            ended = answers[-1].end + moved
            answers = [*earlier, Answer(begin=len(given), own=len(given), end=ended)]
    places = [at for at, message in enumerate(kind.messages) if message["role"] == "assistant"]
    assert len(places) == len(answers), "a template marks every answer once"
    found = []
    for place, spoken in zip(places, answers, strict=True):
        message = kind.messages[place]
        text, learned = _ended(
            family,
            text,
            _begun(family, kind, place, text, spoken),
            message,
            is_last=place == len(kind.messages) - 1,
        )
        is_empty = not (message.get("content") or "").strip() and not message.get("tool_calls")
        if not is_empty and message.get("weight") != 0:
            found.append(learned)
    return Expected(text=text, answers=tuple(found))


def causes(family: Family, kind: Kind) -> list[str]:
    """Return why a chat cannot be learned as it is; nothing if it can."""
    try:
        text = expected(family, kind).text
    except TemplateError as error:
        return [f"template: {error}"]
    found = []
    if kind.tools and text == expected(family, replace(kind, tools=None)).text:
        found.append("tools")
    for place, message in enumerate(kind.messages):
        if message["role"] in {"system", "tool"}:
            probed = [*kind.messages]
            probed[place] = {**message, "content": PROBE}
            if PROBE not in expected(family, replace_messages(kind, probed)).text:
                found.append(message["role"])
    counts = expected(family, kind)
    for place, message in enumerate(kind.messages):
        for number, call in enumerate(message.get("tool_calls") or ()):
            if not _is_written(family, kind, place, number):
                found.append("calls")
    if not counts.answers:
        found.append("nothing")
    return sorted(set(found))


def replace_messages(kind: Kind, messages: list[Message]) -> Kind:
    return replace(kind, messages=messages)


def _is_written(family: Family, kind: Kind, place: int, number: int) -> bool:
    calls = [*kind.messages[place]["tool_calls"]]
    function = {"name": "nobodys", "arguments": calls[number]["function"]["arguments"]}
    calls[number] = {**calls[number], "function": function}
    probed = [*kind.messages]
    probed[place] = {**probed[place], "tool_calls": calls}
    return "nobodys" in expected(family, replace_messages(kind, probed)).text


def _plain(message: Message, *, as_text: bool) -> Message:
    """Return a message as templates want it: no nulls, the arguments of calls as they read them."""
    kept = {"content": "", **{key: value for key, value in message.items() if value is not None}}
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
    try:
        given = render(family, replace_messages(kind, kind.messages[:place]), prompt=True)
    except TemplateError:
        return answer
    if place and text.startswith(given) and answer.begin <= len(given) <= answer.end:
        return replace(answer, begin=len(given), own=len(given))
    return answer


def _ended(
    family: Family, text: str, answer: Answer, message: Message, *, is_last: bool
) -> tuple[str, Answer]:
    """Return a text and an answer in it with the token that ends it at inference."""
    own = text[answer.own : answer.end].removesuffix(family.end).removesuffix(family.eos)
    is_certain = bool(own.replace("<think>", "").replace("</think>", "").strip())
    end = answer.end
    if not family.writes_end and is_last:
        closing = (family.end_of_call if message.get("tool_calls") else "") or family.end
        text = text[:end] + closing
        end = len(text)
    elif not family.writes_end:
        end += next((len(mark) for mark in family.next_marks if text.startswith(mark, end)), 0)
    return text, replace(answer, end=end, is_certain=is_certain)
