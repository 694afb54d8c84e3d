"""What stands behind failures that are all echoes, as in public reports and real runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.logs.first_cause import FirstCause, NodeReport, first_cause

CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:52898"
TIMED_OUT = (
    "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation to complete"
)
PAIR = "RuntimeError: Application timeout caused pair closure"
OWN = [
    "Traceback (most recent call last):",
    '  File "/data/fin.py", line 9, in <module>',
    "    f()",
]


def ended(time: float, rank: int, **more: Any) -> dict[str, Any]:
    return {"kind": "rank-ended", "time": time, "rank": rank, "exit_code": 1, **more}


def stopped(time: float, rank: int) -> dict[str, Any]:
    return ended(time, rank, exit_code=143, signal=15, ordered=True)


def report(
    node: str,
    rank: int,
    lines: Sequence[str],
    *events: dict[str, Any],
    times: Sequence[float] = (),
    gone: str = "",
) -> NodeReport:
    return NodeReport(
        node=node, events=events, last_lines={rank: lines}, times={rank: times}, gone=gone
    )


def found(*reports: NodeReport) -> FirstCause:
    causes = {first_cause(order) for order in (reports, reports[::-1])}
    (cause,) = causes
    assert cause is not None
    return cause


def test_a_rank_that_raised_and_was_still_exiting_is_the_cause() -> None:
    cause = found(
        report("a", 0, [CLOSED], ended(9.0, 0)),
        report("b", 1, ["step 299", *OWN, "ValueError: bad sample 17"], stopped(10.0, 1)),
    )
    assert (cause.node, cause.rank, cause.kind, cause.exit_status) == ("b", 1, "exit", 1)
    assert cause.message == "ValueError: bad sample 17 (it was still exiting when it was stopped)"
    assert cause.lines[-1] == "ValueError: bad sample 17"


@pytest.mark.parametrize(
    "line",
    [
        "KeyboardInterrupt",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15",
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Terminated.",
    ],
)
def test_what_a_rank_prints_because_it_is_stopped_is_no_cause(line: str) -> None:
    cause = found(
        report("a", 0, [CLOSED], ended(9.0, 0)), report("b", 1, [*OWN, line], stopped(10.0, 1))
    )
    assert (cause.node, cause.rank) == ("a", 0)


def test_an_exception_long_after_the_echo_came_of_the_stop() -> None:
    lines = [*OWN, "ValueError: cannot save"]
    cause = found(
        report("a", 0, [CLOSED], ended(9.0, 0)),
        report("b", 1, lines, stopped(60.0, 1), times=[59.0] * len(lines)),
    )
    assert cause.node == "a"


def test_a_rank_that_went_on_after_an_exception_is_the_cause_of_a_timeout_alone() -> None:
    lines = [*OWN, "OSError: PutObject: SlowDown", "step 12", "step 13"]
    times = [1764369910.0] * 4 + [1764369912.0, 1764369914.0]
    other = report("b", 1, lines, stopped(1764369920.0, 1), times=times)
    cause = found(report("a", 0, [PAIR], ended(1764369916.0, 0)), other)
    assert (cause.node, cause.rank) == ("b", 1)
    assert cause.message == (
        "it was alive, and had printed OSError: PutObject: SlowDown at 22:45:10 UTC;"
        f" rank 0 of a waited for it: {PAIR}"
    )
    assert "the other ranks wait" in cause.remedy
    cause = found(report("a", 0, [CLOSED], ended(1764369916.0, 0)), other)
    assert cause.node == "a"  # a connection that closed does not come of that


def test_a_rank_that_did_not_come_to_a_collective_is_named() -> None:
    lines = ["Map: 4/30", "Map: 5/30"]
    cause = found(
        report("a", 0, lines, stopped(30.0, 0), times=[18.0, 19.0]),
        report("b", 1, [TIMED_OUT], ended(20.0, 1)),
        report("c", 2, [], stopped(30.0, 2)),
    )
    assert (cause.node, cause.rank, cause.also) == ("a", 0, ("c:2",))
    assert cause.message == (
        "it did not come to the collective in which rank 1 of b waited;"
        " it was alive and printed last 1 s before: Map: 5/30"
    )
    assert "raise timeout=" in cause.remedy


@pytest.mark.parametrize("echo", [CLOSED, TIMED_OUT])
def test_a_rank_that_exited_with_0_before_the_others_failed_without_it_is_named(echo: str) -> None:
    others = [report("b", 1, [echo], ended(9.5, 1)), report("c", 2, ["step 3"], stopped(10.0, 2))]
    gave_up = report("a", 0, ["Error. It already exists."], ended(7.5, 0, exit_code=0))
    cause = found(gave_up, *others)
    assert (cause.node, cause.rank, cause.kind, cause.exit_status) == ("a", 0, "exit", 1)
    assert cause.message == (
        "exited with 0: Error. It already exists. (2.0 s before rank 1 of b failed without it)"
    )
    assert "another code than 0" in cause.remedy
    later = replace(gave_up, events=[ended(9.75, 0, exit_code=0)])
    assert not found(later, *others).message.startswith("exited with 0")
    error = report("c", 2, [*OWN, "ValueError: bad sample 17"], ended(10.0, 2))
    assert found(gave_up, others[0], error).node == "c"


def watchdog(rank: int, number: int, size: int, enqueued: int) -> list[str]:
    log = f"[rank{rank}]:[E1122 06:50:00.5 ProcessGroupNCCL.cpp"
    work = f"WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn={size}, Timeout(ms)=600000)"
    waits = f"[Rank {rank}] Watchdog caught collective operation timeout: {work} ran for 600031 ms"
    seen = f"detected by watchdog at work: {number}, last enqueued NCCL work: {enqueued}, last"
    return [
        f"{log}:616] {waits} milliseconds before timing out.",
        f"{log}:1785] [PG 0 Rank {rank}] Exception (either an error or timeout) {seen} ...",
        f"{log}:630] To avoid data inconsistency, we are taking the entire process down.",
    ]


@pytest.mark.parametrize("first", [0, 1])
def test_ranks_in_different_collectives_are_compared(first: int) -> None:
    lines = [watchdog(0, 1516, 25427968, 1530), watchdog(1, 1517, 1, 1517)]
    events = [[ended(10.0, 0)], [ended(10.0, 1)]]
    events[1 - first] = [stopped(13.0, 1 - first)]
    cause = found(*(report("ab"[n], n, lines[n], *events[n]) for n in (0, 1)))
    assert (cause.node, cause.rank) == ("a", 0)
    assert cause.message == (
        "it waited in #1516 ALLREDUCE of 25427968 (enqueued up to #1530), and rank 1 of b in"
        " #1517 ALLREDUCE of 1 (enqueued up to #1517): they took different branches"
    )


def test_ranks_that_all_waited_in_the_same_collective_give_the_earliest() -> None:
    cause = found(
        report("a", 0, watchdog(0, 7, 1, 7), ended(11.0, 0)),
        report("b", 1, watchdog(1, 7, 1, 7), ended(10.0, 1)),
    )
    assert (cause.node, cause.rank) == ("b", 1)
    assert "did not come in time" in cause.remedy


SILENT = {"kind": "peer-silent", "time": 12.0, "since": 8.5, "peer": "b", "message": "no answer"}


@pytest.mark.parametrize("gone", ["", "the machine was rebooted"])
def test_a_node_that_fell_silent_as_the_run_ended_is_the_cause_of_echoes(gone: str) -> None:
    cause = found(
        report("a", 0, [CLOSED], ended(9.0, 0), SILENT), report("b", 1, ["step 3"], gone=gone)
    )
    assert (cause.node, cause.rank, cause.kind, cause.time) == ("b", None, "node-lost", 8.5)
    assert cause.message.startswith("a lost the connection to it: no answer")
    assert gone in cause.message
    assert "--exclude b" in cause.remedy


def test_a_node_that_was_cut_off_blames_no_master_that_only_saw_it_fall_silent() -> None:
    """The ranks' own timeout came before the silence counted as a loss for the master."""
    joined = [{"kind": "peer-joined", "time": 1.0, "peer": peer} for peer in "bc"]
    to_master = {"kind": "peer-joined", "time": 1.0, "peer": "a"}
    lost = {"kind": "peer-lost", "time": 12.0, "since": 7.5, "peer": "a", "message": "no route"}
    cause = found(
        report("a", 0, [CLOSED], ended(9.0, 0), *joined, SILENT | {"peer": "c"}),
        report("b", 1, [CLOSED], ended(9.1, 1), to_master),
        report("c", 2, [CLOSED], ended(9.2, 2), to_master, lost),
    )
    assert (cause.node, cause.kind) == ("c", "node-lost")


