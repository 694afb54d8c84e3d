"""A chat as the tokenizer's template writes it, and which of its characters the loss counts.

Templates differ in what they write after an answer, where they put the system message, and which
thoughts they keep. So nothing is assumed about them: they are given chats, and what they write is
compared. `tests/train/data/chat_templates.py` has the forms of five model families.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import date
from functools import cache, cached_property
from os.path import commonprefix
from typing import TYPE_CHECKING, Any, Protocol

from train.data.bad_line import BadLine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DATE = date(2024, 7, 26)
"""Today's date for templates that print it: tokens must not depend on the day of the run. It is
the date that Llama's templates print if they cannot ask."""
DIRECTIVES = ("-d", "-m", "-H", "-I", "-M", "-S", "-j", *"aAbBcdDeFGhHIjmMpRSTuUVwWxXyYzZ")
"""What a template may ask for in a date's format, after the %."""
GAP = 24
"""Characters that a template may write between an answer and the token that ends it."""
NEXT = "(the message after this chat)"
THOUGHT = "</think>"

Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A chat as text."""

    text: str
    spans: tuple[tuple[int, int], ...]
    """Which characters the loss counts: each answer, and the token that ends it at inference."""


class Render(Protocol):
    """A template with the tools and the arguments of one chat."""

    def __call__(self, messages: Sequence[Message], *, prompt: bool = False) -> str:
        """Return messages as text; `prompt` asks for the beginning of an answer after them."""


class ChatTemplate:
    """The chat template of a tokenizer."""

    def __init__(self, tokenizer: Any, arguments: Mapping[str, Any] | None = None) -> None:  # noqa: ANN401  (a transformers tokenizer)
        """Take a tokenizer; `arguments` are the template's own, such as enable_thinking."""
        self._tokenizer = tokenizer
        self._arguments = dict(arguments or {})

    def write(
        self,
        messages: Any,  # noqa: ANN401  (as the line has them)
        *,
        tools: Any = None,  # noqa: ANN401  (the same)
        arguments: Any = None,  # noqa: ANN401  (the same)
        learn_from: int = 0,
    ) -> Chat:
        """Return a chat as its template writes it.

        Args:
            messages: The messages.
            tools: JSON schemas of the functions that the model may call.
            arguments: The template's arguments for this chat; they win over everyone's.
            learn_from: The first message whose answer is learned.

        Raises:
            BadLine: these are no messages, or the template leaves something out.
        """
        if not self.exists:
            raise BadLine("messages: expected a tokenizer with a chat template, found none")
        cleaned = _cleaned(messages)
        render = self._renderer(_tools(tools), self._arguments | _arguments(arguments))
        return _Reading(self, render, cleaned).chat(learn_from)

    @property
    def exists(self) -> bool:
        """Whether the tokenizer has one."""
        return bool(self._tokenizer.chat_template)

    @property
    def end(self) -> str:
        """Return the tokenizer's own end of a text; nothing if it has none."""
        return str(self._tokenizer.eos_token or "")

    @cached_property
    def tokens(self) -> re.Pattern[str]:
        """Match any token that is no ordinary text."""
        added = (str(token.content) for token in self._tokenizer.added_tokens_decoder.values())
        names = {*added, *self._tokenizer.all_special_tokens} - {""}
        ordered = sorted(names, key=lambda name: (-len(name), name))
        return re.compile("|".join(map(re.escape, ordered)) or r"(?!)")

    @cached_property
    def special(self) -> tuple[str, ...]:
        """Return the tokens that are marks between messages; `</tool_call>` is none of them."""
        added = self._tokenizer.added_tokens_decoder.values()
        marked = (str(token.content) for token in added if token.special)
        return tuple({*marked, *self._tokenizer.all_special_tokens} - {""})

    def _renderer(self, tools: list[Any] | None, arguments: dict[str, Any]) -> Render:
        def render(messages: Sequence[Message], *, prompt: bool = False) -> str:
            if not messages:
                return ""
            return self._render(messages, prompt=prompt, tools=tools, arguments=arguments)

        if tools:
            bare = self._renderer(None, arguments)

            def render_with_tools(messages: Sequence[Message], *, prompt: bool = False) -> str:
                text = render(messages, prompt=prompt)
                if text and text == bare(messages, prompt=prompt):
                    raise BadLine("tools: expected a chat template that writes them, found none")
                return text

            return render_with_tools
        return render

    def _render(
        self,
        messages: Sequence[Message],
        *,
        prompt: bool,
        tools: list[Any] | None,
        arguments: dict[str, Any],
    ) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages),
                tools=tools,
                tokenize=False,
                add_generation_prompt=prompt,
                **{
                    "chat_template": dated(self._tokenizer.get_chat_template(tools=tools)),
                    **arguments,
                },
            )
        except Exception as error:  # noqa: BLE001  (templates raise what they like)
            raise BadLine(f"messages: the chat template refuses them: {error}") from None
        return str(text)


