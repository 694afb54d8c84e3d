"""Calls a function that a session sent to a rank, and prints what it returned as JSON.

This source is the beginning of the script that `clusterctl/api/function_call.py` writes; its last
line calls `main`. The rank's Python has nothing of clusterctl.
"""

from __future__ import annotations
import __future__

import base64
import importlib
import json
import linecache
import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from typing import Any

MARK = "clusterctl-value"
"""Begins a line that has a part of the value: `MARK TOKEN PART/PARTS JSON`."""
VALUE_LIMIT = 1024 * 1024
PART = 60_000
"""Characters of a value that one line has."""


def main(token: str, payload: Mapping[str, str]) -> None:
    """Call the function and print its value; what it raises ends the rank, as in any script."""
    sys.path.insert(0, os.getcwd())
    sent = {name: base64.b64decode(value) for name, value in payload.items()}
    function = _function(sent)
    args, kwargs = _loaded(sent["arguments"])
    value = function(*args, **kwargs)
    name = type(value).__name__
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        sys.exit(f"the function returned a {name}: expected what JSON can hold: {error}")
    if len(text) > VALUE_LIMIT:
        sys.exit(
            f"the function returned {len(text):,} bytes of JSON: expected at most {VALUE_LIMIT:,};"
            " write them to a file and fetch it with session.pull"
        )
    parts = [text[at : at + PART] for at in range(0, len(text), PART)]
    sys.stdout.flush()
    for number, part in enumerate(parts):
        sys.stdout.write(f"{MARK} {token} {number}/{len(parts)} {part}\n")
        sys.stdout.flush()


def _function(sent: Mapping[str, bytes]) -> Any:  # noqa: ANN401  (a callable)
    """Return the function: from its module, from a pickle of this Python, or from its source."""
    if "named" in sent:
        return _loaded(sent["named"])
    here = "{}.{}".format(*sys.version_info)
    why = "it was sent by Python {}, here is {}".format(sent.get("python", b"").decode(), here)
    if "pickled" in sent and sent["python"].decode() == here:
        try:
            importlib.import_module("cloudpickle")
        except ImportError:
            why = "cloudpickle is not installed on this node"
        else:
            _keep_lines(_loaded(sent["source"])["texts"] if "source" in sent else [])
            return _loaded(sent["pickled"])
    if "source" not in sent:
        sys.exit(f"cannot load the function: {why}, and its source alone is not enough")
    source = _loaded(sent["source"])
    _keep_lines(source["texts"])
    names = {"__name__": "__main__", **source["values"]}
    for name, module in source["modules"].items():
        names[name] = importlib.import_module(module)
    for file, text in source["texts"]:
        exec(compile(text, file, "exec", __future__.annotations.compiler_flag), names)  # noqa: S102  (from the controller)
    return names[source["name"]]


def _keep_lines(texts: Sequence[tuple[str, str]]) -> None:
    """Show these lines in a traceback: each text stands at its lines of its file."""
    files: dict[str, list[str]] = {}
    for file, text in texts:
        lines = files.setdefault(file, [])
        new = text.splitlines(keepends=True)
        lines += ["\n"] * (len(new) - len(lines))
        for at, line in enumerate(new):
            if line.strip():
                lines[at] = line
    for file, lines in files.items():
        linecache.cache[file] = (sum(map(len, lines)), None, lines, file)


def _loaded(data: bytes) -> Any:  # noqa: ANN401  (whatever was sent)
    return pickle.loads(data)  # noqa: S301  (the controller sent it)
