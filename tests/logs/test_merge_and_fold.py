"""Lines of many ranks: in order of time, equal ones once, each rank's own order kept."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.logs.deduplicate import WINDOW, LineDeduplicator
from clusterctl.logs.entry import Entry, Folded, Piece, Source
from clusterctl.logs.lines import Chunk, Line
from clusterctl.logs.merge import HELD_LIMIT, PIECE_BYTES, Merger


def entry(
    node: str, rank: int | None, text: str, time: float = 0.0, *, ending: str = "\n"
) -> Entry:
    data = text.encode()
    line = Line(begin=0, end=len(data) + 1, data=data, ending=ending)  # type: ignore[arg-type]
    return Entry(source=Source(node=node, rank=rank), line=line, time=time)


def piece(node: str, text: str, time: float) -> Piece:
    return Piece(Source(node=node, rank=0), Chunk(0, text.encode()), time)


def texts(pieces: Iterable[Piece]) -> list[str]:
    return [one.chunk.data.decode() for one in pieces]


def shown(lines: list[Folded]) -> list[str]:
    return [f"[{line.label}] {line.line.text}" for line in lines]


def test_lines_come_in_order_of_time_once_every_node_has_spoken() -> None:
    merger = Merger(["a", "b"], patience=60)
    merger.add(piece("a", "a1", 1.0), now=0)
    merger.add(piece("a", "a3", 3.0), now=0)
    assert texts(merger.ready(now=0)) == []
    merger.add(piece("b", "b2", 2.0), now=0)
    assert texts(merger.ready(now=0)) == ["a1", "b2"]
    merger.close("b")
    assert texts(merger.ready(now=0)) == ["a3"]


def test_no_line_waits_for_a_silent_node_longer_than_the_patience() -> None:
    merger = Merger(["a", "b"], patience=0.1)
    merger.add(piece("a", "live", 1.0), now=10.0)
    assert texts(merger.ready(now=10.05)) == []
    assert texts(merger.ready(now=10.11)) == ["live"]


def test_short_lines_count_for_what_they_take_in_memory() -> None:
    merger = Merger(["a", "silent"], patience=float("inf"))
    for number in range(100_000):
        merger.add(piece("a", "x", number), now=0)
    held = 100_000 - len(list(merger.ready(now=0)))
    assert 0 < held * PIECE_BYTES <= HELD_LIMIT


def test_what_is_not_taken_of_the_ready_pieces_stays_for_the_next_time() -> None:
    merger = Merger(["a"], patience=60)
    for number in range(3):
        merger.add(piece("a", str(number), number), now=0)
    assert next(merger.ready(now=0)).chunk.data == b"0"
    assert texts(merger.ready(now=0)) == ["1", "2"]


def test_a_node_that_has_ended_or_spoken_is_not_waited_for_among_many() -> None:
    names = [f"n{number}" for number in range(100)]
    merger = Merger(names, patience=60)
    for number, name in enumerate(names):
        assert texts(merger.ready(now=0)) == []
        if number % 2:
            merger.close(name)
        else:
            merger.add(piece(name, name, float(number)), now=0)
    assert texts(merger.ready(now=0)) == ["n0"]
    merger.add(piece("n0", "later", 99.0), now=0)
    assert texts(merger.ready(now=0)) == ["n2"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 100))), st.floats(0, 1))
def test_nothing_is_lost_and_a_nodes_own_order_is_kept(
    given_lines: list[tuple[str, float]], patience: float
) -> None:
    merger = Merger("abc", patience=patience)
    out: list[Piece] = []
    for number, (node, time) in enumerate(given_lines):
        merger.add(piece(node, str(number), time), now=number / 10)
        out += merger.ready(now=number / 10)
    out += merger.flush()
    for node in "abc":
        wanted = [str(n) for n, (name, _) in enumerate(given_lines) if name == node]
        assert texts(one for one in out if one.source.node == node) == wanted


def test_equal_lines_of_many_ranks_are_shown_once() -> None:
    folder = LineDeduplicator()
    for rank in (0, 1, 2, 3):
        folder.add(entry("a", rank, "loading"), now=0)
    folder.add(entry("a", 1, "mine"), now=0)
    folder.add(entry("b", 4, "loading"), now=0)
    assert folder.ready(now=WINDOW / 2) == []
    assert shown(folder.ready(now=0.2)) == ["[*:0-4] loading", "[a:1] mine"]
    assert folder.flush() == []


def test_equal_lines_written_long_apart_stay_two() -> None:
    folder = LineDeduplicator()
    folder.add(entry("a", 0, "saved", 100.0), now=0)
    folder.add(entry("a", 1, "saved", 160.0), now=0)
    assert shown(folder.flush()) == ["[a:0] saved", "[a:1] saved"]


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("xyz"))))
def test_folding_keeps_every_ranks_lines_in_order(given_lines: list[tuple[int, str]]) -> None:
    folder = LineDeduplicator()
    for rank, text in given_lines:
        folder.add(entry("a", rank, text), now=0)
    out = folder.flush()
    for rank in range(3):
        source = Source(node="a", rank=rank)
        seen = [line.line.text for line in out for one in line.sources if one == source]
        assert seen == [text for r, text in given_lines if r == rank]


HELD_BACK = (b"Traceback (most recent call last):", b"Error waiting on exit barrier. Elapsed")
"""First lines of a launcher's that wait for what follows them."""
WRITTEN = st.tuples(
    st.sampled_from("ab"),
    st.none() | st.integers(0, 2),
    st.lists(
        st.sampled_from([b"", b"x", b"y", b"\xff\0", b"\x1b[2J", *HELD_BACK]),
        min_size=1,
        max_size=3,
    ),
    st.floats(0, 5),
)


