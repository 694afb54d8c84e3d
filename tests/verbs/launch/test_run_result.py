"""What a launch exits with: the job's own code, or 125 where clusterctl ended it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.cli.shared.parser import build_parser
from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.select import select
from clusterctl.logs.known_errors import FAULTY_GPU
from clusterctl.model.checkpoint import Checkpoint
from clusterctl.plan.effective import effective
from clusterctl.plan.options import Options
from clusterctl.verbs.launch.join_monitor import StartTimeout
from clusterctl.verbs.launch.run_result import RunResult, run_result
from clusterctl.verbs.runs.join_failure import why_ended
from clusterctl.verbs.runs.run_log import RunLog
from clusterctl.verbs.runs.way_on import relaunch
from tests.verbs.run_answers import CLUSTER, RUN, data, ended, happened


def over(by: str, state: str = "failed", **more: Any) -> dict[str, Any]:
    return {"end": {"state": state, "by": by, "exit_code": None, "reason": "so", **more}}


def judged(
    a: dict[str, Any] | None,
    b: dict[str, Any] | None,
    *,
    b_event: Mapping[str, Any] | None = None,
    b_printed: bytes = b"ValueError: no\n",
    late: StartTimeout | None = None,
    cluster: Cluster = CLUSTER,
) -> RunResult:
    log = RunLog(RUN, cluster)
    messages = []
    if b_event:
        messages += [("b", data(1, 0, b_printed)), ("b", happened(0, **b_event))]
    for name, given in (("a", a), ("b", b)):
        if given:
            messages.append((name, ended(name, **given)))
    for name, message in messages:
        list(log.take(name, message, now=0.0))
    silent = [name for name, given in (("a", a), ("b", b)) if not given]
    errors = {name: NodeError("lost", "answer", "no answer", node=name) for name in silent}
    return run_result(log, errors, late)


EXITED: dict[str, Any] = {"kind": "rank-ended", "rank": 1, "exit_code": 7}
KILLED: dict[str, Any] = {"kind": "rank-ended", "rank": 1, "exit_code": 139, "signal": 11}
FINISHED = {"state": "finished"}
FAILED = {"state": "failed"}
PEER = {"state": "failed", **over("peer")}


@pytest.mark.parametrize(
    ("a", "b", "b_event", "code", "by"),
    [
        (FINISHED, FINISHED, None, 0, "job"),
        (PEER, FAILED, EXITED, 7, "job"),
        (PEER, FAILED, KILLED, 139, "job"),
        (PEER, FAILED, None, 1, "job"),
        ({"state": "stopped"}, {"state": "stopped"}, None, 125, "stop"),
        ({"state": "lost", **over("lost", "lost")}, PEER, None, 125, "lost"),
        ({"state": "failed", **over("start-timeout")}, PEER, None, 125, "start-timeout"),
        (FINISHED, None, None, 125, "unknown"),
        (PEER, None, None, 125, "unknown"),
        ({"state": "lost", **over("lost", "lost")}, None, None, 125, "lost"),
        ({**FINISHED, "min_nodes": 1}, {"state": "lost", "min_nodes": 1}, None, 0, "job"),
        ({**FINISHED, "min_nodes": 1}, None, None, 0, "job"),
    ],
)
def test_exit_codes(
    a: dict[str, Any],
    b: dict[str, Any] | None,
    b_event: Mapping[str, Any] | None,
    code: int,
    by: str,
) -> None:
    found = judged(a, b, b_event=b_event)
    assert (found.exit_code, found.ended_by) == (code, by)


STOPPED = {"state": "stopped", **over("stop", "stopped")}
LOST: dict[str, Any] = {"kind": "peer-lost", "peer": "a", "since": 1.0, "message": "no answer"}
DIED: dict[str, Any] = {"kind": "supervisor-died", "message": "was killed by signal 9"}
TOLD: dict[str, Any] = {
    "kind": "peer-bad-end", "peer": "a", "by": "rank", "rank": 0, "exit_code": 137, "signal": 9,
}  # fmt: skip
TOLD_LOST = {"by": "lost", "lost": "c", "rank": None, "exit_code": None, "signal": None}
OF_A_RANK = {"state": "failed", **over("rank")}


@pytest.mark.parametrize(
    ("a", "b", "b_event", "told"),
    [
        (STOPPED, STOPPED, LOST, ("stopped", 125, "stop", None)),
        (STOPPED, STOPPED, DIED, ("stopped", 125, "stop", None)),
        (OF_A_RANK, OF_A_RANK, LOST, ("lost", 125, "lost", "node-lost")),
        (OF_A_RANK, OF_A_RANK, DIED, ("failed", 125, "supervisor", "supervisor")),
        (None, STOPPED, LOST, ("lost", 125, "lost", "node-lost")),
        (None, PEER, TOLD, ("failed", 137, "job", "signal")),
        (None, PEER, TOLD | TOLD_LOST, ("lost", 125, "lost", "node-lost")),
    ],
)
def test_the_state_the_code_who_ended_it_and_the_cause_agree(
    a: dict[str, Any] | None,
    b: dict[str, Any],
    b_event: Mapping[str, Any],
    told: tuple[object, ...],
) -> None:
    found = judged(a, b, b_event=b_event).document()
    cause = found["first_cause"] or {}
    assert (found["state"], found["exit_code"], found["ended_by"], cause.get("kind")) == told


def test_the_hint_after_a_lost_node_is_the_command_that_goes_on_without_it() -> None:
    cause = judged(None, STOPPED, b_event=LOST).view.first_cause
    assert cause is not None
    assert cause.remedy.splitlines() == [
        "to start from the beginning without it: clusterctl launch --exclude a -- -m train",
        "when a answers: clusterctl check --nodes a",
    ]
    no = {"no_restart": "no checkpoint can be taken: step-80: it is missing on b"}
    stopped = {**STOPPED, "end": {**STOPPED["end"], **no}}
    cause = judged(None, stopped, b_event=LOST).view.first_cause
    assert cause is not None
    assert "; it first names the push that brings a checkpoint" in cause.remedy
    saves = replace(CLUSTER, job=replace(CLUSTER.job, checkpoints="out"))
    again = f"clusterctl resume {RUN} --exclude a --checkpoint latest"
    assert relaunch(RUN, saves, "--exclude", "a") == again
    saved = Checkpoint(path="/out/7", step=7, time=1.0, format="dcp")
    found = judged(None, STOPPED, b_event=LOST, cluster=saves).view
    log = RunLog(RUN, saves)
    list(log.take("b", happened(0, **LOST), now=0.0))
    for checkpoint, verb in ((None, "launch"), (saved, "resume")):  # as far as status looked
        cause = why_ended(log, replace(found, checkpoints="out", checkpoint=checkpoint))
        assert cause is not None
        assert f"without it: clusterctl {verb} " in cause.remedy


def test_the_hint_after_a_faulty_gpu_is_the_command_that_goes_on_without_its_node() -> None:
    saves = replace(CLUSTER, job=replace(CLUSTER.job, checkpoints="out"))
    ecc = b"RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    for cluster in (saves, saves.with_nodes((saves.node("b"),))):
        found = judged(None, OF_A_RANK, b_event=EXITED, b_printed=ecc, cluster=cluster)
        cause = found.view.first_cause
        assert cause is not None
        assert cause.remedy == (
            f"the GPU is faulty; to continue without it: clusterctl resume {RUN} --exclude b"
            " --checkpoint latest"
            if cluster is saves
            else FAULTY_GPU
        )


@pytest.mark.parametrize(
    ("chosen", "left"), [(("g1", "g2", "g3"), ["g1", "g3"]), (("g2", "fd00::1"), ["fd00::1"])]
)
def test_a_launch_that_goes_on_has_only_nodes_of_the_one_before(
    chosen: tuple[str, ...], left: list[str]
) -> None:
    names = (*chosen, "g4", "g5")
    nodes = tuple(replace(CLUSTER.master, name=name, host=name) for name in names)
    inventory = replace(CLUSTER, nodes=nodes)
    typed = shlex.split(relaunch(RUN, select(inventory, str(len(chosen))), "--exclude", "g2"))
    args = build_parser(["launch"]).parse_args(typed[1 : typed.index("--")])
    picked = select(inventory, args.nodes, args.exclude)
    assert [node.name for node in picked.nodes] == left


def test_a_launch_that_goes_on_has_the_flags_of_the_one_before() -> None:
    flags = Options(
        launcher="torchrun",
        launcher_args=("--rdzv-conf", "a=1"),
        max_restarts=2,
        gpus=0,
        lost_after=90.0,
        master_port=29600,
        env=(("LR", "1 e"), ("HF_TOKEN", "hf_abc")),  # no hint shows a secret
        debug=True,
        origins={"lost_after": "CLUSTERCTL_LOST_AFTER"},
    )
    inventory = replace(CLUSTER, job=replace(CLUSTER.job, env=(("OWN", "1"),)))
    typed = shlex.split(relaunch(RUN, effective(inventory, flags), "--exclude", "a", name="base"))
    args = build_parser(["launch"]).parse_args(typed[1 : typed.index("--")])
    assert typed[typed.index("--") + 1 :] == list(CLUSTER.job.command)
    assert (args.exclude, args.name, args.launcher, args.gpus) == ("a", "base", "torchrun", 0)
    assert (args.master_port, args.env, args.debug) == (29600, ["LR=1 e"], True)
    assert args.launcher_args == ["--rdzv-conf", "a=1", "--max-restarts=2"]
    assert args.lost_after is None


def test_who_did_not_join_is_named() -> None:
    stopped = {"state": "stopped"}
    late = StartTimeout(seconds=60, missing=("b:1",))
    found = judged(stopped, stopped, late=late)
    assert (found.exit_code, found.ended_by) == (125, "start-timeout")
    cause = found.document()["first_cause"]
    assert (cause["node"], cause["rank"], cause["kind"]) == ("b", 1, "start-timeout")


@pytest.mark.parametrize("by", ["stop", "start-timeout"])
def test_a_start_timeout_tells_what_a_late_node_was_doing(by: str) -> None:
    waited = StartTimeout(seconds=60, missing=("b:1",)) if by == "stop" else None
    a = {"state": "failed", **over(by)}
    doing = {"kind": "late", "message": "rank 1 has not started"}
    cause = judged(a, PEER, b_event=doing, late=waited).document()["first_cause"]
    assert cause["message"].endswith("; b: rank 1 has not started")


@pytest.mark.parametrize(
    ("missing", "node", "rank"), [("fd00::1", "fd00::1", None), ("fd00::1:7", "fd00::1", 7)]
)
def test_who_did_not_join_may_be_called_by_an_address(
    missing: str, node: str, rank: int | None
) -> None:
    cluster = replace(CLUSTER, nodes=(replace(CLUSTER.master, name="fd00::1"),))
    late = StartTimeout(seconds=60, missing=(missing,))
    cause = run_result(RunLog(RUN, cluster), {}, late).view.first_cause
    assert cause is not None
    assert (cause.node, cause.rank) == (node, rank)


@pytest.mark.parametrize(
    ("by", "kind", "remedy"),
    [("lost", "node-lost", "--exclude"), ("start-timeout", "start-timeout", "--start-timeout")],
)
def test_what_an_end_says_has_the_remedy_that_fits(by: str, kind: str, remedy: str) -> None:
    end = {"state": "failed", **over(by)}
    cause = judged(end, end).view.first_cause
    assert cause is not None
    assert cause.kind == kind
    assert [word in cause.remedy for word in ("--exclude", "--start-timeout")].count(True) == 1
    assert remedy in cause.remedy


def test_a_finished_run_has_no_cause() -> None:
    assert judged(FINISHED, FINISHED).document()["first_cause"] is None


def test_the_last_attempt_gives_the_exit_code_or_that_there_was_no_progress() -> None:
    again = {"end": {**FAILED, "by": "rank", "exit_code": 7, "no_restart": "why"}}
    result = judged(PEER, {**FAILED, **again}, b_event=EXITED)
    assert (result.exit_code, result.view.no_restart) == (7, "why")
    again["end"]["run_exit_code"] = 4
    result = judged({**FAILED, **again}, {**FAILED, **again}, b_event=EXITED)
    assert (result.exit_code, result.ended_by) == (4, "job")


def test_what_an_earlier_attempt_reported_is_not_the_cause_of_the_last() -> None:
    log = RunLog(RUN, CLUSTER)
    first: dict[str, Any] = {"kind": "rank-ended", "rank": 0, "exit_code": 3}
    up: dict[str, Any] = {"kind": "supervisor-up", "attempt": 2}
    messages = [
        happened(0, **first), happened(100, **up), happened(200, **EXITED), data(1, 0, b"x\n"),
        ended("b", **FAILED, **over("rank")),
    ]  # fmt: skip
    for message in messages:
        list(log.take("b", message, now=0.0))
    list(log.take("a", ended("a", **PEER), now=0.0))
    assert run_result(log, {}, None).exit_code == 7


def test_what_an_earlier_attempt_printed_does_not_tell_why_the_last_failed() -> None:
    log = RunLog(RUN, CLUSTER)
    lines = b"ValueError: of attempt 1\n", b"of attempt 2\n"
    messages = [  # all events come before any log
        happened(0, "supervisor-up", attempt=2, time=1000.0), happened(100, time=1001.0, **EXITED),
        data(1, 0, lines[0], time=900.0, next=len(lines[0])),
        data(1, len(lines[0]), lines[1], time=1000.5, next=sum(map(len, lines))),
        ended("b", **FAILED, **over("rank")),
    ]  # fmt: skip
    for message in messages:
        list(log.take("b", message, now=0.0))
    cause = log.first_cause()
    assert cause is not None
    assert "of attempt 1" not in cause.message
    assert cause.lines == ("of attempt 2",)
