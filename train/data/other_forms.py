"""Forms of data that other programs read, as the forms of this one: ShareGPT's and Alpaca's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from train.data.bad_line import BadLine

ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "system": "system",
    "observation": "tool",
    "function_response": "tool",
    "tool": "tool",
}
"""What `from` is called → the role that chat templates know."""
CALL = "function_call"

ALPACA = (
    "Below is an instruction that describes a task{context}. Write a response that appropriately "
    "completes the request.\n\n### Instruction:\n{instruction}\n\n{input}### Response:\n"
)
CONTEXT = ", paired with an input that provides further context"


def messages_of_sharegpt(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of `conversations`, which have `from` and `value`, and of `system`.

    Raises:
        BadLine: they have not, or `from` is no role that is known.
    """
    conversations = record["conversations"]
    if not isinstance(conversations, list) or not all(
        isinstance(item, dict) for item in conversations
    ):
        raise BadLine('conversations: expected a list of {"from", "value"}')
    messages = [_message(item, number) for number, item in enumerate(conversations, start=1)]
    system = record.get("system")
    first = messages[0]["role"] if messages else ""
    if isinstance(system, str) and system.strip() and first != "system":
        return [{"role": "system", "content": system}, *messages]
    return messages


def _message(item: dict[str, Any], number: int) -> dict[str, Any]:
    if "role" in item and "from" not in item:
        return item
    name, value = item.get("from"), item.get("value")
    if not isinstance(name, str) or not isinstance(value, str):
        keys = ", ".join(item) or "(none)"
        said = f"message {number}: expected from and value, found {keys}"
        raise BadLine(f"conversations: {said}")
    if name == CALL:
        try:
            call = json.loads(value)
        except ValueError as error:
            said = f"message {number}: expected a call as JSON, found: {error}"
            raise BadLine(f"conversations: {said}") from None
        calls = [{"type": "function", "function": one} for one in _listed(call)]
        return {"role": "assistant", "content": "", "tool_calls": calls}
    role = ROLES.get(name)
    if role is None:
        wanted = f"from {', '.join((*ROLES, CALL))}"
        raise BadLine(f"conversations: message {number}: expected {wanted}, found {name}")
    return {"role": role, "content": value}


def _listed(value: Any) -> list[Any]:  # noqa: ANN401  (any JSON)
    return value if isinstance(value, list) else [value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """An instruction with its answer, as Alpaca's data has them."""

    instruction: str
    input: str
    output: str
    system: str

    @classmethod
    def of(cls, record: dict[str, Any]) -> Task:
        """Read a record.

        Raises:
            BadLine: a value is no text, or there is nothing to do or to learn.
        """
        values: dict[str, str] = {}
        for key in ("instruction", "input", "output", "system"):
            value = record.get(key)
            if value is not None and not isinstance(value, str):
                raise BadLine(f"{key}: expected text, found {type(value).__name__}")
            values[key] = value or ""
        for key in ("instruction", "output"):
            if not values[key].strip():
                raise BadLine(f"{key}: expected some text, found nothing")
        return cls(**values)

    def messages(self) -> list[dict[str, str]]:
        """Return the task as a chat."""
        asked = f"{self.instruction}\n{self.input}" if self.input.strip() else self.instruction
        system = [{"role": "system", "content": self.system}] if self.system.strip() else []
        return [
            *system,
            {"role": "user", "content": asked},
            {"role": "assistant", "content": self.output},
        ]

    def prompt(self) -> str:
        """Return the task in the words that Alpaca's models were trained with."""
        given = self.input.strip()
        text = ALPACA.format(
            context=CONTEXT if given else "",
            instruction=self.instruction,
            input=f"### Input:\n{self.input}\n\n" if given else "",
        )
        return f"{self.system}\n\n{text}" if self.system.strip() else text
