"""Parses a hosts.yaml into plain values and their line numbers; executes and expands nothing.

Scalars stay the text that was typed: `no`, `1e-4` and `010` reach a command or a variable
unchanged. A field that needs a number parses the text. Unquoted text is `Plain`, so that
`port: "22"` differs from `port: 22`. Anchors, aliases and tags are refused, so that a small file
cannot become a large one.
"""

import re

import yaml

from clusterctl.inventory.problems import Path, Plain, Problems, printable
from clusterctl.values import dataclass

DEPTH_LIMIT = 20

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_STR_TAGS = frozenset({"!", "tag:yaml.org,2002:str"})
_TAB_INDENT = re.compile(r" *\t\s*[^\s#]")
_NO_NAMES = "the value itself, or `defaults:` for all"
_BARE_RANGE = re.compile(r"[{,]\s*(?:host|address):\s*[\w.-]*\[[0-9][0-9,-]*\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Plain values, and the line of each part."""

    value: object
    """dict, list, str, Plain or None."""
    lines: dict[Path, int]


class _Refused(Exception):  # noqa: N818  (ends the reading, is never seen outside)
    """YAML that an inventory has no use for; reading on would make no sense."""

    def __init__(self, event: yaml.Event, *, wanted: str, found: str) -> None:
        super().__init__(wanted, found)
        self.line = _line(event)
        self.wanted = wanted
        self.found = found


def read_yaml(text: str, problems: Problems) -> Document | None:
    """Parse YAML; None if it is empty or no YAML. Add what is wrong to `problems`."""
    parser = _Parser(text, problems)
    try:
        value = parser.document()
    except yaml.MarkedYAMLError as error:
        _explain(error, text, problems)
        return None
    except _Refused as refused:
        found = printable(refused.found)
        problems.add((), wanted=refused.wanted, found=found, line=refused.line)
        return None
    if value is None:
        problems.add((), wanted="an inventory", found="an empty file", line=1)
        return None
    return Document(value=value, lines=parser.lines)


class _Parser:
    """Builds values from the events of PyYAML; `DEPTH_LIMIT` bounds the recursion."""

    def __init__(self, text: str, problems: Problems) -> None:
        self.lines: dict[Path, int] = {}
        self._loader = yaml.SafeLoader(text)
        self._problems = problems

    def document(self) -> object:
        """Return the value of the only document; None if there is none.

        Raises:
            MarkedYAMLError: the text is not YAML.
            _Refused: an inventory cannot hold it.
        """
        self._next()  # the start of the stream
        if isinstance(self._next(), yaml.StreamEndEvent):
            return None
        value = self._value(self._next(), ())
        self._next()  # the end of the document
        after = self._next()
        if not isinstance(after, yaml.StreamEndEvent):
            raise _Refused(after, wanted="one document", found="a second one")
        return value

    def _next(self) -> yaml.Event:
        event: yaml.Event = self._loader.get_event()  # type: ignore[no-untyped-call]
        return event

    def _value(self, event: yaml.Event, path: Path) -> object:
        self.lines.setdefault(path, _line(event))
        _check_properties(event)
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event)
        if len(path) >= DEPTH_LIMIT:
            raise _Refused(event, wanted=f"at most {DEPTH_LIMIT} levels", found="more")
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(path)
        items: list[object] = []
        while not isinstance(item := self._next(), yaml.SequenceEndEvent):
            items.append(self._value(item, (*path, len(items))))
        return items

    def _mapping(self, path: Path) -> dict[str, object]:
        mapping: dict[str, object] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            _check_properties(event)
            if not isinstance(event, yaml.ScalarEvent):
                raise _Refused(event, wanted="a word as key", found="a list or mapping")
            key = str(_scalar(event) or "")
            inner, line = (*path, key), _line(event)
            again = key in mapping
            self.lines.setdefault(inner, line)
            value = self._value(self._next(), inner)
            if again:
                first = self._problems.place(self.lines[inner])
                move = "; move its lines there" if isinstance(value, dict | list) else ""
                found = f"it again (first at {first}{move})"
                self._problems.add(inner, wanted="each key once", found=found, line=line)
            mapping.setdefault(key, value)
        return mapping


def _line(event: yaml.Event) -> int:
    assert event.start_mark is not None
    return event.start_mark.line + 1


def _check_properties(event: yaml.Event) -> None:
    if isinstance(event, yaml.AliasEvent):
        raise _Refused(event, wanted=_NO_NAMES, found=f"the alias *{event.anchor}")
    assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
    if event.anchor is not None:
        raise _Refused(event, wanted=_NO_NAMES, found=f"the anchor &{event.anchor}")
    if event.tag is not None and event.tag not in _STR_TAGS:
        tag = event.tag.replace("tag:yaml.org,2002:", "!!")
        raise _Refused(event, wanted="a plain value", found=f"the tag {tag}")


def _scalar(event: yaml.ScalarEvent) -> str | None:
    if event.style is None and event.tag is None:
        return None if event.value in _NULLS else Plain(event.value)
    # JSON writes one character as a pair of surrogate escapes: join the two.
    try:
        return str(event.value).encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as error:
        raise _Refused(event, wanted="text", found="half a character") from error


def _explain(error: yaml.MarkedYAMLError, text: str, problems: Problems) -> None:
    """Report what stopped the parser; the two usual causes have messages of their own."""
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
