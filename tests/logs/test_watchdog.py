"""Who was behind, by what NCCL's watchdog printed on each rank; texts as torch 2.8 prints them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from clusterctl.logs.first_cause import NodeReport, first_cause
from clusterctl.logs.watchdog import BRANCHED, SIZES, Behind, behind


def waits(
    rank: int, number: int, kind: str = "ALLREDUCE", size: int = 1, *, group: str = "0(default_pg)"
) -> list[str]:
    """Return what torch 2.8 prints of a rank whose collective timed out."""
    work = f"WorkNCCL(SeqNum={number}, OpType={kind}, NumelIn={size}, NumelOut={size}, Timeout(ms)="
    head = f"[rank{rank}]:[E901 05:20:03.123992144 ProcessGroupNCCL.cpp"
    return [
        (
            f"{head}:632] [Rank {rank}] Watchdog caught collective operation timeout: {work}600000)"
            " ran for 600020 milliseconds before timing out."
        ),
        (
            f"{head}:2271] [PG ID 0 PG GUID {group} Rank {rank}]  failure detected by watchdog at"
            f" work sequence id: {number} PG status: last enqueued work: {number + 2},"
            f" last completed work: {number - 1}"
        ),
    ]


def asked(rank: int, enqueued: int, completed: int | None = None) -> list[str]:
    """Return what a rank prints that another one's timeout asks for its flight recorder."""
    head = f"[rank{rank}]:[E901 05:20:03.118859045 ProcessGroupNCCL.cpp:1746]"
    return [
        (
            f"{head} [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump signal due to a"
            " collective timeout from  rank 6 and we will try our best to dump the debug info. Last"
            f" enqueued NCCL work: {enqueued}, last completed NCCL work:"
            f" {enqueued if completed is None else completed}.This is most likely caused by"
        )
    ]


def who(lines: Mapping[int, Sequence[str]]) -> Behind | None:
    return behind(lines, {rank: f"n{rank}" for rank in lines})


def test_the_rank_that_had_not_come_is_named_though_it_complained_of_no_collective() -> None:
    lines = {0: waits(0, 22), 1: asked(1, 21), 2: waits(2, 22), 3: asked(3, 19, 17)}
    found = who(lines)
    assert found == Behind(
        (3, 1),
        "it did not come to #22 ALLREDUCE of 1 (enqueued up to #24), in which rank 0 of n0 and 1"
        " more waited: it had entered all up to #19",
    )
    found = who({0: waits(0, 22), 1: asked(1, 21)})
    assert found
    assert found.message.endswith("waited: it had completed all up to #21")


def test_a_rank_that_had_come_is_not_behind() -> None:
    assert who({0: waits(0, 22), 1: asked(1, 22, 21), 2: waits(2, 22)}) is None


def test_ranks_that_wait_in_different_process_groups_took_no_different_branches() -> None:
    lines = {0: waits(0, 9, group="2(tp)"), 1: waits(1, 5, group="3(dp)")}
    assert who(lines) is None
    assert who({0: waits(0, 22), 1: [*waits(1, 5, group="3(dp)"), *asked(1, 21)]}) is None
    both = [waits(0, 9, group="2(tp)"), waits(0, 4)]
    mixed = [both[0][0], both[1][0], both[1][1], both[0][1]]
    assert who({0: mixed, 1: waits(1, 4), 2: waits(2, 9, group="2(tp)")}) is None
    old = [line.replace("PG ID 0 PG GUID 2(tp)", "PG 2") for line in waits(0, 9, group="2(tp)")]
    assert who({0: old, 1: waits(1, 5, group="1")}) is None


@pytest.mark.parametrize("kind", ["SCATTER", "GATHER", "ALLTOALL_BASE", "COALESCED"])
def test_sizes_that_may_differ_are_not_compared(kind: str) -> None:
    assert who({0: waits(0, 3, kind, 8), 1: waits(1, 3, kind, 2**64 - 1)}) is None
    found = who({0: waits(0, 3, kind, 2**64 - 1), 1: waits(1, 4, kind, 8)})
    assert found
    assert found.message == (
        f"it waited in #3 {kind} (enqueued up to #5), and rank 1 of n1 in #4 {kind} of 8"
        " (enqueued up to #6): they took different branches"
    )


def test_the_same_collective_of_another_size_is_no_other_branch() -> None:
    found = who({0: waits(0, 3, "_ALLGATHER_BASE", 8), 1: waits(1, 3, "_ALLGATHER_BASE", 4)})
    assert found
    assert found.message.endswith(": their sizes differ")
    assert found.remedy == SIZES
    other = who({0: waits(0, 3, "BROADCAST", 8), 1: waits(1, 3, "ALLREDUCE", 4)})
    assert other
    assert other.remedy == BRANCHED


def test_a_pipeline_whose_stages_wait_for_each_other_tells_nothing() -> None:
    assert who({0: waits(0, 3, "SEND", 8), 1: waits(1, 7, "RECV", 8)}) is None


def test_without_the_line_of_the_group_collectives_are_still_compared() -> None:
    found = who({0: waits(0, 3)[:1], 1: waits(1, 4)[:1]})
    assert found
    assert found.message == (
        "it waited in #3 ALLREDUCE of 1, and rank 1 of n1 in #4 ALLREDUCE of 1:"
        " they took different branches"
    )


def test_the_last_words_alone_tell_group_and_collective() -> None:
    """Of a long C++ stack only the end is kept."""

    def last(rank: int, number: int) -> list[str]:
        said = waits(rank, number)[0].partition("] ")[2]
        died = "Process group watchdog thread terminated with exception"
        return [f"  what():  [PG ID 0 PG GUID 0(default_pg) Rank {rank}] {died}: {said}", "frame"]

    found = who({0: last(0, 4), 1: waits(1, 3)})
    assert found
    assert found.ranks == (1,)
    assert found.message.endswith("rank 0 of n0 in #4 ALLREDUCE of 1: they took different branches")
    both = [*waits(1, 3), *last(1, 3), waits(1, 3)[0]]
    assert who({0: waits(0, 3), 1: both}) is None


def test_a_line_without_end_takes_no_time() -> None:
    assert who({0: ["[PG " * 250_000, "WorkNCCL(" * 100_000], 1: waits(1, 3)}) is None


def test_the_first_cause_is_the_rank_behind_and_not_the_first_that_aborted() -> None:
    def report(rank: int, lines: list[str], time: float) -> NodeReport:
        end = {"kind": "rank-ended", "time": time, "rank": rank, "exit_code": None, "signal": 6}
        return NodeReport(node=f"n{rank}", events=[end], last_lines={rank: lines})

    late = ["step 20", *asked(1, 21)]
    reports = [report(0, waits(0, 22), 10.0), report(1, late, 12.0), report(2, waits(2, 22), 11.0)]
    for order in (reports, reports[::-1]):
        cause = first_cause(order)
        assert cause
        assert (cause.node, cause.rank, cause.lines) == ("n1", 1, tuple(late))
        assert cause.message.startswith("it did not come to #22 ALLREDUCE of 1")
        assert "its lines before that collective" in cause.remedy
