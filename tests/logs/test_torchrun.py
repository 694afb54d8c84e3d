"""What torchrun prints of itself: one line each, and in full whenever it may matter."""

from __future__ import annotations

import collections
import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.logs.deduplicate import LineDeduplicator, PassThrough
from clusterctl.logs.entry import Entry, Folded, Piece, Source
from clusterctl.logs.lines import Chunk
from clusterctl.logs.torchrun import (
    BARRIER_SECONDS,
    CLOSED,
    NAMELESS,
    TRACEBACK_SECONDS,
    TorchrunNoise,
)

PREFIX = "E1122 07:07:27.898000 30279 torch/distributed/elastic/agent/server/api.py:1009] "
PAGE = [
    PREFIX + "Error waiting on exit barrier. Elapsed: 1.234 seconds",
    PREFIX + "Traceback (most recent call last):",
    PREFIX + '  File "/venv/lib/python3.11/site-packages/torch/x.py", line 6, in barrier',
    PREFIX + "    store.get(key)",
    PREFIX + "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
    PREFIX + "Exception raised from recvBytes at /pytorch/Utils.hpp:678 (most recent call first):",
    PREFIX + "frame #0: c10::Error::Error(c10::SourceLocation) + 0x98 (0x7f in libc10.so)",
]
OLD_PAGE = [
    "[2024-01-01 10:00:00,000] torch.x.api: [ERROR] Error waiting on exit barrier. Elapsed",
    "Traceback (most recent call last):",
    '  File "/venv/lib/python3.11/site-packages/torch/x.py", line 6, in barrier',
    "    store.get(key)",
    "RuntimeError: Connection reset by peer",
]
STORE_PAGE = [
    "[W1124 02:11:56.030257859 TCPStore.cpp:138] [c10d] recvValueWithTimeout failed on SocketImpl(",
    "Exception raised from recvBytes at /pytorch/Utils.hpp:787 (most recent call first):",
    "frame #0: c10::Error::Error(c10::SourceLocation) + 0x9d (0x7f in libc10.so)",
    "<omitting python frames>",
    "frame #34: _start + 0x21 (0x55 in python)",
    "",
]
TERMED = [
    "W1122 07:07:48.336000 473 torch/x/api.py:753] Received 15 death signal, shutting down workers",
    "Traceback (most recent call last):",
    '  File "<frozen runpy>", line 198, in _run_module_as_main',
    '  File "/venv/lib/python3.11/site-packages/torch/distributed/run.py", line 1032, in <module>',
    "    main()",
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 473 got signal: 15",
]


def entries(lines: list[str], rank: int | None = None, node: str = "a") -> list[Entry]:
    chunk = Chunk(0, "".join(line + "\n" for line in lines).encode())
    return Piece(Source(node=node, rank=rank), chunk, 0.0).entries()


def shown(lines: list[Folded]) -> list[str]:
    return [line.line.text for line in lines]


def folder(lines: list[str], rank: int | None = None) -> LineDeduplicator:
    made = LineDeduplicator()
    for entry in entries(lines, rank):
        made.add(entry, now=0.0)
    return made


def test_the_program_that_starts_a_rank_is_not_taken_for_its_python() -> None:
    failed = PREFIX + "failed (exitcode: 1) local_rank: 0 (pid: 12)"
    line = failed + " of binary: /usr/bin/python3"
    assert shown(folder([line]).flush(finished=False)) == [failed]
    assert shown(folder([line], rank=0).flush(finished=False)) == [failed]  # a script's torchrun


@pytest.mark.parametrize("page", [PAGE, OLD_PAGE, STORE_PAGE, [*STORE_PAGE, *PAGE]])
def test_the_exit_barrier_of_a_run_that_finished_is_left_out(page: list[str]) -> None:
    assert shown(folder(["before", *page, "after it"]).flush(finished=True)) == [
        "before",
        "after it",
    ]


@pytest.mark.parametrize("page", [PAGE, OLD_PAGE, [*STORE_PAGE, *PAGE]])
def test_the_exit_barrier_of_any_other_run_is_shown_in_full(page: list[str]) -> None:
    lines = ["before", *page, "after it"]
    assert shown(folder(lines).flush(finished=False)) == lines


def test_the_exit_barrier_of_a_run_that_goes_on_is_shown_after_a_while() -> None:
    made = folder([*PAGE, "after it"])
    assert shown(made.ready(now=BARRIER_SECONDS - 1)) == []
    late = shown(made.ready(now=BARRIER_SECONDS)) + shown(made.flush(finished=True))
    assert late == [*PAGE, "after it"]


def test_the_traceback_of_an_agent_that_was_sent_term_is_one_line() -> None:
    assert shown(folder([*TERMED, "next"]).flush()) == [
        TERMED[0],
        "torchrun received SIGTERM (its traceback: logs --raw)",
        "next",
    ]


FAILED = [
    *TERMED[:-1],
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "=" * 60,
    "train.py FAILED",
    "-" * 60,
    "Failures:",
    "  <NO_OTHER_FAILURES>",
    "-" * 60,
    "Root Cause (first observed failure):",
    "[0]:",
    "  time      : 2026-11-26_13:03:12",
    "  host      : node2",
    "  rank      : 1 (local_rank: 0)",
    "  exitcode  : 1 (pid: 4711)",
    "  error_file: <N/A>",
    "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
    "=" * 60,
]
"""As torch 2.13 prints it."""
REPORT = FAILED[len(TERMED) - 1 :]


