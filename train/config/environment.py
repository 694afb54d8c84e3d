"""Variables and `~` in the paths of a configuration, as a shell expands them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from train.errors import ConfigError

VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w*)\})")
HOME = re.compile(r"(?:^|(?<=,)) *(~[^/,]*)")
"""Of a user, at the beginning of a path, or of one in a list with commas."""


def expanded(path: str) -> str:
    """Return a path with the values of `$NAME`, `${NAME}` and `~`; a hub id stays as it is.

    Raises:
        ConfigError: a variable is not set, or there is no such user: a folder of that name, made
            by mistake, would be found by nobody.
    """
    return VARIABLE.sub(_value, HOME.sub(_home, path))


def _value(match: re.Match[str]) -> str:
    name = match[1] or match[2]
    if value := os.environ.get(name):
        return value
    found = "empty" if name in os.environ else "unset"
    raise ConfigError((f"expected the variable {name} to be set, found it {found}",))


def _home(match: re.Match[str]) -> str:
    try:
        return str(Path(match[1]).expanduser())
    except RuntimeError:
        raise ConfigError((f"expected a user's home, found no user {match[1]}",)) from None
