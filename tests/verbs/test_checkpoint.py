"""A checkpoint to go on from is complete and the same on every node, or it is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.errors import LaunchRefused
from clusterctl.inventory.cluster import Cluster
from clusterctl.transport.fake import FakePool
from clusterctl.transport.interface import Reply, Request
from clusterctl.verbs.checkpoint import choose
from clusterctl.wire import Message
from tests.verbs.runs import CLUSTER

LOCAL = replace(CLUSTER, job=replace(CLUSTER.job, checkpoints="out"))
SHARED = replace(LOCAL, shared=("/w",))


def seen(step: int, **more: Any) -> dict[str, Any]:
    return {
        "path": f"/w/out/step-{step}",
        "name": f"step-{step}",
        "format": "clusterctl",
        "step": step,
        "time": float(step),
        "complete": True,
        "why": "",
        "hash": f"hash of {step}",
        "part": None,
        **more,
    }


def node(*quick: dict[str, Any], deep: dict[str, str] | None = None) -> Callable[[Request], Any]:
    """Answer as a node that holds these; `deep` says what reading to the last byte finds."""

    def answer(request: Request) -> list[Message]:
        which = str(request.args["which"])
        if which == "latest":
            return [Message({"folder": "/w/out", "candidates": list(quick)})]
        for one in quick:
            if which.endswith(one["name"]):
                broken = (deep or {}).get(one["name"], "") if request.args["verify"] else ""
                found = {**one, "complete": False, "why": broken} if broken else one
                return [Message({"folder": "/w/out", "candidates": [found]})]
        return [Message({"error": {"kind": "missing", "message": f"there is no {which}"}})]

    return answer


def pool(cluster: Cluster, **nodes: Any) -> FakePool:
    return FakePool(cluster, {name: {"checkpoints": answer} for name, answer in nodes.items()})


def test_latest_is_the_newest_that_all_have() -> None:
    nodes = pool(LOCAL, a=node(seen(20), seen(10)), b=node(seen(20), seen(10)))
    chosen = choose(nodes, LOCAL, "latest")
    assert (chosen.path, chosen.step, chosen.passed_over) == ("/w/out/step-20", 20, ())
    assert chosen.verified_on == ("a", "b")


def test_latest_falls_back_and_says_so() -> None:
    broken = seen(30, complete=False, why="COMPLETE is missing")
    nodes = pool(
        LOCAL,
        a=node(broken, seen(20), seen(15), seen(10), deep={"step-20": "x is changed"}),
        b=node(broken, seen(20), seen(10)),
    )
    chosen = choose(nodes, LOCAL, "latest")
    assert chosen.step == 10
    assert chosen.passed_over == (
        "step-30: it is not complete: COMPLETE is missing (on a, b)",
        "step-20: it is not complete: x is changed (on a)",
        "step-15: it is not there on b",
    )


def test_what_differs_between_nodes_is_refused() -> None:
    nodes = pool(LOCAL, a=node(seen(20)), b=node(seen(20, hash="another")))
    with pytest.raises(LaunchRefused, match="not the same on all nodes"):
        choose(nodes, LOCAL, "step-20")


def test_on_shared_storage_one_node_reads_it() -> None:
    nodes = pool(SHARED, a=node(seen(20)), b=node(seen(20)))
    assert choose(nodes, SHARED, "latest").verified_on == ("a",)
    assert [name for name, request in nodes.requests if request.args["verify"]] == ["a"]


@pytest.mark.parametrize("which", ["step-30", "/w/out/step-30"])
def test_a_path_is_never_replaced_but_the_newest_complete_one_is_named(which: str) -> None:
    broken = seen(30, complete=False, why="COMPLETE is missing")
    nodes = pool(SHARED, a=node(broken, seen(20)), b=node(broken, seen(20)))
    with pytest.raises(LaunchRefused, match="COMPLETE is missing") as caught:
        choose(nodes, SHARED, which)
    assert caught.value.hint == "the newest complete one: --checkpoint /w/out/step-20"
    assert caught.value.exit_code == 125


def test_a_flipped_bit_is_refused() -> None:
    nodes = pool(SHARED, a=node(seen(20), deep={"step-20": "x is changed"}), b=node(seen(20)))
    with pytest.raises(LaunchRefused, match="x is changed") as caught:
        choose(nodes, SHARED, "step-20")
    assert caught.value.hint == "no complete checkpoint was found beside it"


def part(
    ranks: list[int],
    *,
    metadata: bool = False,
    step: int = 20,
    said: list[int] | None = None,
    saved: float = 100.0,
) -> dict[str, Any]:
    held = {
        "ranks": ranks,
        "world_size": 4,
        "metadata": metadata,
        "steps": said or [],
        "saved": [saved, saved + 1],
    }
    why = "model_state_rank9.pt is missing"
    return {**seen(20), "complete": False, "why": why, "part": held, "step": step}


def test_parts_of_ranks_on_their_own_nodes_add_up() -> None:
    whole = pool(LOCAL, a=node(part([0, 1], metadata=True)), b=node(part([2, 3])))
    assert choose(whole, LOCAL, "latest").step == 20


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (part([2]), r"model_state_rank3\.pt is on no node"),
        (part([2, 3], step=40), "of steps 20, 40"),
        (part([2, 3], said=[10]), "of steps 10, 20"),
        (part([2, 3], saved=5000.0), "written 4901 s apart"),
        (seen(20, complete=False, why="model_state_rank2.pt is changed"), "rank2.pt is changed"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(other: dict[str, Any], why: str) -> None:
    nodes = pool(LOCAL, a=node(part([0, 1], metadata=True)), b=node(other))
    with pytest.raises(LaunchRefused, match=why):
        choose(nodes, LOCAL, "step-20")


def test_whole_copies_of_another_step_are_refused() -> None:
    nodes = pool(LOCAL, a=node(seen(20)), b=node({**seen(20, hash="other"), "step": 40}))
    with pytest.raises(LaunchRefused, match="not the same on all nodes"):
        choose(nodes, LOCAL, "step-20")


def test_what_speaks_against_it_is_passed_on() -> None:
    doubtful = seen(20, doubts=["a copy, or two saves that are mixed"])
    nodes = pool(LOCAL, a=node(doubtful), b=node(doubtful))
    assert choose(nodes, LOCAL, "latest").doubts == ("a copy, or two saves that are mixed",)


def test_a_node_that_does_not_answer_proves_nothing() -> None:
    nodes = pool(LOCAL, a=node(seen(20)), b=Reply(node="b", state="timeout", phase="connect"))
    with pytest.raises(LaunchRefused, match=r"b: timeout .* cannot prove"):
        choose(nodes, LOCAL, "latest")


def test_latest_needs_to_know_where() -> None:
    with pytest.raises(LaunchRefused, match="found none in the inventory"):
        choose(pool(CLUSTER), CLUSTER, "latest")


def test_none_at_all() -> None:
    with pytest.raises(LaunchRefused, match="no complete checkpoint in out: it holds none"):
        choose(pool(LOCAL, a=node(), b=node()), LOCAL, "latest")
