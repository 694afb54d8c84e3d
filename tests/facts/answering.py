"""Raw answers of a node, made by hand."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from clusterctl.facts.answers import Answers
from clusterctl.facts.request import FactRequest
from clusterctl.wire import Message


def answers(
    files: dict[str, str] | None = None,
    commands: Mapping[str, str | tuple[str, int] | None] | None = None,
    others: dict[str, Any] | None = None,
    wanted: FactRequest | None = None,
) -> Answers:
    """Return unpacked answers: files that were read, programs that ran (None: not installed)."""
    rows: list[list[Any]] = []
    bodies: list[bytes] = []

    def add(key: str, state: str, body: str, exit_code: int | None = None) -> None:
        bodies.append(body.encode())
        rows.append([key, state, len(bodies[-1]), exit_code, 0.0, ""])

    for path, text in (files or {}).items():
        add("file:" + path, "ok", text)
    for key, given in (commands or {}).items():
        if given is None:
            add("command:" + key, "absent", "")
        else:
            text, code = given if isinstance(given, tuple) else (given, 0)
            add("command:" + key, "ok", text, code)
    for key, value in (others or {}).items():
        add(key, "ok", json.dumps(value), 0)
    unpacked = Answers.of(Message({"answers": rows}, zlib.compress(b"".join(bodies))))
    return Answers(by_key=unpacked.by_key, wanted=wanted or FactRequest())
