"""Why a run ended before it ran: the cause that the late nodes share, by name."""

from __future__ import annotations

from dataclasses import replace

from clusterctl.errors import NodeError
from clusterctl.logs.first_cause import FirstCause
from clusterctl.model.node_run import NodeRun
from clusterctl.verbs.runs.join_failure import cause_of_ends, join_failure, with_late_nodes
from clusterctl.verbs.runs.run_state import NodeAnswer
from clusterctl.verbs.runs.run_status import RunStatus
from tests.verbs.run_answers import CLUSTER, RUN, rank, read

NAMES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
NODES = tuple(replace(CLUSTER.master, name=name, host=name) for name in NAMES)


def view(*joined: bool | None, launcher: bool = True, by: str = "stop") -> RunStatus:
    """Return a run of three nodes that have reached the master or not; None: did not answer."""
    return RunStatus(
        run=RUN,
        cluster="lab",
        nodes=tuple(
            NodeAnswer(node=node, error=NodeError("timeout", "answer"))
            if has is None
            else NodeAnswer(
                node=node, node_run=node_run(number, joined=has, launcher=launcher, by=by)
            )
            for number, (node, has) in enumerate(zip(NODES, joined, strict=True))
        ),
    )


def node_run(number: int, *, joined: bool, launcher: bool, by: str) -> NodeRun:
    return read(
        {
            "state": "failed",
            "ranks": [rank(number, joined=joined and not launcher)],
            "launcher_joined": joined if launcher else None,
            "master": {"address": "10.0.0.1", "port": 29500},
            "end": {"state": "failed", "by": by, "reason": "so", "time": 7.0},
        }
    )


def late(seen: RunStatus) -> FirstCause:
    return join_failure(seen, ("10.0.0.2:1", "10.0.0.3:2"), 60)


def test_nodes_that_all_miss_the_master_point_at_its_firewall() -> None:
    for launcher, words in ((True, "do not reach"), (False, "have not reached")):
        cause = late(view(True, False, False, launcher=launcher))
        assert cause.message == f"10.0.0.2 and 10.0.0.3 {words} 10.0.0.1:29500"
        assert (cause.node, cause.kind) == ("10.0.0.1", "start-timeout")
        assert "look at 10.0.0.1's firewall" in cause.remedy
        assert "--master-port" in cause.remedy
        # A rank that loads its data has not reached it either.
        assert cause.remedy.startswith("clusterctl check tries the port") == (not launcher)


def test_a_node_that_alone_misses_the_master_is_looked_at_itself() -> None:
    cause = late(view(True, True, False))
    assert (cause.node, cause.message) == ("10.0.0.3", "10.0.0.3 does not reach 10.0.0.1:29500")
    assert "look at the firewall and the routes of 10.0.0.3" in cause.remedy


def test_a_rank_that_did_not_even_try_is_named_as_such() -> None:
    cause = join_failure(view(True, True, False, launcher=False), ("10.0.0.3:2",), 60)
    assert (cause.node, cause.rank) == ("10.0.0.3", 2)
    assert cause.message == "not joined within 60 s: 10.0.0.3:2"


def test_no_firewall_is_blamed_for_a_master_that_is_not_there_itself() -> None:
    for seen in (view(False, False, False), view(None, False, False)):
        assert late(seen).message == "not joined within 60 s: 10.0.0.2:1, 10.0.0.3:2"


def test_a_silent_node_is_not_said_to_miss_the_master() -> None:
    assert late(view(True, False, None)).message == "10.0.0.2 does not reach 10.0.0.1:29500"


def test_the_nodes_own_start_timeout_names_the_same_cause() -> None:
    cause = cause_of_ends(view(True, False, False, by="start-timeout"))
    assert cause is not None
    assert (cause.time, cause.message) == (7.0, "10.0.0.2 and 10.0.0.3 do not reach 10.0.0.1:29500")


def test_a_node_that_was_lost_is_the_cause_and_an_end_by_a_rank_tells_none() -> None:
    lost = cause_of_ends(view(True, True, True, by="lost"))
    assert lost is not None
    assert (lost.node, lost.kind, lost.message, lost.time) == ("10.0.0.1", "node-lost", "so", 7.0)
    for by in ("rank", "stop", "peer", "supervisor"):
        assert cause_of_ends(view(True, True, True, by=by)) is None


def test_an_end_without_a_reason_is_told_by_what_brought_it() -> None:
    seen = view(True, True, True, by="lost")
    first = replace(
        seen.nodes[0], node_run=read({"state": "failed", "end": {"state": "failed", "by": "lost"}})
    )
    cause = cause_of_ends(replace(seen, nodes=(first, *seen.nodes[1:])))
    assert cause is not None
    assert (cause.message, cause.time) == ("lost", 0.0)


def test_every_late_node_is_named_with_what_it_was_doing() -> None:
    busy = {name: f"rank 1 has run for 9 s, {name}" for name in "bcdef"}
    cause = with_late_nodes(late(view(None, False, False)), busy)
    assert cause.message == (
        "not joined within 60 s: 10.0.0.2:1, 10.0.0.3:2; "
        + "; ".join(f"{name}: {phase}" for name, phase in list(busy.items())[:4])
        + "; and 1 more node"
    )


def test_what_the_cause_says_of_a_late_node_is_not_repeated() -> None:
    shared = late(view(True, False, False))
    assert (
        with_late_nodes(shared, {"10.0.0.2": "its launcher does not reach 10.0.0.1:29500"})
        == shared
    )
    slow = replace(shared, message="it was not there within 8 s: its env_init took 25 s")
    assert with_late_nodes(slow, {"10.0.0.1": "its launcher has run for 8 s"}) == slow
    own = replace(shared, message="not gathered within 2 s: rank 3 has not started")
    assert with_late_nodes(own, {"10.0.0.3": "rank 3 has not started"}) == own


def test_a_run_that_was_ended_for_a_hang_says_so_and_where_its_stacks_are() -> None:
    cause = cause_of_ends(view(True, True, True, by="hang"))
    assert cause is not None
    assert (cause.node, cause.kind, cause.message) == ("10.0.0.1", "hang", "so")
    assert cause.remedy.endswith(f"clusterctl dump {RUN}")


def test_the_hint_for_another_world_is_of_the_launcher_that_started_the_ranks() -> None:
    for launcher, words in ((True, "leave the launcher out"), (False, "let the script give its")):
        cause = cause_of_ends(view(True, False, False, launcher=launcher, by="world"))
        assert cause is not None
        assert cause.remedy.startswith(words)
