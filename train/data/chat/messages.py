"""The messages and tasks of a line: other programs' forms turned into OpenAI's, and checked.

Templates take messages with text as a string and the arguments of calls as objects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from train.config.datasets import IN_MESSAGES
from train.data.files.bad_line import BadLine

Message = dict[str, Any]

REASONING = ("reasoning_content", "thinking", "reasoning")
"""What a message's thoughts are called; transformers gives a template what it asks for."""
UNLEARNED = {"weight": 0, "train": False, "training": False}
"""What says that an answer is not learned: OpenAI's key, axolotl's, and its older name."""
ROLES = {
    "human": "user", "user": "user",
    "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "assistant": "assistant",
    "model": "assistant", "system": "system", "developer": "developer",
    "function": "tool", "observation": "tool", "function_response": "tool", "tool": "tool",
}  # fmt: skip
"""What a role is called, in any case → the role that chat templates know."""
STRUCTURED = frozenset(
    {"messages", "conversations", "history", "tools", "functions", "chat_template_kwargs", "images"}
)
"""Keys whose values are no text."""
CALL = "function_call"
"""A role whose text is a call, and OpenAI's old key for one."""

ALPACA = (
    "Below is an instruction that describes a task{context}. Write a response that appropriately "
    "completes the request.\n\n### Instruction:\n{instruction}\n\n{input}### Response:\n"
)
CONTEXT = ", paired with an input that provides further context"


