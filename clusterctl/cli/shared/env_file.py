"""Reads a file such as `.env` as a shell would that does not replace variables."""

import re
from pathlib import Path

from clusterctl.errors import UsageError

_VALUE = r"""(?:'[^']*'|"(?:[^"\\]|\\.)*"|[^\s'"\\]|\\.)*"""
_LINE = re.compile(
    rf"[ \t]*(?:(?:export[ \t]+)?(?P<name>[A-Za-z_]\w*)=(?P<value>{_VALUE})(?:[ \t]+#[^\n]*)?"
    r"|\#[^\n]*)?[ \t\r]*(?:\n|\Z)",
    re.ASCII | re.DOTALL,
)
_PART = re.compile(
    r"""'(?P<literal>[^']*)'|"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>(?:[^\s'"\\]|\\.)+)""",
    re.DOTALL,
)
_ESCAPED = {"quoted": re.compile(r'\\(?:([$`"\\])|\n)'), "bare": re.compile(r"\\(?:\n|(.))")}
_REPLACED = re.compile(r"(?:[^\\]|\\.)*?(?:\$[\w{(]|`)", re.DOTALL)
"""What a shell would put a variable's value, or a command's output, in place of."""


def read_env_file(path: Path) -> list[tuple[str, str]]:
    """Return the variables of a file.

    Raises:
        UsageError: a line is no `NAME=VALUE`, or a shell would replace something in it; its text,
            which may be a secret, is not shown.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise UsageError(f"--env-file {path}: expected a text file, found none: {error}") from error
    found, at = [], 0
    while at < len(text):
        line = _LINE.match(text, at)
        where = f"--env-file {path}: line {text.count(chr(10), 0, at) + 1}"
        if line is None:
            raise UsageError(
                f"{where}: expected NAME=VALUE, quoted if it has spaces",
                hint="one variable a line: NAME=VALUE or NAME='A VALUE'",
            )
        if line["name"]:
            found.append((line["name"], _value(line["value"], where)))
        at = line.end()
    return found


def _value(text: str, where: str) -> str:
    value = ""
    for part in _PART.finditer(text):
        kind, content = part.lastgroup or "", part[part.lastgroup or 0]
        if kind != "literal":
            if _REPLACED.match(content):
                raise UsageError(
                    f"{where}: expected a value as it is, found a `$NAME` or a backtick",
                    hint="to take it literally: NAME='A VALUE', or a backslash in front of it",
                )
            content = _ESCAPED[kind].sub(lambda escaped: escaped[1] or "", content)
        value += content
    return value
