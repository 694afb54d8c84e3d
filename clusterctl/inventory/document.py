"""A hosts.yaml as plain values that remember their lines; nothing of it is executed or expanded.

Scalars stay the text that was typed: `no`, `1e-4` and `010` reach a command or a variable as
they were written, and a field that wants a number reads it from the text. Unquoted text is
`Plain`, so that `port: "22"` can be told from `port: 22`. Anchors, aliases and tags are refused,
which leaves no way to write a small file that becomes a large one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import yaml

from clusterctl.inventory.problems import Path, Problems, printable

DEPTH_LIMIT = 20

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_STR_TAGS = frozenset({"!", "tag:yaml.org,2002:str"})
_TAB_INDENT = re.compile(r" *\t\s*[^\s#]")
_NO_NAMES = "the value itself, or `defaults:` for all"
_BARE_RANGE = re.compile(r"[{,]\s*(?:host|address):\s*[\w.-]*\[[0-9][0-9,-]*\]")


class Plain(str):
    """A scalar that was written without quotes."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Plain values, and the line of each part."""

    value: object
    """dict, list, str, Plain or None."""
    lines: dict[Path, int]


@dataclass(slots=True, kw_only=True)
class _Open:
    """A list or mapping whose end has not been read yet."""

    value: list[object] | dict[str, object]
    path: Path
    key: str | None = None
    """The key that waits for its value."""
    again: bool = False
    """The key was there before: its value is read past."""


class _Refused(Exception):  # noqa: N818  (ends the reading, is never seen outside)
    """YAML that an inventory has no use for; reading on would make no sense."""

    def __init__(self, *, wanted: str, found: str) -> None:
        super().__init__(wanted, found)
        self.wanted = wanted
        self.found = found


def read_yaml(text: str, problems: Problems) -> Document | None:
    """Parse YAML; what is wrong goes to `problems`.

    Returns:
        The document, or None where the text is no YAML or holds nothing.
    """
    builder = _Builder(problems)
    line = 1
    try:
        loader = yaml.SafeLoader(text)
        while loader.check_event():
            event = loader.get_event()  # type: ignore[no-untyped-call]
            line = event.start_mark.line + 1
            builder.take(event, line)
    except yaml.MarkedYAMLError as error:
        _explain(error, text, problems)
        return None
    except _Refused as refused:
        problems.add((), wanted=refused.wanted, found=printable(refused.found), line=line)
        return None
    if builder.document is None or builder.document.value is None:
        problems.add((), wanted="an inventory", found="an empty file", line=1)
        return None
    return builder.document


class _Builder:
    """Builds the values from the parser's events, without recursion."""

    def __init__(self, problems: Problems) -> None:
        self.document: Document | None = None
        self._problems = problems
        self._lines: dict[Path, int] = {}
        self._stack: list[_Open] = []

    def take(self, event: yaml.Event, line: int) -> None:
        """Take one event of the parser.

        Raises:
            _Refused: nothing that an inventory can hold.
        """
        match event:
            case yaml.DocumentStartEvent() if self.document is not None:
                raise _Refused(wanted="one document", found="a second one")
            case yaml.AliasEvent():
                raise _Refused(wanted=_NO_NAMES, found=f"the alias *{event.anchor}")
            case yaml.ScalarEvent():
                _check_properties(event)
                self._take_scalar(_scalar(event), line)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                _check_properties(event)
                if self._wants_key():
                    raise _Refused(wanted="a word as key", found="a list or mapping")
                if len(self._stack) >= DEPTH_LIMIT:
                    raise _Refused(wanted=f"at most {DEPTH_LIMIT} levels", found="more")
                self._put({} if isinstance(event, yaml.MappingStartEvent) else [], line)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._stack.pop()
            case _:
                pass

    def _take_scalar(self, value: str | None, line: int) -> None:
        if self._wants_key():
            self._take_key("" if value is None else str(value), line)
        else:
            self._put(value, line)

    def _wants_key(self) -> bool:
        return (
            bool(self._stack)
            and isinstance(self._stack[-1].value, dict)
            and self._stack[-1].key is None
        )

    def _take_key(self, key: str, line: int) -> None:
        top = self._stack[-1]
        path = (*top.path, key)
        top.key = key
        top.again = path in self._lines
        if top.again:
            found = f"it again (first at {self._problems.place(self._lines[path])})"
            self._problems.add(path, wanted="each key once", found=found, line=line)
        self._lines.setdefault(path, line)

    def _put(self, value: object, line: int) -> None:
        """Hang a value where it belongs, and open it when it is a list or mapping."""
        path: Path = ()
        if not self._stack:
            self.document = Document(value=value, lines=self._lines)
        else:
            top = self._stack[-1]
            if isinstance(top.value, list):
                path = (*top.path, len(top.value))
                top.value.append(value)
            else:
                assert top.key is not None
                path = (*top.path, top.key)
                if top.again:
                    # A path that nothing else has, so that what is inside is not found again, too.
                    path = (*path, len(self._lines))
                else:
                    top.value[top.key] = value
                top.key = None
        self._lines.setdefault(path, line)
        if isinstance(value, (dict, list)):
            self._stack.append(_Open(value=value, path=path))


def _check_properties(
    event: yaml.ScalarEvent | yaml.MappingStartEvent | yaml.SequenceStartEvent,
) -> None:
    if event.anchor is not None:
        raise _Refused(wanted=_NO_NAMES, found=f"the anchor &{event.anchor}")
    if event.tag is not None and event.tag not in _STR_TAGS:
        tag = event.tag.replace("tag:yaml.org,2002:", "!!")
        raise _Refused(wanted="a plain value", found=f"the tag {tag}")


def _scalar(event: yaml.ScalarEvent) -> str | None:
    if event.style is not None or event.tag is not None:
        return _whole_characters(event.value)
    return None if event.value in _NULLS else Plain(event.value)


def _whole_characters(text: str) -> str:
    """Join the halves that JSON writes for one character, as in a pair of surrogate escapes.

    Raises:
        _Refused: a half stands alone.
    """
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as error:
        raise _Refused(wanted="text", found="half a character") from error


def _explain(error: yaml.MarkedYAMLError, text: str, problems: Problems) -> None:
    """Say what stopped the parser; its usual two causes have words of their own."""
    lines = text.splitlines()
    tabs = [number for number, line in enumerate(lines, 1) if _TAB_INDENT.match(line)]
    mark = error.problem_mark or error.context_mark
    number = mark.line + 1 if mark else 1
    if {number - 1, number, number + 1} & set(tabs):
        for tab in tabs:
            problems.add((), wanted="spaces at the start of the line", found="a tab", line=tab)
        return
    here = lines[number - 1] if 0 < number <= len(lines) else ""
    if _BARE_RANGE.search(here):
        problems.add((), wanted='quotes around a range: "gpu[01-04]"', found="none", line=number)
    else:
        problems.add((), wanted="valid YAML", found=f"an error: {error.problem}", line=number)
