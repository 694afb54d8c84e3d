"""The names that a data set has for its columns and roles, as a configuration maps them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

IN_LINES = frozenset({
    "text", "prompt", "completion", "response", "messages", "conversations", "system", "tools",
    "functions", "chat_template_kwargs", "instruction", "input", "output", "history", "question",
    "answer",
})  # fmt: skip
"""All keys of a line that are read."""
IN_MESSAGES = frozenset({
    "role", "content", "name", "reasoning_content", "tool_calls", "tool_call_id", "train", "weight",
})  # fmt: skip
"""Keys of a message that may have other names; a template may know more."""


def read_columns(raw: Any) -> dict[str, str] | None:
    """Return our keys → the columns of a data set.

    Raises:
        ValueError: it is no such mapping; the message says what was wanted.
    """
    found = read_mapping(raw)
    if unknown := sorted((found or {}).keys() - IN_LINES - IN_MESSAGES):
        known = ", ".join(sorted(IN_LINES | IN_MESSAGES))
        raise ValueError(f"keys out of {known} (not {', '.join(unknown)})")
    return _of_names(found, "a mapping of keys to names of columns")


def read_roles(raw: Any) -> dict[str, str] | None:
    """Return a data set's names of roles → roles; axolotl's `{user: [visitor]}` means the same."""
    given = read_mapping(raw)
    if given is None:
        return None
    found: dict[str, Any] = {}
    for key, value in given.items():
        found |= dict.fromkeys(value, key) if isinstance(value, list) else {key: value}
    return _of_names(found, "a mapping of names to roles, such as {visitor: user}")


def read_mapping(raw: Any) -> dict[str, Any] | None:
    """Return a mapping that JSON can have; a flag writes it as YAML does: `{a: false}`."""
    try:
        value = yaml.safe_load(raw) if isinstance(raw, str) else raw
        json.dumps(value)
    except (yaml.YAMLError, TypeError):
        raise ValueError("a mapping") from None
    if value is None or str(value).lower() in {"", "none"}:  # Python's own None, written
        return None
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError("a mapping")
    return dict(value)


def _of_names(found: dict[str, Any] | None, wanted: str) -> dict[str, str] | None:
    words = (*(found or {}).keys(), *(found or {}).values())
    if not all(isinstance(word, str) and word for word in words):
        raise ValueError(wanted)
    return found
