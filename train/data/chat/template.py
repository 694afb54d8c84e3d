"""A chat as the tokenizer's template writes it, and which of its characters the loss counts.

Templates differ in what they write after an answer, where they put the system message, and which
thoughts they keep. So nothing is assumed about them: they write a chat twice, the second time with
marks around the parts of its messages (`parts`), which must not change what they write
(`text`). Answers are found by these marks (`answers`); one that is not is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache, cached_property, partial
from typing import Any

from train.data.chat.answers import Answer, Answers, Tokens
from train.data.chat.messages import (
    Message,
    checked_arguments,
    checked_tools,
    cleaned,
    for_template,
)
from train.data.chat.parts import Marks
from train.data.chat.pictures import as_parts
from train.data.chat.text import ChatText
from train.data.files.bad_line import BadLine
from train.data.tally import unlearned_words

DATE = date(2024, 7, 26)
"""Today's date for templates that print it: tokens must not depend on the day of the run. It is
the date that Llama's templates print if they cannot ask."""
DIRECTIVES = ("-d", "-m", "-H", "-I", "-M", "-S", "-j", *"aAbBcdDeFGhHIjmMpRSTuUVwWxXyYzZ")
"""What a template may ask for in a date's format, after the %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A chat as text."""

    text: str
    answers: tuple[Answer, ...]
    """Those that are learned, in their order."""
    literals: tuple[tuple[int, int], ...]
    """Where texts of messages have special tokens of the tokenizer."""
    hidden: tuple[str, ...]
    """Special tokens of such texts whose place is not known."""
    unlearned: Mapping[str, int]
    """What of its answers is not learned → how often."""

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Return which characters the loss counts: each answer, and the token that ends it."""
        return tuple((answer.begin, answer.end) for answer in self.answers)


class ChatTemplate:
    """The chat template of a tokenizer."""

    def __init__(self, tokenizer: Any, arguments: Mapping[str, Any] | None = None) -> None:
        """Take a tokenizer; `arguments` are the template's own, such as enable_thinking."""
        self._tokenizer = tokenizer
        self._arguments = dict(arguments or {})
        self._in_parts = getattr(tokenizer, "vision", None) is not None

    def write(
        self,
        messages: list[Message],
        *,
        tools: Any = None,
        arguments: Any = None,
        learn_from: int = 0,
    ) -> Chat:
        """Return a chat as its template writes it.

        The chat's own `arguments` of the template win over everyone's. Answers before message
        `learn_from` are not learned.
        """
        if not self.exists:
            raise BadLine("messages: expected a tokenizer with a chat template, found none")
        said = cleaned(messages)
        render = partial(
            self._render,
            tools=checked_tools(tools),
            arguments=self._arguments | checked_arguments(arguments),
        )
        chat = ChatText(render, [for_template(message) for message in said])
        _refuse_dropped(said, chat)
        answers = Answers(said, chat, self.tokens)
        found = tuple(answers.find(learn_from))
        if not found:
            raise BadLine(f"messages: expected an answer to learn, found {_none(said, answers)}")
        return Chat(
            text=answers.text,
            answers=found,
            literals=tuple(self._literals(chat)),
            hidden=tuple(self._hidden(chat)),
            unlearned=answers.unlearned,
        )

    @property
    def exists(self) -> bool:
        """Whether the tokenizer has one."""
        return bool(self._tokenizer.chat_template)

    @cached_property
    def tokens(self) -> Tokens:
        """Return the tokenizer's tokens that are no ordinary text."""
        added = self._tokenizer.added_tokens_decoder.values()
        special = {*self._tokenizer.all_special_tokens}
        special |= {str(token.content) for token in added if token.special}
        return Tokens(
            every=_any_of({*special, *(str(token.content) for token in added)}),
            special=_any_of(special),
            end=str(self._tokenizer.eos_token or ""),
        )

    def _literals(self, chat: ChatText) -> Iterator[tuple[int, int]]:
        """Yield where texts of messages have special tokens: these come from the data."""
        extents = (chat.extent(part) for part in range(len(chat.parts)))
        for begin, end in sorted(filter(None, extents)):
            for token in self.tokens.special.finditer(chat.text, begin, end):
                yield token.span()

    def _hidden(self, chat: ChatText) -> Iterator[str]:
        """Yield special tokens in texts that the template looks into: their place is not known."""
        for number, part in enumerate(chat.parts):
            left_out = number not in chat.places and chat.is_marked(number)
            if not left_out and chat.extent(number) is None:
                yield from self.tokens.special.findall(part.text)

    def _render(
        self,
        messages: Sequence[Message],
        *,
        tools: list[Any] | None,
        arguments: dict[str, Any],
        prompt: bool = False,
        marks: Marks | None = None,
    ) -> str:
        if not messages:
            return ""
        try:
            template = dated(self._tokenizer.get_chat_template(tools=tools))
            text = self._tokenizer.apply_chat_template(
                list(map(as_parts, messages)) if self._in_parts else list(messages),
                tools=tools,
                tokenize=False,
                add_generation_prompt=prompt,
                **{"chat_template": marks.template(template) if marks else template, **arguments},
            )
        except Exception as error:  # noqa: BLE001  (templates raise what they like)
            raise BadLine(f"messages: the chat template refuses them: {error}") from None
        if tools and marks is None:  # (the first time, without marks)
            without = self._render(messages, tools=None, arguments=arguments, prompt=prompt)
            if without == text:
                raise BadLine("tools: expected a chat template that writes them, found none")
        return str(text)


def _any_of(tokens: set[str]) -> re.Pattern[str]:
    ordered = sorted(tokens - {""}, key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, ordered)) or r"(?!)")


def _refuse_dropped(messages: Sequence[Message], chat: ChatText) -> None:
    """Refuse a chat of which the template leaves out what is no answer."""
    for number, part in enumerate(chat.parts):
        role = messages[part.message]["role"]
        if role != "assistant" and number not in chat.places and chat.is_marked(number):
            said = f"expected a chat template that writes the role {role}, found none"
            raise BadLine(f"messages: message {part.message + 1}: {said}")


def _none(messages: Sequence[Message], answers: Answers) -> str:
    roles = dict.fromkeys(message["role"] for message in messages)
    return unlearned_words(answers.unlearned) or f"the roles {', '.join(roles)}"


@cache
def dated(template: str) -> str:
    """Return a template that prints DATE instead of asking for today's date.

    A macro comes before transformers' own function of its name. The line break after it is not
    written, so that the template begins a line as before.
    """
    if "strftime_now" not in template:
        return template
    parts = {f"%{letter}": DATE.strftime(f"%{letter}") for letter in DIRECTIVES}
    filters = "".join(f"|replace({part!r}, {text!r})" for part, text in parts.items())
    macro = f"{{% macro strftime_now(format) %}}{{{{ format{filters} }}}}{{% endmacro %}}"
    return f"{macro}\n{template}"