def test_the_report_of_an_agent_whose_rank_failed_is_one_line() -> None:
    one = "torchrun reported how its ranks ended (its report: logs --raw)"
    assert shown(folder([*FAILED, "next"]).flush()) == [TERMED[0], one, "next"]
    killed = FAILED[-2].replace("To enable traceback see", "Signal 9 (SIGKILL) received by PID 7")
    assert shown(folder([*FAILED[:-2], killed, FAILED[-1]]).flush()) == [TERMED[0], one]


@pytest.mark.parametrize(
    "report",
    [
        [*REPORT[:-2], "  traceback : Traceback (most recent call last):", "    x()", REPORT[-1]],
        [*REPORT[:3], "another line"],
        REPORT[:-1],
        REPORT[:1],
    ],
)
def test_a_report_that_tells_more_or_is_cut_off_is_shown_in_full(report: list[str]) -> None:
    assert shown(folder([*TERMED[:-1], *report]).flush()) == [TERMED[0], *report]


def test_any_other_traceback_of_a_launcher_is_shown_in_full() -> None:
    lines = [*TERMED[:-1], "ModuleNotFoundError: No module named 'torch'", "next"]
    assert shown(folder(lines).flush()) == lines
    cut = TERMED[:-2]
    made = folder(cut)
    assert shown(made.ready(now=TRACEBACK_SECONDS)) == cut


def test_ranks_and_raw_logs_lose_nothing() -> None:
    for page in (PAGE, OLD_PAGE, TERMED, FAILED):
        assert shown(folder(page, rank=0).flush(finished=True)) == page
        straight = PassThrough()
        for entry in entries(page):
            straight.add(entry, now=0.0)
        assert shown(straight.flush(finished=True)) == page


LINE = st.sampled_from([*PAGE, *OLD_PAGE, *STORE_PAGE, *TERMED, *REPORT]) | st.text(
    st.characters(exclude_categories=("Cc", "Cs")), max_size=12
)
WRITTEN = st.sampled_from([PAGE, OLD_PAGE, STORE_PAGE, TERMED, TERMED[:-1], FAILED]) | st.lists(
    LINE, max_size=3
)
PASSED = st.sampled_from([0.0, TRACEBACK_SECONDS, BARRIER_SECONDS])


@given(written=st.lists(st.tuples(WRITTEN, PASSED), max_size=8), finished=st.booleans())
def test_any_lines_come_in_order_and_once_and_only_torchruns_own_are_shortened(
    written: list[tuple[list[str], float]], *, finished: bool
) -> None:
    noise, out, now = TorchrunNoise(), list[Entry](), 0.0
    lines = [line for some, _ in written for line in some]
    coming = iter(entries(lines))
    for some, passed in written:
        for entry in itertools.islice(coming, len(some)):
            out += noise.take(entry, now=now)
        now += passed
        out += noise.overdue(now=now)
    out += noise.flush(finished=finished)
    assert noise.flush(finished=finished) == []

    spans = [(entry.line.begin, entry.line.end) for entry in out]
    assert spans == sorted(spans)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
    # What is not shown word for word belongs to a page or traceback of torch's.
    left = collections.Counter(lines) - collections.Counter(entry.line.text for entry in out)
    barrier = finished and any("exit barrier" in line or "[c10d]" in line for line in lines)
    for line in left:
        own = "Traceback" in line or "SignalExc" in line or line in REPORT
        assert own or line.startswith(" ") or barrier, line
    if not barrier and not any("SignalExc" in line or line == REPORT[0] for line in lines):
        assert not left


def test_a_rendezvous_that_a_stop_has_closed_is_one_line() -> None:
    page = [*TERMED[1:-1], "torch.distributed.elastic.rendezvous.api.RendezvousClosedError"]
    sink = LineDeduplicator()
    for entry in entries([*page, "a"]):
        sink.add(entry, now=0.0)
    assert shown(sink.flush()) == [CLOSED.decode(), "a"]
    mine = [*page[:-1], "RendezvousClosedError: mine"]
    for entry in entries(mine):
        sink.add(entry, now=0.0)
    assert shown(sink.flush()) == mine


@pytest.mark.parametrize("rank", [None, 3])
def test_peers_without_a_name_are_one_line_a_log(rank: int | None) -> None:
    ending = "socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3"
    forms = [f"[W1126 22:24:23.065123 {ending}", f"[rank3]:[W1126 22:24:23.065123 {ending}"]
    sink = LineDeduplicator()
    for entry in entries(["a", forms[0], "b", *forms, f"my {forms[0]}"], rank):
        sink.add(entry, now=0.0)
    assert shown(sink.flush()) == ["a", NAMELESS.decode(), "b", f"my {forms[0]}"]


def test_a_line_made_to_be_slow_is_not() -> None:
    began = time.process_time()
    for entry in entries(["E0000 " + "] " * 50_000]):
        TorchrunNoise().take(entry, now=0.0)
    assert time.process_time() - began < 2  # it took 30 s
