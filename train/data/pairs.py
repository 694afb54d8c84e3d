"""From a line with a better and a worse answer to two lines with one answer each."""

from __future__ import annotations

from typing import Any

from train.data.files.bad_line import BadLine

ANSWERS = ("chosen", "rejected")
FORMS = (
    ("messages", *ANSWERS), ("conversations", *ANSWERS), ("instruction", *ANSWERS),
    ("prompt", *ANSWERS), ("question", *ANSWERS), ("input", *ANSWERS), ANSWERS,
)  # fmt: skip
"""The keys that make each form; of two in one line the first one counts."""
ANSWER = {"instruction": "output", "question": "answer", "input": "output"}
"""What a prompt's key has next to it where there is one answer."""


def halves(record: dict[str, Any], form: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the record with the chosen answer, and that with the rejected one."""
    rest = {key: value for key, value in record.items() if key not in ANSWERS}
    chosen, rejected = (_answer(record[key]) for key in ANSWERS)
    if isinstance(chosen, list) != isinstance(rejected, list):
        raise BadLine("chosen and rejected: expected texts or messages, found one of each")
    key = form[0]
    if key in ANSWER:
        return [rest | {ANSWER[key]: _text(answer)} for answer in (chosen, rejected)]
    prompt = rest.pop(key) if key not in ANSWERS else None
    # Both answers may be whole chats: then what they have in common is the prompt, said again.
    if prompt is None or (isinstance(chosen, list) and _begins_a_chat(chosen)):
        common = _common(chosen, rejected)
        prompt, chosen, rejected = chosen[:common], chosen[common:], rejected[common:]
    return [rest | {"prompt": prompt, "completion": answer} for answer in (chosen, rejected)]


def _answer(found: Any) -> Any:
    """Return a text or messages; axolotl and LLaMA-Factory have one message alone."""
    return [found] if isinstance(found, dict) else found


def _text(answer: Any) -> Any:
    """Return the text of an answer that is one message, as next to an instruction."""
    if isinstance(answer, list) and len(answer) == 1 and isinstance(answer[0], dict):
        return answer[0].get("content", answer[0].get("value"))
    return answer


def _begins_a_chat(messages: list[Any]) -> bool:
    first = messages[0] if messages and isinstance(messages[0], dict) else {}
    return str(first.get("role", first.get("from"))).casefold() in {"user", "human", "system"}


def _common(one: Any, other: Any) -> int:
    """Return how much two answers have in common, but for the last message of each."""
    if not isinstance(one, (list, str)) or type(one) is not type(other):
        raise BadLine("chosen and rejected: expected texts or messages, found neither")
    most = min(len(one), len(other)) - (1 if isinstance(one, list) else 0)
    common = next((at for at in range(most) if one[at] != other[at]), max(0, most))
    # A space belongs to the answer, as in TRL: tokenizers join it to the word that follows.
    return common - (isinstance(one, str) and one[:common].endswith(" "))
