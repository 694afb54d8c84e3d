"""Which nodes a run blames, by its first cause and by what its master noted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterctl.logs.first_cause import FirstCause
from clusterctl.model.from_json import DocumentError, from_json
from clusterctl.model.node_run import NodeRun
from clusterctl.model.run_record import RecordedCause, RunEnd
from clusterctl.verbs.quarantine.blame import Blame, blamed
from clusterctl.verbs.runs.run_status import RunStatus, view_of
from tests.verbs.run_answers import CLUSTER, RUN, node_run, part

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def view(cause: FirstCause | None = None, state: str = "failed", **master: Any) -> RunStatus:
    parts = {"a": part("a", state, **master), "b": part("b", state)}
    runs = {name: from_json(NodeRun, one, name) for name, one in parts.items()}
    return replace(view_of(RUN, CLUSTER, runs, {}), first_cause=cause)


def cause(kind: Any = "exit", message: str = "exited with 1", **more: Any) -> FirstCause:
    more = {"rank": 1, "lines": (ECC,), **more}
    return FirstCause(node="b", time=5.0, kind=kind, message=message, **more)


def test_a_node_that_was_lost_is_blamed() -> None:
    lost = cause("node-lost", "a lost the connection to it: no message", rank=None, lines=())
    reason = "the node was lost: a lost the connection to it: no message"
    assert blamed(view(lost), "a") == (Blame(node="b", run=RUN, reason=reason, time=5.0),)
    for words in ("the machine was rebooted", "its supervisor died"):
        known = replace(lost, message=f"{words}; {lost.message}")
        assert bool(blamed(view(known), "a")) is (words == "the machine was rebooted")
    either = "it and a lost the connection to each other: x; either may have been cut off"
    assert blamed(view(replace(lost, message=either)), "a") == ()


def test_a_fault_that_a_rank_printed_blames_its_node() -> None:
    (found,) = blamed(view(cause()), "a")
    assert (found.node, found.reason) == ("b", f"the GPU is faulty: {ECC}")


@pytest.mark.parametrize(
    "innocent",
    [
        cause(lines=("ValueError: no",)),
        cause(signal=9, kind="signal"),  # killed from outside
        cause(also=("a:0",)),  # on two nodes at once
        cause("start-timeout", "not joined", lines=()),
        cause("supervisor", "the supervisor died", lines=()),
        cause("hang", "no sign of life", lines=()),
        None,
    ],
)
def test_anything_else_blames_no_node(innocent: FirstCause | None) -> None:
    assert blamed(view(innocent), "a") == ()


def test_a_run_that_finished_blames_whom_its_master_noted_between_attempts() -> None:
    noted = {"b": {"why": "Xid 79", "time": 7.0}, "not-of-the-run": {"why": "x", "time": 7.0}}
    found = blamed(view(state="finished", blamed=noted), "a")
    assert found == (Blame(node="b", run=RUN, reason="Xid 79", time=7.0),)


def test_only_the_master_is_believed() -> None:
    noted = {"a": {"why": "Xid 79", "time": 7.0}}
    runs = {"a": node_run("a"), "b": node_run("b", blamed=noted, time_left_s=0, notify_problem="x")}
    told = view_of(RUN, CLUSTER, runs, {})
    assert (blamed(told, "a"), told.time_left_s, told.notify_problem) == ((), None, "")
    own = view(state="running", time_left_s=9, notify_problem="x")
    assert (own.time_left_s, own.notify_problem) == (9, "x")
    with pytest.raises(DocumentError):
        view(time_left_s=1e308)


def test_a_run_whose_nodes_are_silent_blames_whom_this_machine_remembers() -> None:
    recorded = RecordedCause(node="b", kind="node-lost", message="gone", time=5.0)
    end = RunEnd(state="lost", ended_by="lost", first_cause=recorded)
    silent = replace(view_of(RUN, CLUSTER, {}, {}), remembered=end)
    assert [one.node for one in blamed(silent, "a")] == ["b"]