@pytest.mark.parametrize("cut", ["a", "b"])
def test_a_node_that_was_cut_off_and_failed_too_is_the_cause_when_it_is_back(cut: str) -> None:
    links = {"a": "bc", "b": "a", "c": "a"}  # a is the master
    reports = []
    for rank, (node, peers) in enumerate(links.items()):
        joined = [{"kind": "peer-joined", "time": 1.0, "peer": peer} for peer in peers]
        silent = [
            SILENT | {"peer": peer, "since": 8.0 + rank} for peer in peers if cut in (node, peer)
        ]
        end = ended(9.0 + rank, rank)
        reports.append(report(node, rank, [TIMED_OUT], *joined, end, *silent))
    cause = found(*reports)
    assert (cause.node, cause.rank, cause.kind) == (cut, None, "node-lost")


def test_a_node_whose_end_nobody_recorded_is_the_cause_of_echoes() -> None:
    cause = found(
        report("a", 0, [CLOSED], ended(9.0, 0)),
        report("b", 1, ["step 3"], gone="its supervisor died"),
    )
    assert (cause.node, cause.kind) == ("b", "node-lost")


def test_a_silent_node_does_not_hide_an_error_of_another() -> None:
    cause = found(report("a", 0, ["ValueError: no"], ended(9.0, 0), SILENT))
    assert (cause.node, cause.rank) == ("a", 0)