def structured(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record whose lists and mappings are no JSON text, as they are in a table's cells."""
    texts = [key for key in STRUCTURED & record.keys() if isinstance(record[key], str)]
    read = {key: value for key, value in record.items() if value != "" or key not in texts}
    for key in texts:
        with suppress(ValueError):
            read[key] = json.loads(record[key])
    return read


def renamed(record: dict[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """Return a record with some columns under the keys that are read.

    Such a key is read from its column only: another value of that name is not.
    """
    theirs = {*columns.values()}
    kept = {key: value for key, value in record.items() if key not in columns and key not in theirs}
    return kept | {ours: record[name] for ours, name in columns.items() if name in record}


def messages_of(
    key: str, found: Any, columns: Mapping[str, str], roles: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return messages with the roles and keys that chat templates know."""
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        wanted = '{"from", "value"}' if key == "conversations" else '{"role", "content"}'
        raise BadLine(f"{key}: expected a list of {wanted}")
    mapped = {ours: theirs for ours, theirs in columns.items() if ours in IN_MESSAGES}
    messages = []
    for number, item in enumerate(found, start=1):
        try:
            messages.append(_as_openai(renamed(item, mapped) if mapped else item, roles))
        except BadLine as error:
            raise BadLine(f"{key}: message {number}: {error}") from None
    return messages


def _as_openai(item: dict[str, Any], roles: Mapping[str, str]) -> dict[str, Any]:
    message = dict(item)
    of_sharegpt = "from" in item and "role" not in item
    if of_sharegpt:
        # Without a value it is empty, but the value may have another name.
        empty = "" if message.keys() <= {"from", *UNLEARNED} else None
        message = {"role": message.pop("from"), "content": message.pop("value", empty), **message}
        message["content"] = text_of("value", message["content"])
    name = message.get("role")
    if not isinstance(name, str) or (of_sharegpt and not isinstance(message["content"], str)):
        wanted = "from and value" if of_sharegpt else "role and content, or from and value"
        raise BadLine(f"expected {wanted}, found {', '.join(item) or '(none)'}")
    for key, allowed in (("weight", "0 or 1"), ("train", "true or false")):
        for spelling in (key, "training") if key == "train" else (key,):
            if (value := message.get(spelling, 1)) not in (0, 1):
                raise BadLine(f"{spelling}: expected {allowed}, found {value!r:.40}")
    if name == CALL and name not in roles:
        calls = _called(message.get("content"))
        message |= {"role": "assistant", "content": "", "tool_calls": calls}
        return message
    if CALL in message and not message.get("tool_calls"):
        message["tool_calls"] = [{"type": "function", "function": message[CALL]}]
    message.pop(CALL, None)
    role = roles.get(name, ROLES.get(name.casefold()))
    if role is None and of_sharegpt:
        raise BadLine(
            f"expected from {', '.join((*ROLES, CALL))}, found {name} "
            f"(roles: {{{name}: user}} maps it)"
        )
    return message | {"role": role or name}


def _called(text: Any) -> list[dict[str, Any]]:
    try:
        found = json.loads(text)
    except (TypeError, ValueError) as error:
        raise BadLine(f"expected a call as JSON, found: {error}") from None
    calls = found if isinstance(found, list) else [found]
    return [{"type": "function", "function": call} for call in calls]


def with_system(messages: list[dict[str, Any]], system: Any) -> list[dict[str, Any]]:
    """Return messages after the line's own system message, if they have none."""
    text = text_of("system", system)
    if not isinstance(text, str):
        raise BadLine(f"system: expected text, found {type(text).__name__}")
    first = messages[0]["role"] if messages else "system"
    if not text.strip() or first in {"system", "developer"}:
        return messages
    return [{"role": "system", "content": text}, *messages]


def tools_of(record: dict[str, Any]) -> Any:
    """Return `tools`, or OpenAI's old `functions` as such."""
    functions = record.get("functions")
    old = isinstance(functions, list) and all(
        isinstance(each, dict) and "name" in each for each in functions
    )
    if "tools" in record or not old:
        return record.get("tools")
    return [{"type": "function", "function": function} for function in functions or ()]


def text_of(key: str, value: Any) -> Any:
    """Return a list of text parts as one text, and anything else as it is."""
    if not are_parts(value):
        return value
    for part in value:
        if part["type"] != "text" or not isinstance(part.get("text"), str):
            raise BadLine(f"{key}: expected parts of type text, found type {part['type']}")
    return "".join(part["text"] for part in value)


def are_parts(value: Any) -> bool:
    """Whether a list is content in parts, and not of messages."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(part, dict) and "type" in part for part in value)
        and not any(key in part for part in value for key in ("role", "from", "content"))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A question with its answer, as Alpaca's data has them."""

    instruction: str
    input: str
    output: str
    system: str
    history: tuple[tuple[str, str], ...]
    """Questions and answers before it."""

    @classmethod
    def of(cls, record: dict[str, Any], asked: str, answered: str) -> Task:
        """Read a record whose question and answer have these keys."""
        keys = {"instruction": asked, "input": "input", "output": answered, "system": "system"}
        values: dict[str, str] = {}
        for name, key in keys.items():
            value = text_of(key, record.get(key, ""))
            if not isinstance(value, str):
                raise BadLine(f"{key}: expected text, found {type(value).__name__}")
            values[name] = "" if name == "input" and asked == "input" else value
        for name in ("instruction", "output"):
            if not values[name].strip():
                raise BadLine(f"{keys[name]}: expected some text, found nothing")
        return cls(**values, history=_history(record.get("history", [])))

    def messages(self) -> list[dict[str, Any]]:
        """Return the task as a chat."""
        asked = f"{self.instruction}\n{self.input}" if self.input.strip() else self.instruction
        turns = [
            {"role": role, "content": text}
            for pair in (*self.history, (asked, self.output))
            for role, text in zip(("user", "assistant"), pair, strict=True)
        ]
        return with_system(turns, self.system)

    def prompt(self) -> str:
        """Return the task in the words that Alpaca's models were trained with."""
        if self.history:
            raise BadLine("history: expected a tokenizer with a chat template, found none")
        given = self.input.strip()
        text = ALPACA.format(
            context=CONTEXT if given else "",
            instruction=self.instruction,
            input=f"### Input:\n{self.input}\n\n" if given else "",
        )
        return f"{self.system}\n\n{text}" if self.system.strip() else text


def _history(turns: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(turns, list):
        raise BadLine("history: expected a list of [question, answer]")
    found = []
    for number, turn in enumerate(turns, start=1):
        match turn:
            case [str(asked), str(answered)]:
                found.append((asked, answered))
            case _:
                raise BadLine(f"history: turn {number}: expected [question, answer]")
    return tuple(found)


def cleaned(messages: list[Message]) -> list[Message]:
    """Return messages without empty fields, text as a string, arguments of calls as objects."""
    if not messages:
        raise BadLine("messages: expected an answer of the assistant to learn, found none")
    return [_message(message, number) for number, message in enumerate(messages, start=1)]


def is_learned(message: Message) -> bool:
    """Return whether a message itself does not forbid learning it."""
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


def checked_tools(value: Any) -> list[Any] | None:
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


def checked_arguments(value: Any) -> dict[str, Any]:
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


def _content(content: Any, number: int) -> str | list[Message]:
    """Return a content as text: OpenAI's API has it in parts, too. Those with images stay."""
    if isinstance(content, str):
        return content
    wanted = f"messages: content of message {number}: expected text"
    if not isinstance(content, list):
        raise BadLine(f"{wanted}, found {type(content).__name__}")
    texts, images = [], False
    for part in content:
        one = part if isinstance(part, dict) else {"type": "text", "text": part}
        kind, text = one.get("type", "text"), one.get("text")
        images = images or kind == "image"
        if kind == "image":
            continue
        if kind != "text" or not isinstance(text, str):
            raise BadLine(f"{wanted}, found a part of type {kind}")
        texts.append(text)
    return content if images else "".join(texts)


def _calls(calls: Any, number: int) -> list[Message]:
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
