"""How a run's lines are printed."""

from __future__ import annotations

import io
import json
import random

import pytest

from clusterctl.logs.entry import Folded, Source
from clusterctl.logs.lines import Line
from clusterctl.report.lines import JsonLines, LinePrinter, Prefixed, Raw, Timestamped


class Terminal(io.TextIOWrapper):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def folded(data: bytes, *ranks: int, node: str = "a") -> Folded:
    line = Line(begin=7, end=8 + len(data), data=data, ending="\n")
    sources = tuple(Source(node=node, rank=rank) for rank in ranks)
    return Folded(sources=sources or (Source(node=node),), line=line, time=0.5)


def printed(kind: type[LinePrinter], *lines: Folded, terminal: bool = False) -> bytes:
    raw = io.BytesIO()
    stream = (Terminal if terminal else io.TextIOWrapper)(raw, encoding="utf-8", newline="")
    kind(stream).show(lines)
    return raw.getvalue()


def test_lines_have_a_prefix_and_are_safe_to_print() -> None:
    assert printed(Prefixed, folded(b"x", 0), folded(b"y\x1b[2J", 0, 1)) == b"[a:0] x\n[a:0-1] y\n"
    assert printed(Prefixed, folded(b"z")) == b"[a] z\n"


def test_times_are_utc() -> None:
    assert printed(Timestamped, folded(b"x", 0)) == b"1970-01-01T00:00:00.500Z [a:0] x\n"


def test_raw_ends_a_line_without_an_end_before_that_of_another() -> None:
    line = folded(b"ha", 0)
    half = line._replace(line=line.line._replace(ending=""))
    assert printed(Raw, half, half) == b"haha"
    assert printed(Raw, half, folded(b"b", 1), half) == b"ha\nb\nha"


def test_raw_is_byte_for_byte() -> None:
    assert printed(Raw, folded(b"\xff\x1b[2J", 0)) == b"\xff\x1b[2J\n"


def test_json_is_one_object_a_line() -> None:
    assert json.loads(printed(JsonLines, folded("ä".encode(), 3))) == {
        "schema": 1,
        "kind": "line",
        "time": 0.5,
        "node": "a",
        "rank": 3,
        "offset": 7,
        "line": "ä",
    }


def test_hosts_have_colors_on_a_terminal_only_and_never_with_no_color(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    one, other = folded(b"\x1b[31mred\x1b[0m", 0), folded(b"x", 1, node="b")
    shown = printed(Prefixed, one, other, terminal=True)
    assert shown == (b"\x1b[36m[a:0]\x1b[0m \x1b[31mred\x1b[0m\n\x1b[32m[b:1]\x1b[0m x\n")
    monkeypatch.setenv("NO_COLOR", "1")
    assert printed(Prefixed, one, other, terminal=True) == b"[a:0] red\n[b:1] x\n"


def test_a_printer_remembers_no_more_prefixes_than_there_are_sources() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    printer = Prefixed(stream)
    ranks = list(range(64))
    for _ in range(2000):
        random.Random(7).shuffle(ranks)
        printer.show([folded(b"x", *ranks), folded(b"y", ranks[0])])
    assert len(printer._prefixes) <= 64
