"""How a run ended: as one line says it, and as a program is told."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from clusterctl.errors import NodeError
from clusterctl.model.dump import NodeDump
from clusterctl.model.from_json import from_json
from clusterctl.report.console import Screen
from clusterctl.report.launch import JsonDisplay, TerminalDisplay
from clusterctl.report.lines import Prefixed
from clusterctl.verbs.checkpoints.query import ChosenCheckpoint
from clusterctl.verbs.dump.dump import DumpResult
from clusterctl.verbs.dump.explain import HangExplained
from clusterctl.verbs.events import Event, NodeEvent
from clusterctl.verbs.launch.join_monitor import JoinProgress
from clusterctl.verbs.launch.run_result import RunResult
from clusterctl.verbs.resume import CheckpointChosen
from clusterctl.verbs.runs.run_state import NodeAnswer
from clusterctl.verbs.runs.run_status import RunStatus
from clusterctl.verbs.stop import Stopped, StoppedNode, StopResult
from tests.verbs.hostile import stood_still
from tests.verbs.run_answers import CLUSTER, RUN, node_run


@pytest.mark.parametrize(
    ("state", "by", "line"),
    [
        ("finished", "job", "finished (ended by job)"),
        ("failed", "start-timeout", "failed (ended by start-timeout)"),
        ("failed", "unknown", "failed (how it ended is unknown)"),
        ("lost", "lost", "lost"),
        ("stopped", "stop", "stopped"),
    ],
)
def test_who_ended_it_is_said_once(state: str, by: str, line: str) -> None:
    end = {"state": state, "by": {"job": "rank"}.get(by, by)}
    node = NodeAnswer(node=CLUSTER.node("a"), node_run=node_run("a", state, end=end))
    view = RunStatus(run=RUN, cluster="lab", nodes=(node,))
    console = Console(file=(stream := io.StringIO()), width=100)
    person = TerminalDisplay(screen=Screen(console, console), lines=Prefixed(stream))
    person.ended(RunResult(view=view, exit_code=1, ended_by=by))
    assert stream.getvalue() == f"{RUN}: {line}\n"


def test_what_may_be_left_on_a_silent_node_is_ended_by_stop() -> None:
    silent = NodeAnswer(node=CLUSTER.node("b"), error=NodeError("lost", "answer"))
    known = NodeAnswer(node=CLUSTER.node("a"), node_run=node_run("a", "lost"))
    for nodes, expected in (((known, silent), True), ((known,), False)):
        console = Console(file=(stream := io.StringIO()), width=100)
        person = TerminalDisplay(screen=Screen(console, console), lines=Prefixed(stream))
        view = RunStatus(run=RUN, cluster="lab", nodes=nodes)
        person.ended(RunResult(view=view, exit_code=1, ended_by="lost"))
        assert (f"clusterctl stop {RUN}\n" in stream.getvalue()) is expected


def test_what_stopping_came_to_has_one_shape(capsys: pytest.CaptureFixture[str]) -> None:
    result = StopResult(run=RUN, nodes=(StoppedNode(node="a", gone=True),))
    program = JsonDisplay()
    program.show(Stopped(result=result))
    program.stopped(result)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == second
    assert (first["kind"], first["run"], first["nodes"][0]["node"]) == ("stopped", RUN, "a")


def test_a_checkpoint_with_doubts_is_not_called_complete() -> None:
    chosen = ChosenCheckpoint(path="/w/step-20", step=20, format="dcp", verified_on=("a",))
    assert shown(CheckpointChosen(chosen=chosen)) == (
        "checkpoint /w/step-20 (dcp, step 20): complete; read by a\n"
    )
    doubtful = replace(chosen, doubts=("structure read, content not checksummed: .metadata",))
    assert shown(CheckpointChosen(chosen=doubtful)).split("): ")[1] == (
        "structure complete, content not fully verified; read by a\n"
    )


@pytest.mark.parametrize(
    ("by", "words"),
    [
        ("rank", "b failed"),
        ("start-timeout", "start timeout (b): not there: c"),
        ("lost", "b lost c"),
        ("world", "b: not there: c"),
    ],
)
def test_the_other_nodes_say_how_the_run_failed(by: str, words: str) -> None:
    event = {"kind": "peer-bad-end", "peer": "b", "by": by, "message": "not there: c", "lost": "c"}
    assert shown(NodeEvent(node="a", event=event)) == f"a: stopping: {words}\n"


def shown(event: Event) -> str:
    console = Console(file=(stream := io.StringIO()), width=200)
    TerminalDisplay(screen=Screen(console, console), lines=Prefixed(stream)).show(event)
    return stream.getvalue()


def test_that_a_run_is_hung_is_said_once_although_every_node_tells_it() -> None:
    console = Console(file=(stream := io.StringIO()), width=100)
    person = TerminalDisplay(screen=Screen(console, console), lines=Prefixed(stream))
    for alarm in (1, 2):
        for kind in ("hung", "running-again"):
            for node in ("a", "b"):
                event = {"kind": kind, "since": 1.0, "quiet_s": 300.0, "alarm": alarm}
                person.show(NodeEvent(node=node, event=event))
    told = stream.getvalue().splitlines()
    assert [line.partition(":")[0] for line in told] == [
        "hung", "running again", "hung", "running again",
    ]  # fmt: skip


def test_a_slow_rank_is_told_of_with_its_node_line_and_reason() -> None:
    event = {"rank": 3, "lost_percent": 41, "reason": "too hot", "where": "train.py:8 step"}
    told = shown(NodeEvent(node="gpu2", event={"kind": "straggler", **event}))
    wanted = "gpu2: the others wait 41 % of the time for rank 3, at train.py:8 step: too hot\n"
    assert told == wanted
    over = shown(NodeEvent(node="gpu2", event={"kind": "straggler-over", "rank": 3}))
    assert over == "gpu2: the others no longer wait for rank 3\n"


def test_the_next_attempt_is_said_once_although_every_node_tells_it() -> None:
    console = Console(file=(stream := io.StringIO()), width=100)
    person = TerminalDisplay(screen=Screen(console, console), lines=Prefixed(stream))
    told = {"kind": "again", "of": 3, "checkpoint": "/c/4", "wait_s": 4.7, "why": "rank 1 died"}
    for attempt, step in ((2, 40), (3, None)):
        for node in ("a", "b"):
            person.show(NodeEvent(node=node, event={**told, "attempt": attempt, "step": step}))
    last = {**told, "attempt": 4, "checkpoint": None, "wait_s": 0.0}
    person.show(NodeEvent(node="a", event=last))
    assert stream.getvalue().splitlines() == [
        "attempt 2 of 3 begins in 4.7 s, from checkpoint step 40: rank 1 died",
        "attempt 3 of 3 begins in 4.7 s, from checkpoint /c/4: rank 1 died",
        "attempt 4 of 3 begins now, from the beginning: rank 1 died",
    ]


def test_a_hang_is_explained_on_stderr_and_to_a_program_without_the_stacks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    dumps = tuple(from_json(NodeDump, stood_still(node), "") for node in "ab")
    states = {"a": "running", "b": "running"}
    result = DumpResult(run=RUN, time=1.0, dumps=dumps, states=states, notes={}, silent=())
    out, err = (Console(file=io.StringIO(), width=500) for _ in range(2))
    lines = io.StringIO()
    person = TerminalDisplay(screen=Screen(out, err), lines=Prefixed(lines))
    person.show(HangExplained(result=result))
    assert isinstance(err.file, io.StringIO)
    assert isinstance(out.file, io.StringIO)
    assert result.verdict is not None
    assert "train.py:88 train_step" in err.file.getvalue()
    assert result.verdict.text in err.file.getvalue()
    assert out.file.getvalue() + lines.getvalue() == ""
    JsonDisplay().show(HangExplained(result=result))
    (told,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (told["kind"], told["verdict"]["text"]) == ("verdict", result.verdict.text)
    assert "nodes" not in told


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        (("node2:1", "node3:2"), "1 of 3 ranks have joined after 10 s, missing: node2:1, node3:2"),
        (("node3",), "1 of 3 ranks have joined after 10 s, missing: the launcher of node3"),
    ],
)
def test_who_is_waited_for_is_a_rank_or_a_launcher(missing: tuple[str, ...], told: str) -> None:
    console = Console(file=(stream := io.StringIO()), width=200)
    person = TerminalDisplay(screen=Screen(console, console), lines=Prefixed(stream))
    person.show(JoinProgress(joined=1, total=3, missing=missing, quiet=True, seconds=10.0))
    assert stream.getvalue() == f"waiting: {told}\n"


def test_a_program_that_may_never_join_is_not_waited_for_without_a_word() -> None:
    console = Console(file=(stream := io.StringIO()), width=200)
    person = TerminalDisplay(screen=Screen(console, console), lines=Prefixed(stream))
    for seconds in (50.0, 60.0):
        missing = ("node1:0", "node2:1")
        person.show(JoinProgress(joined=0, total=2, missing=missing, quiet=True, seconds=seconds))
    early, late = stream.getvalue().splitlines()
    assert early.endswith("missing: node1:0, node2:1")
    assert late.endswith(" (a program without torch.distributed never joins)")
