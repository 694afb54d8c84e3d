"""Verdicts by what NCCL knows; the ranks' own stacks tell less."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterctl.hang.verdict import verdict
from clusterctl.logs.watchdog import BRANCHED
from clusterctl.model.dump import (
    Communicator,
    Frame,
    Launches,
    NcclRank,
    NodeDump,
    ProcessDump,
    RankDump,
    ThreadStack,
)
from clusterctl.model.verdict import Verdict

STEP = Frame(function="step", file="/job/train.py", line=88)


def node(number: int, *pids: int) -> NodeDump:
    """Return a node whose ranks all wait for their GPUs at one line."""
    thread = ThreadStack(id=1, state="S", frames=(STEP,))
    ranks = (
        RankDump(rank=pid - 10, processes=(ProcessDump(pid=pid, state="S", threads=(thread,)),))
        for pid in pids
    )
    address = (f"10.0.0.{number}",)
    return NodeDump(run="r", node=f"gpu{number}", time=0.0, ranks=tuple(ranks), addresses=address)


def nccl(pid: int, *, host: str = "10.0.0.2", **more: Any) -> NcclRank:
    return NcclRank(rank=pid - 10, host=host, pid=pid, **more)


def judged(one: Communicator, *missing: str) -> Verdict:
    nodes = (replace(node(1, 10, 11), communicators=(one,)), node(2, 12, 13))
    return verdict([each for each in nodes if each.node not in missing], missing)


def launched(operation: str, *behind: NcclRank) -> Launches:
    return Launches(operation=operation, least=6, most=7, behind=behind)


def test_ranks_that_launched_fewer_are_named_where_their_stacks_do_not_tell() -> None:
    one = Communicator(name="0x1", size=4, launches=(launched("AllReduce", nccl(12), nccl(13)),))
    found = judged(one)
    assert (found.kind, found.ranks, found.nodes) == ("launches", (2, 3), ("gpu2",))
    assert found.text == (
        "ranks 2-3 on gpu2 are at train.py:88 step and launched 6 AllReduce collectives,"
        " others up to 7"
    )
    assert found.remedy == "clusterctl dump r --rank 2-3 shows the whole stack"
    assert judged(replace(one, moves=True)).kind == "unknown", "the run continues"


def test_ranks_behind_in_different_collectives_took_different_branches() -> None:
    both = (launched("AllReduce", nccl(12)), launched("Broadcast", nccl(13)))
    found = judged(Communicator(name="0x1", size=4, launches=both))
    assert found.text.endswith(
        "; rank 3 on gpu2 launched 6 Broadcast collectives, others up to 7:"
        " they took different branches"
    )
    assert found.remedy == BRANCHED


def test_processes_that_no_node_tells_of_are_named_as_nccl_does() -> None:
    strange = [nccl(pid, host="gpu7; rm -rf /") for pid in range(90, 96)]
    found = judged(Communicator(name="0x1", size=99, launches=(launched("", *strange),)))
    assert found.ranks == ()
    assert found.text == (
        "NCCL's rank 80 of 99 (process 90 on another machine) and NCCL's rank 81 of 99"
        " (process 91 on another machine) and NCCL's rank 82 of 99 (process 92 on another machine)"
        " and 3 more launched 6 collectives, others up to 7"
    )
    found = judged(Communicator(name="0x1", size=0, launches=(launched(""),)))
    assert found.text == "one of NCCL's ranks launched 6 collectives, others up to 7"


@pytest.mark.parametrize(("dead", "words"), [(True, " and counts as dead there"), (False, "")])
def test_a_rank_that_nccl_does_not_reach_is_named(*, dead: bool, words: str) -> None:
    one = Communicator(name="0x1", size=4, unreached=(nccl(13, dead=dead),))
    found = judged(one)
    assert (found.kind, found.ranks, found.nodes) == ("unreached", (3,), ("gpu2",))
    assert found.text == f"rank 3 on gpu2 is not reached by NCCL's status service{words}"
    assert found.remedy.startswith("clusterctl check --only network")


def test_a_node_that_is_silent_too_is_the_one_to_check() -> None:
    gone = (nccl(12, dead=True), nccl(13, dead=True))
    found = judged(Communicator(name="0x1", size=4, unreached=gone), "gpu2")
    assert (found.kind, found.ranks, found.nodes) == ("unreached", (), ("gpu2",))
    assert found.text.endswith("count as dead there; gpu2 told no stacks")
    assert found.remedy == "clusterctl check --nodes gpu2"


def test_two_nodes_with_one_address_name_no_rank() -> None:
    one = Communicator(name="0x1", size=4, unreached=(nccl(13, host="10.0.0.1"),))
    nodes = [
        replace(node(n, 10 + n), addresses=("10.0.0.1",), communicators=(one,)) for n in (1, 3)
    ]
    assert verdict(nodes).ranks == ()
