"""A chat as its template writes it, with the place of each part of a message, proven by marks.

The template is given the chat twice: as it is, and with marks around its parts. What it writes has
to be the same but for the marks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from train.data.chat.messages import Message, with_text_arguments
from train.data.chat.parts import PROBE, Marks, Part, Which, Written
from train.data.files.bad_line import BadLine

NEXT = "What comes next?"


class Render(Protocol):
    """A template with the tools and the arguments of one chat."""

    def __call__(
        self, messages: Sequence[Message], *, prompt: bool = False, marks: Marks | None = None
    ) -> str:
        """Return messages as text."""


class FormRefused(BadLine):
    """The template does not take the chat in this form."""


class ChatText:
    """A chat as its template writes it."""

    def __init__(self, render: Render, messages: Sequence[Message]) -> None:
        self._render = render
        self._prompts: dict[int, Written] = {}
        self._after: dict[int, str | None] = {}
        try:
            self._write(messages)
        except FormRefused:
            if not any(message.get("tool_calls") for message in messages):
                raise
            # DeepSeek's joins the arguments of a call to its text.
            as_text = with_text_arguments(list(messages))
            self._write(as_text)
            self._refuse_encoded_twice(as_text)
        self.text = self._written.text
        self.places = self._written.places
        self.generated = self._written.generated
        if len(messages) > 1 and messages[-1]["role"] == "assistant":
            self._put_after_prompt(len(messages) - 1)

    @property
    def parts(self) -> Sequence[Part]:
        """Return the parts of the messages, in their order."""
        return self._marks.parts

    def is_marked(self, part: int) -> bool:
        """Return whether a part has marks: then it is left out if it has no place."""
        return self._marks.which.get(part) != "none"

    def of(self, message: int) -> list[int]:
        """Return the parts of a message."""
        return [at for at, part in enumerate(self.parts) if part.message == message]

    def written(self, message: int) -> list[int]:
        """Return the parts of a message that the template writes."""
        return [part for part in self.of(message) if part in self.places]

    def extent(self, part: int) -> tuple[int, int] | None:
        """Return where a part is; None if its marks do not tell, or it is left out."""
        if part not in self.places:
            return None
        begin, end = self.places[part]
        which, text = self._marks.which.get(part, "both"), self.parts[part].text
        if which == "open":
            return (begin, begin + len(text)) if self.text.startswith(text, begin) else None
        if which == "close":
            return (end - len(text), end) if self.text.endswith(text, 0, end) else None
        return begin, end

    def prompt(self, message: int) -> Written:
        """Return what the model is given when it writes a message."""
        if message not in self._prompts:
            self._prompts[message] = self._read(self._marks.messages[:message], prompt=True)
        return self._prompts[message]

    def tail(self, message: int, part: int) -> str | None:
        """Return what the template writes after a message's last part if the chat ends there.

        None if the template refuses that, or does not write the part.
        """
        try:
            last = message == len(self._marks.messages) - 1
            until = self._written if last else self._read(self._marks.messages[: message + 1])
        except BadLine:
            return None
        return until.text[until.places[part][1] :] if part in until.places else None

    def given(self, message: int) -> tuple[int, str]:
        """Return where what is before a message ends, and what the model is given after it."""
        prompt = self.prompt(message)
        first = min(self.places[part][0] for part in self.written(message))
        both = [at for at in prompt.places if at in self.places and self.places[at][1] <= first]
        if not both:
            return 0, prompt.text
        last = max(both, key=lambda part: self.places[part][1])
        return self.places[last][1], prompt.text[prompt.places[last][1] :]

    def after(self, message: int, part: int) -> str | None:
        """Return what the template writes between a message's last part and who speaks next.

        None if the template refuses the two, or does not write them.
        """
        if message not in self._after:
            self._after[message] = self._between(message, part)
        return self._after[message]

    def question(self) -> tuple[str, str]:
        """Return what follows a question: without, and with the beginning of an answer."""
        user = [{"role": "user", "content": self._marks.probe(NEXT)}]
        try:
            written = [self._read(user, prompt=prompt) for prompt in (False, True)]
        except BadLine:
            return "", ""
        without, asked = (
            each.text[each.places[PROBE][1] :] if PROBE in each.places else "" for each in written
        )
        return without, asked

    def _read(self, messages: Sequence[Message], *, prompt: bool = False) -> Written:
        return self._marks.read(self._render(messages, prompt=prompt, marks=self._marks))

    def _write(self, messages: Sequence[Message]) -> None:
        """Have it written with marks that change nothing else."""
        try:
            text = self._render(messages)
        except BadLine as error:
            raise FormRefused(str(error)) from None
        if self._is_same(text, messages):
            return
        # Templates look into texts, as for /no_think in a question: those do without a mark there.
        count = len(self._marks.parts)
        asked = [
            at
            for at, part in enumerate(self._marks.parts)
            if messages[part.message]["role"] != "assistant"
        ]
        for tried in ("open", "close"):
            if self._is_same(text, messages, dict.fromkeys(asked, tried)):
                return
        none: dict[int, Which] = dict.fromkeys(range(count), "none")
        which = dict(none)
        for number, part in enumerate(self._marks.parts):
            answers = messages[part.message]["role"] == "assistant"
            tries: tuple[Which, ...] = ("both",) if answers else ("both", "open", "close")
            for tried in tries:
                if self._is_same(text, messages, none | {number: tried}):
                    which[number] = tried
                    break
        if not self._is_same(text, messages, which):
            said = "writes other things around marked texts, so what is learned cannot be proven"
            raise BadLine(f"messages: the chat template {said}")

    def _is_same(
        self, text: str, messages: Sequence[Message], which: Mapping[int, Which] | None = None
    ) -> bool:
        """Have it written with marks, and return whether the text is the same without them."""
        self._marks = Marks(messages, which)
        try:
            marked = self._render(self._marks.messages, marks=self._marks)
        except BadLine:
            return False
        said = [str(message["content"]) for message in self._marks.messages]
        for given in map(str, _objects(self._marks.messages)):
            if given in marked and not any(given in text for text in said):
                raise FormRefused(
                    "messages: the chat template writes a call's arguments as Python does"
                )
        self._written = self._marks.read(marked)
        return self._written.text == text

    def _refuse_encoded_twice(self, messages: Sequence[Message]) -> None:
        """Refuse a template that takes the text of a call's arguments for a text to encode."""
        calls = (call for message in messages for call in message.get("tool_calls") or [])
        for call in calls:
            twice = json.dumps(call["function"]["arguments"], ensure_ascii=False)
            if twice in self._written.text:
                raise BadLine("messages: the chat template encodes the arguments of a call twice")

    def _between(self, message: int, part: int) -> str | None:
        said = self._marks.messages[message]
        following: Message = {"role": "user", "content": self._marks.probe(NEXT)}
        if calls := said.get("tool_calls"):
            following |= {"role": "tool", "name": calls[0]["function"]["name"]}
            following |= {"tool_call_id": calls[0]["id"]} if "id" in calls[0] else {}
        try:
            written = self._read([*self._marks.messages[: message + 1], following])
        except BadLine:
            return None
        if not {part, PROBE} <= written.places.keys():
            return None
        return written.text[written.places[part][1] : written.places[PROBE][0]]

    def _put_after_prompt(self, last: int) -> None:
        """Put the last answer after what the model is given when it writes it.

        Some templates write the system message or the tools before the question that is last,
        and nowhere once it has its answer: Mistral's.
        """
        prompt = self.prompt(last)
        if not self.written(last) or self.text.startswith(prompt.text):
            return
        at, given = self.given(last)
        if not self.text.startswith(given, at):
            return
        moved = len(prompt.text) - at - len(given)

        def move(place: tuple[int, int]) -> tuple[int, int]:
            return place[0] + moved, place[1] + moved

        own = {part: move(self.places[part]) for part in self.written(last)}
        later = (move(place) for place in self.generated if place[0] >= at)
        self.text = prompt.text + self.text[at + len(given) :]
        self.places = {**prompt.places, **own}
        self.generated = (*prompt.generated, *later)


def _objects(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    for message in messages:
        for call in message.get("tool_calls") or []:
            given = call["function"]["arguments"]
            if isinstance(given, dict) and given:
                yield given
