"""A node whose answers make no sense ends no verb, and is the only one that is blamed."""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest
from hypothesis import example, given, settings

from clusterctl.errors import ClusterError
from clusterctl.facts.network.counters import Counters
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.storage.storage import PathFacts
from clusterctl.network.choice import Network
from clusterctl.report.console import Screen, make_console
from clusterctl.report.copies import show_sync
from clusterctl.report.launch import TerminalDisplay
from clusterctl.report.lines import Timestamped
from clusterctl.report.runs import show_prunable, show_pruned, show_runs
from clusterctl.report.stacks.dump import show_dump
from clusterctl.report.status import show_status
from clusterctl.report.stop import show_stop
from clusterctl.report.top.look import Look
from clusterctl.report.top.render import render
from clusterctl.transport.interface import Request
from clusterctl.verbs import logs
from clusterctl.verbs.checkpoints import choose
from clusterctl.verbs.compare.story import read_samples
from clusterctl.verbs.dump.dump import DumpQuery, dump, write_dumps
from clusterctl.verbs.events import Notice
from clusterctl.verbs.follow import MergedLines, follow
from clusterctl.verbs.launch.join_monitor import JoinMonitor
from clusterctl.verbs.launch.run_result import run_result
from clusterctl.verbs.launch.start_run import start_run
from clusterctl.verbs.preflight import connectivity
from clusterctl.verbs.preflight.check import CheckOptions, check
from clusterctl.verbs.runs import list_runs, prune
from clusterctl.verbs.runs.history import unrecorded
from clusterctl.verbs.runs.records import Records
from clusterctl.verbs.runs.run_log import RunLog
from clusterctl.verbs.status import status
from clusterctl.verbs.stop import stop
from clusterctl.verbs.sync.sync import sync
from clusterctl.verbs.top.top import Watcher
from clusterctl.wire import Message
from tests.fake_pool import FakePool
from tests.verbs.hostile import MEETING, UNSAFE, Mutation, answers, mutated, mutations
from tests.verbs.run_answers import CLUSTER as PLAIN
from tests.verbs.run_answers import PLAN, RUN, drained

CLUSTER = replace(
    PLAIN,
    nodes=tuple(replace(node, local=True, workdir="/w") for node in PLAIN.nodes),
    job=replace(PLAIN.job, checkpoints="out"),
)
Blamed = Iterable[str]
T = TypeVar("T")


