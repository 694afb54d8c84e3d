"""Lines of many ranks: in order of time, equal ones once, each rank's own order kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusterctl.logs.entry import Entry, Folded, Source, label
from clusterctl.logs.fold import Folder
from clusterctl.logs.lines import Line
from clusterctl.logs.merge import ENTRY_BYTES, HELD_LIMIT, Merger


def entry(
    node: str, rank: int | None, text: str, time: float = 0.0, *, ending: str = "\n"
) -> Entry:
    data = text.encode()
    line = Line(begin=0, end=len(data) + 1, data=data, ending=ending)  # type: ignore[arg-type]
    return Entry(source=Source(node=node, rank=rank), line=line, time=time)


def texts(entries: list[Entry]) -> list[str]:
    return [one.line.text for one in entries]


def shown(lines: list[Folded]) -> list[str]:
    return [f"[{line.label}] {line.line.text}" for line in lines]


def test_lines_come_in_order_of_time_once_every_node_has_spoken() -> None:
    merger = Merger(["a", "b"], patience=60)
    merger.add([entry("a", 0, "a1", 1.0)], now=0)
    merger.add([entry("a", 0, "a3", 3.0)], now=0)
    assert texts(merger.ready(now=0)) == []
    merger.add([entry("b", 1, "b2", 2.0)], now=0)
    assert texts(merger.ready(now=0)) == ["a1", "b2"]
    merger.close("b")
    assert texts(merger.ready(now=0)) == ["a3"]


def test_no_line_waits_for_a_silent_node_longer_than_the_patience() -> None:
    merger = Merger(["a", "b"], patience=0.1)
    merger.add([entry("a", 0, "live", 1.0)], now=10.0)
    assert texts(merger.ready(now=10.05)) == []
    assert texts(merger.ready(now=10.11)) == ["live"]


def test_short_lines_count_for_what_they_take_in_memory() -> None:
    merger = Merger(["a", "silent"], patience=float("inf"))
    for number in range(200):
        merger.add([entry("a", 0, "x", number)] * 1000, now=0)
    held = 200_000 - len(merger.ready(now=0))
    assert held * ENTRY_BYTES <= HELD_LIMIT


def test_a_node_that_has_ended_or_spoken_is_not_waited_for_among_many() -> None:
    names = [f"n{number}" for number in range(100)]
    merger = Merger(names, patience=60)
    for number, name in enumerate(names):
        assert merger.ready(now=0) == []
        if number % 2:
            merger.close(name)
        else:
            merger.add([entry(name, 0, name, float(number))], now=0)
    assert texts(merger.ready(now=0)) == ["n0"]
    merger.add([entry("n0", 0, "later", 99.0)], now=0)
    assert texts(merger.ready(now=0)) == ["n2"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 100))), st.floats(0, 1))
def test_nothing_is_lost_and_a_nodes_own_order_is_kept(
    given_lines: list[tuple[str, float]], patience: float
) -> None:
    merger = Merger("abc", patience=patience)
    out: list[Entry] = []
    for number, (node, time) in enumerate(given_lines):
        merger.add([entry(node, 0, str(number), time)], now=number / 10)
        out += merger.ready(now=number / 10)
    out += merger.flush()
    for node in "abc":
        wanted = [str(n) for n, (name, _) in enumerate(given_lines) if name == node]
        assert [one.line.text for one in out if one.source.node == node] == wanted


def test_equal_lines_of_many_ranks_are_shown_once() -> None:
    folder = Folder()
    for rank in (0, 1, 2, 3):
        folder.add(entry("a", rank, "loading"), now=0)
    folder.add(entry("a", 1, "mine"), now=0)
    folder.add(entry("b", 4, "loading"), now=0)
    assert folder.ready(now=0.05) == []
    assert shown(folder.ready(now=0.2)) == ["[*:0-4] loading", "[a:1] mine"]
    assert folder.flush() == []


def test_equal_lines_written_long_apart_stay_two() -> None:
    folder = Folder()
    folder.add(entry("a", 0, "saved", 100.0), now=0)
    folder.add(entry("a", 1, "saved", 160.0), now=0)
    assert shown(folder.flush()) == ["[a:0] saved", "[a:1] saved"]


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("xyz"))))
def test_folding_keeps_every_ranks_lines_in_order(given_lines: list[tuple[int, str]]) -> None:
    folder = Folder()
    for rank, text in given_lines:
        folder.add(entry("a", rank, text), now=0)
    out = folder.flush()
    for rank in range(3):
        source = Source(node="a", rank=rank)
        seen = [line.line.text for line in out for one in line.sources if one == source]
        assert seen == [text for r, text in given_lines if r == rank]


def test_a_progress_bar_is_shown_now_and_then() -> None:
    folder = Folder()
    for number in range(25):
        folder.add(entry("a", 0, f"{number}%", ending="\r"), now=number / 10)
    folder.add(entry("a", 0, "done"), now=2.5)
    assert [line.line.text for line in folder.flush()] == ["0%", "10%", "20%", "done"]


def test_labels() -> None:
    assert label([Source(node="a", rank=3)]) == "a:3"
    assert label([Source(node="a")]) == "a"
    assert label([Source(node="a", rank=0), Source(node="b", rank=1)]) == "*:0-1"
