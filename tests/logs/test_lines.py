"""Lines are the file's bytes, whatever the chunks."""

from __future__ import annotations

import itertools
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.logs import lines
from clusterctl.logs.lines import Chunk, Line, LineSplitter

LOGS = st.lists(
    st.sampled_from([b"a", b"\xc3\xa4", b"\xe2\x82\xac", b"\n", b"\r", b"\r\n", b"\xff", b""])
).map(b"".join)


def split(data: bytes, cuts: list[int]) -> list[Line]:
    return lines_of(chunks_of(data, cuts))


def chunks_of(data: bytes, cuts: list[int]) -> list[Chunk]:
    splitter = LineSplitter()
    found: list[Chunk] = []
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for begin, end in itertools.pairwise(edges):
        found += splitter.feed(data[begin:end])
    return found + splitter.finish()


def lines_of(chunks: list[Chunk]) -> list[Line]:
    return [line for chunk in chunks for line in chunk.lines()]


@given(LOGS, st.lists(st.integers(0, 1000)))
def test_chunks_make_no_difference_and_every_byte_is_there_once(
    data: bytes, cuts: list[int]
) -> None:
    found = split(data, cuts)
    assert found == split(data, [])
    assert b"".join(line.data + line.ending.encode() for line in found) == data
    assert [line.begin for line in found[1:]] == [line.end for line in found[:-1]]


@given(LOGS, st.integers(0, 1000))
def test_reading_on_from_the_offset_after_a_break_loses_and_doubles_nothing(
    data: bytes, cut: int
) -> None:
    first = LineSplitter()
    cut %= len(data) + 1
    before = first.feed(data[:cut])
    second = LineSplitter(first.offset)
    after = second.feed(data[first.offset :]) + second.finish()
    assert lines_of(before + after) == split(data, [])


@given(LOGS, st.lists(st.integers(0, 1000)), st.integers(1, 5))
def test_chunks_are_the_bytes_of_the_file_cut_between_lines(
    data: bytes, cuts: list[int], count: int
) -> None:
    chunks = chunks_of(data, cuts)
    assert b"".join(chunk.data for chunk in chunks) == data
    for chunk in chunks:
        lines = chunk.lines()
        assert chunk.data
        assert (lines[0].begin, lines[-1].end) == (chunk.begin, chunk.end)
        assert all(line.ending for line in lines) or chunk is chunks[-1]
        assert chunk.last(count).lines() == lines[-count:]
        assert chunk.without_first().lines() == lines[1:]


@given(LOGS)
def test_lines_are_those_that_a_slower_and_simpler_cut_gives(data: bytes) -> None:
    wanted = re.findall(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z", data)
    assert [line.data + line.ending.encode() for line in split(data, [])] == wanted


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"one\ntwo\n", [(b"one", "\n"), (b"two", "\n")]),
        (b"dos\r\nline\r\n", [(b"dos", "\r\n"), (b"line", "\r\n")]),
        (b"\r10%\r20%\rdone\n", [(b"", "\r"), (b"10%", "\r"), (b"20%", "\r"), (b"done", "\n")]),
        (b"no end", [(b"no end", "")]),
        (b"end\r", [(b"end", "\r")]),
    ],
)
def test_line_ends(data: bytes, expected: list[tuple[bytes, str]]) -> None:
    assert [(line.data, line.ending) for line in split(data, [])] == expected


def test_a_huge_line_is_passed_on_in_pieces_that_cut_no_character(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lines, "LINE_LIMIT", 8)
    found = split("äöüäöüß€€€".encode() * 3, [5, 11])
    assert "".join(line.text for line in found) == "äöüäöüß€€€" * 3
    assert all(len(line.data) <= 8 for line in found[:-1])


def test_what_is_not_utf_8_shows_as_escapes() -> None:
    assert split(b"\xff\xfe ok\n", [])[0].text == "\\xff\\xfe ok"


def test_a_line_that_comes_byte_by_byte_takes_linear_time() -> None:
    splitter = LineSplitter()
    splitter.feed(b"x" * (lines.LINE_LIMIT - 200_000))
    began = time.process_time()
    for _ in range(100_000):
        assert not splitter.feed(b"x")
    assert time.process_time() - began < 1.0  # it took 10 s
    (chunk,) = splitter.feed(b"\n")
    assert len(chunk.data) == lines.LINE_LIMIT - 100_000 + 1