class Shown:
    """Both streams of a command, as one text."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.screen = Screen(make_console(self.stream), make_console(self.stream))

    def run(self, use_case: Callable[..., T], *args: Any, **more: Any) -> T:
        """Run a use case and show its events."""
        display = self.person
        try:
            return use_case(*args, **more, emit=display.show)
        finally:
            display.quiet()

    @property
    def person(self) -> TerminalDisplay:
        return TerminalDisplay(screen=self.screen, lines=Timestamped(self.stream))


def by_status(pool: FakePool, shown: Shown, _folder: Path) -> Blamed:
    view = shown.run(status, pool, RUN, CLUSTER)
    show_status(shown.screen, view)
    view.document()
    assert view.nodes[1].node_run, "the good node's answer is used"
    return [answer.node.name for answer in view.silent]


def by_top(pool: FakePool, shown: Shown, _folder: Path) -> Blamed:
    watcher = Watcher(pool, RUN, CLUSTER)
    for _ in watcher.follow():
        pass
    top = watcher.snapshot()
    json.dumps(top.document(), allow_nan=False)
    for look in (Look(width=80), Look(width=200, height=9, fold=True, help="q quit")):
        for line in render(top, look)[0]:
            shown.screen.out.print(line)
    assert top.nodes[1].now, "the good node's answer is used"
    return [answer.node.name for answer in top.status.silent]


def by_samples(pool: FakePool, _shown: Shown, _folder: Path) -> Blamed:
    found, errors = read_samples(pool, RUN, CLUSTER)
    assert found["b"].gpus[0].percent == (97, 98.5)
    return [error.node for error in errors]


def by_runs(pool: FakePool, shown: Shown, folder: Path) -> Blamed:
    listed = list_runs.runs(pool, Records(folder), rebuild=True)
    show_runs(shown.screen, listed)
    assert RUN in {run.run for run in listed.runs}
    assert {path.parent.parent.parent for path in folder.rglob("*.json")} <= {folder}
    return [error.node for error in listed.errors]


def by_prune(pool: FakePool, shown: Shown, folder: Path) -> Blamed:
    records = Records(folder)
    plan = prune.prunable(pool, records, keep=0)
    show_prunable(shown.screen, plan)
    pruned = prune.prune(pool, records, plan)
    show_pruned(shown.screen, pruned, keep=0)
    for error in pruned.errors:
        shown.screen.say(Notice(text=error.message, node=error.node))
    return [error.node for error in pruned.errors]


def by_start(pool: FakePool, shown: Shown, _folder: Path) -> Blamed:
    shown.run(start_run, pool, CLUSTER, PLAN, {})
    return []


def by_stop(pool: FakePool, shown: Shown, _folder: Path) -> Blamed:
    result = shown.run(stop, pool, RUN, CLUSTER)
    show_stop(shown.screen.out, result)
    assert result.nodes[1].gone
    assert result.exit_code in {0, 1, 3}
    return [node.node for node in result.nodes if node.failure]


def by_logs(pool: FakePool, shown: Shown, _folder: Path) -> Blamed:
    seen, errors = drained(logs.read_logs, pool, RunLog(RUN, CLUSTER))
    for event in seen:
        shown.person.show(event)
    assert "second of 1" in shown.stream.getvalue()
    return errors


def by_follow(pool: FakePool, shown: Shown, _folder: Path) -> Blamed:
    log = RunLog(RUN, CLUSTER)
    seen, errors = drained(follow, pool, log, MergedLines())
    monitor = JoinMonitor(PLAN)
    for event in seen:
        monitor.see(event, emit=shown.person.show)
    ended = run_result(log, errors, None)
    shown.person.ended(ended)
    assert 0 <= ended.exit_code <= 255
    return errors


def by_dump(pool: FakePool, shown: Shown, folder: Path) -> Blamed:
    result = shown.run(dump, pool, RUN, CLUSTER, DumpQuery())
    show_dump(shown.screen, result, every_thread=True, folder=None)
    write_dumps(folder / "out", result)
    assert {path.name for path in folder.rglob("*.json")} <= {"a.json", "b.json"}
    assert json.loads((folder / "out/b.json").read_text())["ranks"]
    json.dumps(result.document())
    return [error.node for error in result.silent]


def by_collect(pool: FakePool, shown: Shown, folder: Path) -> Blamed:
    errors = shown.run(logs.collect, pool, RunLog(RUN, CLUSTER), folder)
    copied = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert all(
        re.fullmatch(r"[ab]/(events\.jsonl|launcher\.log|ranks/\d+\.log)", p) for p in copied
    )
    assert (folder / "b/ranks/1.log").read_bytes() == b"first\nsecond of 1\n"
    return errors


def by_resume(pool: FakePool, shown: Shown, _folder: Path) -> Blamed:
    chosen = shown.run(choose.choose_checkpoint, pool, CLUSTER, "latest", history=unrecorded(RUN))
    assert shlex.quote(chosen.path)
    return []


def by_sync(pool: FakePool, shown: Shown, folder: Path) -> Blamed:
    (folder / "train.py").write_text("print(1)\n")
    result = shown.run(sync, CLUSTER, pool, folder)
    show_sync(shown.screen.out, result)
    assert result.exit_code in {0, 1, 3}
    return [node.node for node in result.nodes if not node.ok]


def by_check(pool: FakePool, shown: Shown, _folder: Path) -> Blamed:
    verdict = shown.run(check, CLUSTER, pool, CheckOptions(code=False))
    assert verdict.exit_code in {0, 1, 3}
    assert verdict.facts["b"].answered
    return [name for name, facts in verdict.facts.items() if not facts.answered]


OPERATIONS: dict[str, tuple[str, Callable[[FakePool, Shown, Path], Blamed]]] = {
    "status": ("status", by_status),
    "top": ("watch", by_top),
    "samples": ("samples", by_samples),
    "cause": ("tail", by_status),
    "checkpoint": ("checkpoints", by_status),
    "runs": ("runs", by_runs),
    "prune": ("prune", by_prune),
    "start": ("start", by_start),
    "end-of-start": ("stop", by_start),
    "stop": ("stop", by_stop),
    "logs": ("tail", by_logs),
    "follow": ("tail", by_follow),
    "collect": ("tail", by_collect),
    "dump": ("dump", by_dump),
    "resume": ("checkpoints", by_resume),
    "tree": ("sync-compare", by_sync),
    "seen": ("share-look", by_sync),
    "place": ("sync-apply", by_sync),
    "check": ("collect-facts", by_check),
}


def drive_hostile(verb: str, changes: list[Mutation], folder: Path) -> None:
    """Let node `a` answer an operation with nonsense; `b` is well."""
    operation, use = OPERATIONS[verb]
    a, b = answers("a"), answers("b")
    real = a[operation]

    def nonsense(request: Request) -> list[Message]:
        return mutated(real(request) if callable(real) else real, changes)

    if verb == "end-of-start":
        b["start"] = [Message({"error": {"kind": "died", "message": "no"}})]
    shown = Shown()
    pool = FakePool(CLUSTER, cast("Any", {"a": {**a, operation: nonsense}, "b": b}))
    error: ClusterError | None = None
    blamed: set[str] = set()
    try:
        blamed.update(use(pool, shown, folder))
    except ClusterError as caught:
        error = caught
    if error is not None:
        assert error.exit_code in {1, 2, 3, 125}
        # A checkpoint that one node makes up may just be named as unfit. What ends a start may be
        # the other node's fault, and this one may say that it has ended its part.
        assert verb in {"resume", "end-of-start"} or re.search(r"\ba\b", str(error)), error
        assert_harmless(error.hint or "")
    assert blamed <= {"a"}
    assert not UNSAFE.search(shown.stream.getvalue())


def assert_harmless(hint: str) -> None:
    """A hint is typed into a shell: what a node chose is quoted in it."""
    assert "touch /tmp/owned" not in re.sub(r"'[^']*'", "", hint), hint


@pytest.mark.parametrize("verb", OPERATIONS)
@given(changes=mutations)
@settings(max_examples=15)
@example(changes=[])
def test_any_change_of_an_answer_gives_a_value_or_an_error_that_names_the_node(
    verb: str, changes: list[Mutation], tmp_path_factory: pytest.TempPathFactory
) -> None:
    drive_hostile(verb, changes, tmp_path_factory.mktemp(verb))


def test_a_node_that_claims_to_share_a_folder_is_the_only_one_to_be_blamed(tmp_path: Path) -> None:
    a, b = answers("a"), answers("b")

    def claims(request: Request) -> list[Message]:
        return [Message({"seen": cast("list[str]", request.args["tokens"])[2:], "busy": None})]

    pool = FakePool(CLUSTER, cast("Any", {"a": {**a, "share-look": claims}, "b": b}))
    assert "b" not in set(by_sync(pool, Shown(), tmp_path))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("verb", OPERATIONS)
@given(changes=mutations)
@settings(max_examples=3000)
def test_thousands_of_changes(
    verb: str, changes: list[Mutation], tmp_path_factory: pytest.TempPathFactory
) -> None:
    drive_hostile(verb, changes, tmp_path_factory.mktemp(verb))


@pytest.mark.parametrize(
    ("verb", "operation", "path"),
    [
        ("status", "status", ("node", "last", "rank")),
        ("resume", "checkpoints", ("candidates", 0, "part", "world_size")),
    ],
)
def test_what_may_be_missing_is_not_missed(
    verb: str, operation: str, path: Sequence[str | int], tmp_path: Path
) -> None:
    a, b = answers("a"), answers("b")
    left_out = cast("list[Message]", a[operation])
    value: Any = left_out[-1].head
    for key in path[:-1]:
        value = value[key]
    del value[path[-1]]
    pool = FakePool(CLUSTER, cast("Any", {"a": a, "b": b}))
    OPERATIONS[verb][1](pool, Shown(), tmp_path)


@given(changes=mutations)
@settings(max_examples=30)
@example(changes=[])
def test_any_change_of_the_meetings_answers_is_taken_or_named(changes: list[Mutation]) -> None:
    network = Network(
        nodes=cast(
            "Any", dict.fromkeys(("a", "b"), SimpleNamespace(address="10.0.0.1", interface="eth0"))
        ),
        master_port=4000,
    )
    clock = SimpleNamespace(invalid=lambda _head: "none of its steps")
    session = SimpleNamespace(
        cluster=replace(CLUSTER, shared=("/share",)),
        nonce="a" * 32,
        ended={},
        calls={"a": None, "b": None},
        clocks={"a": clock, "b": clock},
    )
    facts = {
        name: NodeFacts(
            node=name,
            paths=(PathFacts(path="/share", folder=True),),
            counters=(Counters(device="eth0", values=(("rx_errors", 1),)),),
        )
        for name in ("a", "b")
    }
    heard = connectivity._Probe(session=cast("Any", session), network=network, facts=facts)
    for message in mutated(MEETING, changes):
        heard.take("a", {**message.head, **({} if "step" in message.head else {"end": True})})
    for message in MEETING:
        assert not heard.take("b", {**message.head, "end": True})
    asked = connectivity._targets(heard, "b")
    if "a" in heard.prepared:
        assert {target["address"] for target in asked["targets"]} <= {"10.0.0.1"}
        assert {token["folder"] for token in asked["tokens"]} <= {"/share", "/w", "/w/out"}
        connectivity._between(heard, "a")
    between = connectivity._between(heard, "b")
    assert between.problem == ""
    assert ("rx_errors", 3) in between.counters[0].values
