"""Reads the Python script that a command runs, from the folder here, for what it says of itself."""

import itertools
from collections.abc import Sequence
from pathlib import Path

_LIMIT = 1 << 20


def script_text(command: Sequence[str], source: Path) -> str:
    """Return the text of the first script or module in a command; empty: it is not here."""
    modules = (word for before, word in itertools.pairwise(command) if before == "-m")
    scripts = (word for word in command if word.endswith(".py"))
    name = next((f"{word.replace('.', '/')}.py" for word in modules), next(scripts, ""))
    try:
        with (source / name).open("rb") as file:
            return file.read(_LIMIT).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
