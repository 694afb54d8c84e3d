"""Reads the scripts of a command, from the folder here, for what they say of themselves."""

import itertools
from collections.abc import Sequence
from pathlib import Path

_LIMIT = 1 << 20
"""Bytes of a script that are read."""


def script_text(command: Sequence[str], source: Path) -> str:
    """Return the text of the first script or module in a command; empty: it is not here."""
    modules = (word for before, word in itertools.pairwise(command) if before == "-m")
    scripts = (word for word in command if word.endswith(".py"))
    name = next((f"{word.replace('.', '/')}.py" for word in modules), next(scripts, ""))
    return text_of(source / name)


def text_of(path: Path) -> str:
    """Return the beginning of a file; empty for one that is on the nodes only."""
    try:
        if not path.is_file():  # a pipe would wait
            return ""
        with path.open("rb") as file:
            return file.read(_LIMIT).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