class _Reading:
    """One chat, while its answers are looked for in what the template writes."""

    def __init__(self, template: ChatTemplate, render: Render, messages: list[Message]) -> None:
        self._template = template
        self._render = render
        self._messages = messages
        self._text = self._written(messages)

    def chat(self, learn_from: int) -> Chat:
        """Return the text with the spans of its answers."""
        self._refuse_printed()
        self._refuse_dropped()
        found = self._found()
        spans: list[tuple[int, int]] = []
        lowest = 0
        for index, message in enumerate(self._messages):
            if message["role"] != "assistant":
                continue
            learned = index >= learn_from
            if learned and not (_content(message).strip() or message.get("tool_calls")):
                said = f"message {index + 1}, an answer: expected some text, found nothing"
                raise BadLine(f"messages: {said}")
            if message.get("tool_calls"):
                start = self._start(index, lowest, len(self._text))
                end = self._end_of_calls(index, start)
            else:
                at, end = found.get(index, (-1, -1))
                start = self._start(index, lowest, at) if at >= 0 else -1
            if min(start, end) < 0:
                if not learned:
                    continue
                said = f"message {index + 1}, an answer, is not to be found in the template's text"
                raise BadLine(f"messages: {said}")
            end = self._closed(index, end)
            lowest = end
            if learned:
                spans.append((start, end))
        if not spans:
            raise BadLine("messages: expected an answer of the assistant to learn, found none")
        return Chat(text=self._text, spans=tuple(spans))

    def _written(self, messages: list[Message]) -> str:
        """Return the chat, its last answer after what the model is given when it answers.

        Some templates write the system message or the tools before the question that is last,
        and nowhere once it has its answer: Mistral's.
        """
        whole = self._render(messages)
        if messages[-1]["role"] != "assistant" or len(messages) < 2:  # noqa: PLR2004
            return whole
        before = self._render(messages[:-1], prompt=True)
        if whole.startswith(before):
            return whole
        asked = _from_content(before, messages[-2])
        at = whole.rfind(asked) if asked else -1
        return before + whole[at + len(asked) :] if at >= 0 else whole

    def _refuse_printed(self) -> None:
        """Refuse contents in parts where the template has written them as Python prints a list."""
        for number, message in enumerate(self._messages, start=1):
            content = message["content"]
            parts = isinstance(content, list | dict)
            if parts and (message["role"] == "assistant" or str(content) in self._text):
                found = type(content).__name__
                raise BadLine(
                    f"messages: content of message {number}: expected text, found {found}"
                )

    def _refuse_dropped(self) -> None:
        """Refuse a system message or a tool's answer that the template leaves out."""
        marks = {
            index: f"(message {index} of this chat)"
            for index, message in enumerate(self._messages)
            if message["role"] not in {"user", "assistant"} and _content(message).strip()
        }
        if not marks:
            return
        marked = [
            {**message, "content": marks[index]} if index in marks else message
            for index, message in enumerate(self._messages)
        ]
        text = self._written(marked)
        for index, mark in marks.items():
            if mark not in text:
                role = self._messages[index]["role"]
                said = f"expected a chat template that writes the role {role}, found none"
                raise BadLine(f"messages: message {index + 1}: {said}")

    def _found(self) -> dict[int, tuple[int, int]]:
        """Return where each answer begins and ends in the text; those that call tools are not here.

        The template is given marks for answers, to see what it writes between them: a short answer
        may well be found in that too.
        """
        marks = {
            index: f"(answer {index} of this chat)"
            for index, message in enumerate(self._messages)
            if message["role"] == "assistant" and not message.get("tool_calls")
        }
        marked = [
            {**message, "content": marks[index]} if index in marks else message
            for index, message in enumerate(self._messages)
        ]
        rest, at = self._written(marked), 0
        places: dict[int, tuple[int, int]] = {}
        for index, mark in marks.items():
            between, _, rest = rest.partition(mark)
            same = commonprefix([between, self._text[at : at + len(between)]])  # noqa: RUF071
            answer = _content(self._messages[index]).strip()
            # A template that looks into an answer writes other things around it, or no thoughts.
            forms = (answer, answer.rpartition(THOUGHT)[2].strip())
            found = _first(self._text, forms, at + len(same)) or _first(self._text, forms, at)
            if found is None:
                return places
            begin, text = found
            at = begin + len(text)
            places[index] = (begin, at)
        return places

    def _start(self, index: int, lowest: int, highest: int) -> int:
        """Return where the model begins to write an answer: after what it is given."""
        before = self._render(self._messages[:index], prompt=True)
        if self._text.startswith(before) and len(before) <= highest:
            return len(before)
        asked = _from_content(before, self._messages[index - 1])
        at = self._text.find(asked, lowest, highest) if asked else -1
        if at >= 0:
            return at + len(asked)
        # Its beginning may differ, as where thoughts are switched off for the last answer only.
        prompt = before.removeprefix(self._render(self._messages[:index]))
        for length in range(len(prompt), 0, -1):
            at = self._text.find(prompt[:length], lowest, highest)
            if at >= 0:
                return at + length
        return highest if highest < len(self._text) else -1

    def _end_of_calls(self, index: int, start: int) -> int:
        """Return where an answer ends that calls tools: -1 if the template does not write them."""
        calls = self._messages[index]["tool_calls"]
        name = _name(calls[0])
        alone = self._render(self._messages[: index + 1])
        at = alone.find(name) if name else -1
        while at >= 0:
            tail = alone[at:].rstrip()
            begin = self._text.find(tail, max(start, 0))
            if begin >= 0 and all(_name(call) in tail for call in calls):
                return begin + len(tail)
            at = alone.find(name, at + 1)
        return -1

    def _closed(self, index: int, end: int) -> int:
        """Return where the token ends that ends an answer; the last one gets it if it has none."""
        if self._text[:end].endswith(self._template.special):
            return end
        closing = self._template.tokens.search(self._text, end)
        if closing and closing.start() - end <= GAP:
            return closing.end()
        if index == len(self._messages) - 1:
            self._text = self._text[:end] + self._closing()
            return len(self._text)
        return end

    def _closing(self) -> str:
        """Return the token that the template writes after an answer that is not the last."""
        *others, last = self._messages
        if calls := last.get("tool_calls"):
            following = {"role": "tool", "content": NEXT, "name": _name(calls[0])}
            if "id" in calls[0]:
                following["tool_call_id"] = calls[0]["id"]
            mark = self._text[self._text.rfind(_name(calls[-1])) :]
        else:
            following = {"role": "user", "content": NEXT}
            mark = "(answer of this chat)"
            last = {**last, "content": mark}
        try:
            text = self._render([*others, last, following])
        except BadLine:
            return self._template.end
        _, _, after = text.rpartition(mark)
        closing = self._template.tokens.search(after[: after.find(NEXT)])
        return closing.group() if closing and closing.start() <= GAP else self._template.end