def lost(node: str, peer: str, since: float, *joined: str) -> NodeReport:
    links = [{"kind": "peer-joined", "time": 1.0, "peer": name} for name in joined or (peer,)]
    loss = {"kind": "peer-lost", "time": 20.0, "since": since, "peer": peer, "message": "silent"}
    return NodeReport(node=node, events=[*links, loss])


def test_of_two_nodes_that_lost_each_other_none_is_blamed() -> None:
    cause = found(lost("a", "b", 9.0), lost("b", "a", 8.0))
    assert (cause.node, cause.kind) == ("a", "node-lost")
    assert cause.message == (
        "it and b lost the connection to each other: silent; either may have been cut off"
    )
    assert cause.remedy.startswith("clusterctl check --nodes a,b tries")
    alone = found(lost("a", "b", 9.0), report("b", 1, ["step 3"]))
    assert "each other" not in alone.message


@pytest.mark.parametrize("earlier", [0, 2])
def test_of_two_nodes_that_lost_each_other_the_one_without_any_peer_was_cut_off(
    earlier: float,
) -> None:
    master = lost("a", "c", 9.0, "b", "c")
    worker = NodeReport(
        node="b", events=[{"kind": "peer-joined", "time": 1.0, "peer": "a"}, stopped(21.0, 1)]
    )
    cause = found(master, worker, lost("c", "a", 8.0 + earlier))
    assert (cause.node, cause.kind) == ("c", "node-lost")
    assert cause.message == "a lost the connection to it: silent"


def test_a_start_timeout_names_the_node_that_was_not_there() -> None:
    late = {"kind": "start-timeout", "time": 30.0, "peer": "b", "message": "it was not there"}
    lost = {"kind": "peer-lost", "time": 41.0, "since": 26.0, "peer": "a", "message": "refused"}
    cause = found(NodeReport(node="a", events=[late]), NodeReport(node="b", events=[lost]))
    assert (cause.node, cause.kind, cause.message) == ("b", "start-timeout", "it was not there")
    gone = {"kind": "peer-lost", "time": 20.0, "since": 5.0, "peer": "c"}
    cause = found(NodeReport(node="a", events=[gone, late]), NodeReport(node="b", events=[lost]))
    assert (cause.node, cause.kind) == ("c", "node-lost")
    slow = NodeReport(node="b", events=[lost], env_init_s=40.2)
    cause = found(NodeReport(node="a", events=[late]), slow)
    assert cause.message == "it was not there: its env_init took 40 s"
    assert "quicker env_init" in cause.remedy
    slow = replace(slow, env_init_said="loading modules")
    cause = found(NodeReport(node="a", events=[late]), slow)
    assert cause.message.endswith("took 40 s, and printed last: loading modules")
