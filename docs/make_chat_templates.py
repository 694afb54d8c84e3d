"""Writes docs/reference/chat-templates.md from the templates and chats of the tests: `python docs/make_chat_templates.py`."""
# ruff: noqa: INP001, E501  (a script, not a module of a package; prose has a line a sentence)

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.train.data.chat_kinds import Kind, kinds
from tests.train.data.chat_oracle import PROBE, Message, causes, expected
from tests.train.data.chat_templates import GROUPS, TEMPLATES, Family

PAGE = Path(__file__).parent / "reference" / "chat-templates.md"
THOUGHTS = re.compile(r"(?<=<think>\n).*(?=\n</think>)", re.DOTALL)
LEARNED = "✓"
REFUSED = {
    "system": "it leaves out this system message",
    "results": "it leaves out results of tools",
    "tools": "it leaves out the list of tools",
    "calls": "it leaves out a call",
    "start": "it begins this call otherwise than its prompt does",
    "nothing": "the chat has no answer to learn",
    "roles": "it wants questions and answers to take turns",
    "first": "it wants a question before the first answer",
    "single": "it wants one call in an answer",
    "empty": "it wants text or a call in every answer",
}
RAISED = {
    "tool": "results",
    "roles take turns": "roles",
    "roles take turns, only user, assistant and tool": "roles",
    "no system": "system",
    "one call only": "single",
    "an answer has text or calls": "empty",
    "nobody asks": "first",
}
"""What these templates say, and other reasons with another name here."""
NOTES = {
    "all": ("¹", "thoughts are dropped"),
    "earlier": ("²", "thoughts before the last question are dropped"),
    "text": ("³", "text before a call is dropped"),
}

HEAD = """\
# Chat templates

What [`train/`](../how-to/fine-tune-your-model.md) learns of a chat depends on the model's chat template. This page shows it for {templates} templates and {kinds} kinds of chats. `tests/train/data/test_chat_oracle.py` verifies every cell.

- Learned are an answer's thoughts, if the template keeps them, its text, its calls, and the token that ends it. Headers, questions, system messages, results of tools and the prompt of an answer are not learned.
- An empty answer is not learned, nor is one with `"weight": 0`.
- A chat from which the template leaves out a system message, the tools, a call or a result is refused. So is a chat that the template itself refuses. `max_bad_lines` leaves out refused rows.

| cell | meaning |
|---|---|
"""


def render() -> str:
    """Return the page."""
    cells = {
        (name, each): _cell(family, kind)
        for name, family in TEMPLATES.items()
        for each, kind in kinds(family).items()
    }
    every = list(kinds(next(iter(TEMPLATES.values()))))
    same = [each for each in every if all(cells[name, each] == LEARNED for name in TEMPLATES)]
    head = HEAD.format(templates=len(TEMPLATES), kinds=len(every))
    meanings = [f"| {LEARNED} | learned |"]
    meanings += [f"| {LEARNED}{mark} | learned; {text} |" for mark, text in NOTES.values()]
    shown = {part for cell in cells.values() for part in cell.split(", ")}
    meanings += [f"| {key} | refused: {text} |" for key, text in REFUSED.items() if key in shown]
    listed = "\n".join(f"- {each}" for each in same)
    blocks = [
        head + "\n".join(meanings) + "\n",
        f"## Learned with every template\n\n{listed}\n",
    ]
    for group, families in GROUPS.items():
        names = [family.name for family in families.values()]
        rows = [f"| kind of chat | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
        alike: dict[str, list[str]] = {}
        for each in every:
            if each not in same:
                row = " | ".join(cells[name, each] for name in families)
                alike.setdefault(row, []).append(each)
        rows += [f"| {'; '.join(found)} | {row} |" for row, found in alike.items()]
        blocks.append(f"## {group}\n\n" + "\n".join(rows) + "\n")
    return "\n".join(blocks)


def _cell(family: Family, kind: Kind) -> str:
    if reasons := causes(family, kind):
        return ", ".join(
            RAISED.get(said := reason.removeprefix("template: "), said) for reason in reasons
        )
    return LEARNED + "".join(NOTES[note][0] for note in _notes(family, kind))


def _notes(family: Family, kind: Kind) -> list[str]:
    """Return what a template drops of a chat that is learned."""
    notes = []
    kept = [
        _is_kept(family, kind, place, probed)
        for place, message in enumerate(kind.messages)
        if (probed := _with_thoughts(message)) is not None
    ]
    if kept and not any(kept):
        notes.append("all")
    elif not all(kept):
        notes.append("earlier")
    for place, message in enumerate(kind.messages):
        has_both = bool(message.get("tool_calls") and message["content"])
        if has_both and not _is_kept(family, kind, place, {**message, "content": PROBE}):
            notes.append("text")
    return notes


def _with_thoughts(message: Message) -> Message | None:
    """Return a message with other thoughts; nothing if it has none."""
    for field in ("reasoning_content", "thinking", "reasoning"):
        if message.get(field):
            return {**message, field: PROBE}
    if message["role"] == "assistant" and THOUGHTS.search(message["content"] or ""):
        return {**message, "content": THOUGHTS.sub(PROBE, message["content"])}
    return None


def _is_kept(family: Family, kind: Kind, place: int, probed: Message) -> bool:
    messages = [*kind.messages[:place], probed, *kind.messages[place + 1 :]]
    return PROBE in expected(family, replace(kind, messages=messages))[-1].text


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
