"""The names that a data set has for its columns and roles, as a configuration maps them."""

from __future__ import annotations

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


def read_columns(raw: Any) -> dict[str, str] | None:  # noqa: ANN401  (as written)
    """Return our keys → the columns of a data set; a flag has the mapping as YAML.

    Raises:
        ValueError: it is no such mapping; the message says what was wanted.
    """
    found = _mapping(raw)
    if found is None:
        return None
    if unknown := sorted(found.keys() - IN_LINES - IN_MESSAGES):
        known = ", ".join(sorted(IN_LINES | IN_MESSAGES))
        raise ValueError(f"keys out of {known} (not {', '.join(unknown)})")
    if not all(isinstance(name, str) and name for name in found.values()):
        raise ValueError("a mapping of keys to names of columns")
    return found


def read_roles(raw: Any) -> dict[str, str] | None:  # noqa: ANN401  (as written)
    """Return a data set's names of roles → roles; axolotl's `{user: [visitor]}` means the same.

    Raises:
        ValueError: it is no such mapping.
    """
    given = _mapping(raw)
    if given is None:
        return None
    found: dict[Any, Any] = {}
    for key, value in given.items():
        found |= dict.fromkeys(value, key) if isinstance(value, list) else {key: value}
    if not all(isinstance(word, str) and word for word in (*found.keys(), *found.values())):
        raise ValueError("a mapping of names to roles, such as {visitor: user}")
    return found


def _mapping(raw: Any) -> dict[str, Any] | None:  # noqa: ANN401  (as written)
    try:
        value = yaml.safe_load(raw) if isinstance(raw, str) else raw
    except yaml.YAMLError:
        value = raw
    if value is None or str(value).lower() in {"", "none"}:  # Python's own None, written
        return None
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError("a mapping")
    return dict(value)
