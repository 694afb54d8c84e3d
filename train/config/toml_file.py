"""A TOML file as the nodes of YAML that the reader of settings knows, each key with its line."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

from train.errors import ConfigError


def compose(text: str, path: Path) -> yaml.Node | None:
    """Return the nodes of a file; None if it is empty."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message, _, place = str(error).partition(" (at ")
        line = re.search(r"line (\d+)", place)
        where = f"{path}:{line[1]}" if line else f"{path}"
        raise ConfigError(f"{where}: expected TOML, found: {message}") from None
    if not found:
        return None
    root = yaml.compose(yaml.safe_dump(found, sort_keys=False), Loader=yaml.SafeLoader)
    _place(root, text.splitlines(), 0)
    return root


def _place(node: yaml.Node | None, lines: list[str], line: int) -> int:
    """Give each key the line of the text that it is in, the first one at `line` or after it."""
    if not isinstance(node, yaml.MappingNode):
        return line
    for key, value in node.value:
        word = re.compile(rf"""(^|[\[.{{,\s"']){re.escape(str(key.value))}["'\s]*[=.\]]""")
        line = next((at for at in range(line, len(lines)) if word.search(lines[at])), line)
        mark = key.start_mark
        key.start_mark = yaml.Mark(mark.name, mark.index, line, 0, None, 0)
        line = _place(value, lines, line)
    return line
