"""Marks around the parts of messages: where they come out is where a template writes which part.

A part is a text of a message without the space around it: the content of a question, a thought, the
text of an answer, the name of a called function, a text among its arguments. Each gets two marks,
characters that the chat does not have. A template copies them with the text, whatever it writes
around it, or leaves them out with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from train.data.chat.messages import REASONING, Message
from train.data.files.bad_line import BadLine

Kind = Literal["text", "thought", "call"]
Which = Literal["both", "open", "close", "none"]

THINKING = re.compile(
    r"(</?(?:think|thinking|thought|reasoning|seed:think)>|\[/?THINK\]|<\|(?:START|END)_THINKING\|>)"
)
"""Tags around thoughts within a content: templates split it there, so no part crosses one."""
FIRST, LAST = 0x20000, 0x2A6D0
"""Marks are rare Chinese characters: text to every filter of a template, and printable, so that
Python's repr, which some templates use, leaves them as they are."""
ANY_MARK = re.compile(f"[{chr(FIRST)}-{chr(LAST)}]")
ALPHABET = [chr(at) for at in range(FIRST, LAST)]
PROBE, GENERATED = -1, -2
"""Numbers of what is no part of the chat: a message put after it, and what the template itself
marks as generated."""
GENERATION = re.compile(r"(\{%-?\s*(end)?generation\s*)(-?)%\}(\n?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a message."""

    message: int
    """Which message, from 0."""
    kind: Kind
    text: str
    call: int = 0
    """Which of the message's calls."""
    lead: str | None = None
    """What of its content comes before it: tags around thoughts, and space. None if it is not the
    first part of a content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a template has written, without the marks, and where it has written the parts."""

    text: str
    places: Mapping[int, tuple[int, int]]
    """Number of a part → its beginning and end in the text. A part with one mark only has both
    there; one that the template leaves out is not here, and one that it repeats is where it is
    first."""
    generated: tuple[tuple[int, int], ...]
    """What the template marks as generated."""


class Marks:
    """The marks of a chat's parts."""

    def __init__(
        self, messages: Sequence[Message], which: Mapping[int, Which] | None = None
    ) -> None:
        """Choose marks that no message has; `which` names the parts that do not get both."""
        used = set(ANY_MARK.findall(json.dumps(messages, ensure_ascii=False)))
        free = [mark for mark in ALPHABET if mark not in used] if used else ALPHABET
        self._alphabet, self._own = free[4:], free[:4]
        self._owner = dict(
            zip(
                self._own,
                [(PROBE, True), (PROBE, False), (GENERATED, True), (GENERATED, False)],
                strict=True,
            )
        )
        self.which = dict(which or {})
        self.parts: list[Part] = []
        self.messages = [self._message(message, index) for index, message in enumerate(messages)]

    def probe(self, text: str) -> str:
        """Return the text of a message that is put after a chat, marked."""
        opening, closing, *_ = self._own
        return f"{opening}{text}{closing}"

    def template(self, template: str) -> str:
        """Return a template that writes marks around what it marks as generated."""
        *_, opening, closing = self._own
        return _with_generation(template, opening, closing)

    def read(self, marked: str) -> Written:
        """Return a template's text without the marks, and where the parts are."""
        pieces: list[str] = []
        begins: dict[int, int] = {}
        places: dict[int, tuple[int, int]] = {}
        generated = []
        at = length = 0
        for found in ANY_MARK.finditer(marked):
            owner = self._owner.get(found.group())
            if owner is None:
                continue
            pieces.append(marked[at : found.start()])
            length += found.start() - at
            at = found.end()
            number, opens = owner
            if number in places:
                continue
            if self.which.get(number, "both") != "both":
                places[number] = (length, length)
            elif opens:
                begins.setdefault(number, length)
            elif number == GENERATED:
                generated.append((begins.pop(number), length))
            elif number in begins:
                places[number] = (begins[number], length)
        pieces.append(marked[at:])
        return Written(text="".join(pieces), places=places, generated=tuple(generated))

    def _message(self, message: Message, index: int) -> Message:
        if message["role"] != "assistant":
            content = message["content"]
            if isinstance(content, str):
                return {**message, "content": self._around(content, index, "text")}
            parts = [
                {**part, "text": self._around(part["text"], index, "text")}
                if "text" in part
                else part
                for part in content
            ]
            return {**message, "content": parts}
        marked = dict(message)
        thoughts = {message[key] for key in REASONING if key in message}
        shown = {text: self._around(text, index, "thought") for text in sorted(thoughts)}
        marked |= {key: shown[message[key]] for key in REASONING if key in message}
        marked["content"] = self._answer(message["content"], index)
        if calls := message.get("tool_calls"):
            marked["tool_calls"] = [self._call(call, index, at) for at, call in enumerate(calls)]
        return marked

    def _answer(self, content: str, index: int) -> str:
        """Mark thoughts and text of a content apart."""
        pieces = THINKING.split(content)
        # Where the prompt opens the thoughts, an answer has the tag only that closes them.
        inside = len(pieces) > 1 and _closes(pieces[1])
        marked = []
        for at, piece in enumerate(pieces):
            if at % 2:
                inside = not _closes(piece)
                marked.append(piece)
            else:
                lead = "".join(pieces[:at]) if not any(map(str.strip, pieces[:at:2])) else None
                kind: Kind = "thought" if inside else "text"
                marked.append(self._around(piece, index, kind, lead=lead))
        return "".join(marked)

    def _call(self, call: Message, index: int, at: int) -> Message:
        name = self._around(call["function"]["name"], index, "call", at)
        arguments = self._value(call["function"]["arguments"], index, at)
        return {**call, "function": {**call["function"], "name": name, "arguments": arguments}}

    def _value(self, value: Any, index: int, at: int) -> Any:
        if isinstance(value, str):
            return self._around(value, index, "call", at)
        if isinstance(value, list):
            return [self._value(item, index, at) for item in value]
        if isinstance(value, dict):
            return {key: self._value(item, index, at) for key, item in value.items()}
        return value

    def _around(
        self, text: str, index: int, kind: Kind, call: int = 0, lead: str | None = None
    ) -> str:
        core = text.strip()
        if not core:
            return text
        number = len(self.parts)
        begin = len(text) - len(text.lstrip())
        lead = None if lead is None else (lead + text[:begin]).lstrip()
        self.parts.append(Part(message=index, kind=kind, text=core, call=call, lead=lead))
        which = self.which.get(number, "both")
        if 2 * number + 2 > len(self._alphabet):
            raise BadLine(f"messages: expected at most {number} texts in a chat, found more")
        opening, closing = self._alphabet[2 * number : 2 * number + 2]
        self._owner |= {opening: (number, True), closing: (number, False)}
        opening = opening if which in {"both", "open"} else ""
        closing = closing if which in {"both", "close"} else ""
        return f"{text[:begin]}{opening}{core}{closing}{text[begin + len(core) :]}"


def begins_thoughts(tags: Sequence[str]) -> bool:
    """Return whether the last of some tags begins thoughts."""
    return bool(tags) and not _closes(tags[-1])


def _closes(tag: str) -> bool:
    return "/" in tag or "END" in tag


@cache
def _with_generation(template: str, opening: str, closing: str) -> str:
    """Return a template that writes marks around what it marks as generated.

    A tag of a block takes the line break after it along; an expression does not.
    """

    def with_mark(found: re.Match[str]) -> str:
        tag, ends, strips, line_break = found.groups()
        mark = closing if ends else opening
        return f"{tag}%}}{{{{ '{mark}' {strips}}}}}{line_break if strips else ''}"

    return GENERATION.sub(with_mark, template)