@given(st.lists(WRITTEN, max_size=30), st.floats(0, 1))
def test_merged_and_folded_every_line_is_shown_once_and_in_its_files_order(
    written: list[tuple[str, int | None, list[bytes], float]], patience: float
) -> None:
    merger, folder, out = Merger("ab", patience=patience), LineDeduplicator(), list[Folded]()
    wanted: dict[Source, list[bytes]] = {}
    for number, (node, rank, lines, time) in enumerate(written):
        source, now = Source(node, rank), number / 20
        begin = sum(len(line) + 1 for line in wanted.get(source, []))
        wanted.setdefault(source, []).extend(lines)
        chunk = Chunk(begin, b"".join(line + b"\n" for line in lines))
        merger.add(Piece(source, chunk, time), now=now)
        for one in merger.ready(now=now):
            for line in one.entries():
                folder.add(line, now=now)
        out += folder.ready(now=now)
    for one in merger.flush():
        for line in one.entries():
            folder.add(line, now=100.0)
    out += folder.flush()
    found: dict[Source, list[bytes]] = {}
    for folded in out:
        for source in folded.sources:
            found.setdefault(source, []).append(folded.line.data)
    assert found == wanted


def test_a_progress_bar_is_shown_now_and_then() -> None:
    folder = LineDeduplicator()
    for number in range(25):
        folder.add(entry("a", 0, f"{number}%", ending="\r"), now=number / 10)
    folder.add(entry("a", 0, "done"), now=2.5)
    assert [line.line.text for line in folder.flush()] == ["0%", "10%", "20%", "done"]


@pytest.mark.parametrize(
    ("sources", "label"),
    [
        ([Source(node="a", rank=3)], "a:3"),
        ([Source(node="a")], "a"),
        ([Source(node="a", rank=0), Source(node="b", rank=1)], "*:0-1"),
    ],
)
def test_labels(sources: list[Source], label: str) -> None:
    assert Folded(tuple(sources), Line(0, 0, b"", "\n"), 0.0).label == label
