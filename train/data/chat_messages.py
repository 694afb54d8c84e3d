"""The messages, tools and template arguments of a line, checked and in the form templates take."""

from __future__ import annotations

import json
from typing import Any

from train.data.bad_line import BadLine

Message = dict[str, Any]

REASONING = ("reasoning_content", "thinking", "reasoning")
"""What a message's thoughts are called; transformers gives a template what it asks for."""
UNLEARNED = {"weight": 0, "train": False, "training": False}
"""What says that an answer is not learned: OpenAI's key, axolotl's, and its older name."""


def cleaned(messages: list[Message]) -> list[Message]:
    """Return messages without empty fields, text as a string, arguments of calls as objects."""
    if not messages:
        raise BadLine("messages: expected an answer of the assistant to learn, found none")
    return [_message(message, number) for number, message in enumerate(messages, start=1)]


def is_learned(message: Message) -> bool:
    """Return whether a message itself says nothing against learning it."""
    return not any(key in message and message[key] == no for key, no in UNLEARNED.items())


def has_answer(message: Message) -> bool:
    """Return whether a message has something to learn, and may be learned."""
    filled = any(message.get(key) for key in ("content", "tool_calls", *REASONING))
    return filled and is_learned(message)


def for_template(message: Message) -> Message:
    """Return a message without the keys that are for the loss."""
    return {key: value for key, value in message.items() if key not in UNLEARNED}


def with_text_arguments(messages: list[Message]) -> list[Message]:
    """Return messages whose calls have their arguments as JSON text, as OpenAI's API has them."""
    return [
        {**message, "tool_calls": [_as_text(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def tools(value: Any) -> list[Any] | None:  # noqa: ANN401  (as the line has them)
    """Return the JSON schemas of functions, which some data sets keep as text; None without any."""
    if isinstance(value, str):
        try:
            value = json.loads(value or "null")
        except ValueError as error:
            raise BadLine(f"tools: expected a list of JSON schemas, found: {error}") from None
    if not value:
        return None
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise BadLine("tools: expected a list of JSON schemas")
    return value


def arguments(value: Any) -> dict[str, Any]:  # noqa: ANN401  (as the line has them)
    """Return a line's own arguments of the template."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadLine(f"chat_template_kwargs: expected an object, found {value!r:.40}")
    return value


def _message(message: Message, number: int) -> Message:
    kept = {key: value for key, value in message.items() if value is not None}
    kept["content"] = _content(kept.get("content", ""), number)
    calls = kept.pop("tool_calls", None)
    if calls:
        kept["tool_calls"] = _calls(calls, number)
    for key in REASONING:
        thoughts = kept.get(key, "")
        if not isinstance(thoughts, str):
            found = type(thoughts).__name__
            raise BadLine(f"messages: {key} of message {number}: expected text, found {found}")
        if not thoughts.strip():  # a data set with such a column has it in every message
            kept.pop(key, None)
    return kept


def _content(content: Any, number: int) -> str:  # noqa: ANN401  (as the line has it)
    """Return a content as text: OpenAI's API has it in parts, too."""
    if isinstance(content, str):
        return content
    wanted = f"messages: content of message {number}: expected text"
    if not isinstance(content, list):
        raise BadLine(f"{wanted}, found {type(content).__name__}")
    texts = []
    for part in content:
        one = part if isinstance(part, dict) else {"type": "text", "text": part}
        kind, text = one.get("type", "text"), one.get("text")
        if kind != "text" or not isinstance(text, str):
            raise BadLine(f"{wanted}, found a part of type {kind}")
        texts.append(text)
    return "".join(texts)


def _calls(calls: Any, number: int) -> list[Message]:  # noqa: ANN401  (as the line has them)
    """Return tool calls with arguments as objects: OpenAI's API has them as text."""
    wanted = f'messages: tool_calls of message {number}: expected a list of {{"function"}}'
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise BadLine(wanted)
    read = []
    for call in calls:
        function: Any = call.get("function", call)  # (some data has the function alone)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadLine(f"{wanted} with a name")
        given = function.get("arguments")
        if isinstance(given, str):
            try:
                given = json.loads(given or "{}")
            except ValueError as error:
                raise BadLine(f"{wanted} with JSON arguments, found: {error}") from None
        function = {**function, "arguments": given if given is not None else {}}
        outer = call if "function" in call else {"type": "function"}
        read.append({**outer, "function": function})
    return read


def _as_text(call: Message) -> Message:
    text = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return {**call, "function": {**call["function"], "arguments": text}}