@cache
def dated(template: str) -> str:
    """Return a template that prints DATE where it would ask for today's date.

    A macro comes before transformers' own function of its name. The line break after it is not
    written, so that the template begins a line as before.
    """
    if "strftime_now" not in template:
        return template
    parts = {f"%{letter}": DATE.strftime(f"%{letter}") for letter in DIRECTIVES}
    filters = "".join(f"|replace({part!r}, {text!r})" for part, text in parts.items())
    macro = f"{{% macro strftime_now(format) %}}{{{{ format{filters} }}}}{{% endmacro %}}"
    return f"{macro}\n{template}"


def _cleaned(messages: Any) -> list[Message]:  # noqa: ANN401  (as the line has them)
    """Return messages without empty fields, the arguments of their calls as objects.

    Raises:
        BadLine: they are no messages.
    """
    if not isinstance(messages, list) or not all(
        isinstance(item, dict) and isinstance(item.get("role"), str) for item in messages
    ):
        raise BadLine('messages: expected a list of {"role", "content"}')
    if not messages:
        raise BadLine("messages: expected an answer of the assistant to learn, found none")
    cleaned = []
    for number, message in enumerate(messages, start=1):
        kept = {key: value for key, value in message.items() if value is not None}
        kept.setdefault("content", "")
        calls = kept.pop("tool_calls", None)
        if calls:
            kept["tool_calls"] = _calls(calls, number)
        cleaned.append(kept)
    return cleaned


def _calls(calls: Any, number: int) -> list[dict[str, Any]]:  # noqa: ANN401  (as the line has them)
    """Return tool calls with arguments as templates want them: OpenAI's API has them as text."""
    wanted = f'messages: tool_calls of message {number}: expected a list of {{"function"}}'
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise BadLine(wanted)
    read = []
    for call in calls:
        function = call.get("function", call)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadLine(f"{wanted} with a name")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except ValueError as error:
                raise BadLine(f"{wanted} with JSON arguments, found: {error}") from None
        function = {**function, "arguments": arguments if arguments is not None else {}}
        read.append({**call, "function": function} if "function" in call else function)
    return read


def _tools(tools: Any) -> list[Any] | None:  # noqa: ANN401  (as the line has them)
    if isinstance(tools, str):
        try:
            tools = json.loads(tools or "null")
        except ValueError as error:
            raise BadLine(f"tools: expected a list of JSON schemas, found: {error}") from None
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise BadLine("tools: expected a list of JSON schemas")
    return tools


def _arguments(arguments: Any) -> dict[str, Any]:  # noqa: ANN401  (as the line has them)
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise BadLine(f"chat_template_kwargs: expected an object, found {arguments!r:.40}")
    return arguments


def _first(text: str, forms: Sequence[str], low: int) -> tuple[int, str] | None:
    """Return where one of the forms is, at `low` or first after it, and which."""
    for form in forms:
        if text.startswith(form, low):
            return low, form
    return min(((at, form) for form in forms if (at := text.find(form, low)) >= 0), default=None)


def _name(call: Message) -> str:
    return str(call.get("function", call)["name"])


def _content(message: Message) -> str:
    content = message["content"]
    return content if isinstance(content, str) else ""


def _from_content(text: str, message: Message) -> str:
    """Return the end of a text from the last time that it has a message's content."""
    content = _content(message).strip()
    at = text.rfind(content) if content else -1
    return text[at:] if at >= 0 else ""
