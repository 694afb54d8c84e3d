"""The logs of a run as they are: filtered, in order, or copied byte for byte."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from clusterctl.errors import NodeError, UsageError
from clusterctl.inventory.cluster import Job
from clusterctl.logs.deduplicate import LastLines, LineDeduplicator, PassThrough
from clusterctl.logs.entry import Filter
from clusterctl.report.console import Screen
from clusterctl.report.follow import EventPrinter
from clusterctl.report.lines import Prefixed, Raw
from clusterctl.transport.interface import Reply, Request
from clusterctl.verbs import follow as module
from clusterctl.verbs import logs
from clusterctl.verbs.dump.explain import HangExplained
from clusterctl.verbs.events import Event, NodeEvent, Notice
from clusterctl.verbs.follow import LogLines, MergedLines, follow
from clusterctl.verbs.logs import LogQuery, lines_to_read, read_logs
from clusterctl.verbs.runs.run_log import RunLog
from clusterctl.verbs.runs.run_state import NodeAnswer
from clusterctl.verbs.runs.run_status import RunStatus
from clusterctl.wire import Message
from tests.fake_pool import FakePool
from tests.verbs.hostile import stood_still
from tests.verbs.run_answers import CLUSTER, RUN, data, drained, ended, finish, happened, node_run

NOW = 1_000_000.0


def pool() -> FakePool:
    return FakePool(
        CLUSTER,
        {
            "a": {
                "tail": [
                    happened(0, "supervisor-up"),
                    data(0, 0, b"first\n", time=10.0),
                    data(0, 6, b"third \xff\n", time=30.0),
                    ended("a"),
                ]
            },
            "b": {"tail": [data(1, 0, b"second\n", time=20.0), ended("b")]},
        },
    )


@pytest.mark.parametrize(
    ("kind", "more", "told"),
    [
        ("other-world", {"message": "expected 1, found 2"}, "other nodes: expected 1, found 2"),
        ("leftovers-ended", {"count": 1, "commands": ["torchrun x"]}, "was ended: torchrun x"),
        ("leftovers-ended", {"commands": 7}, "was ended: "),
        ("started-elsewhere", {"command": "ssh b train"}, "`ssh b train`: what it starts"),
        ("trains-alone", {"master": "10.0.0.1:29500"}, "was seen: it trains alone"),
    ],
)
def test_what_the_state_of_a_run_does_not_tell_is_a_warning(
    kind: str, more: dict[str, object], told: str
) -> None:
    pool = FakePool(CLUSTER, {"a": {"tail": [happened(0, kind, **more), ended("a")]}})
    seen, _ = drained(logs.read_logs, pool, RunLog(RUN, CLUSTER))
    notices = [event for event in seen if isinstance(event, Notice) and event.node == "a"]
    assert [event.level for event in notices] == ["warning"]
    assert told in notices[0].text


@pytest.mark.parametrize("seen_there", [False, True])
def test_a_node_that_met_no_other_is_a_warning_unless_one_of_the_run_was_seen_to(
    *, seen_there: bool
) -> None:
    unseen = happened(0, "never-met", master="10.0.0.1:29500")
    met = [happened(0, "node-met")] if seen_there else []
    nodes = {"a": {"tail": [unseen, ended("a")]}, "b": {"tail": [*met, ended("b")]}}
    seen, _ = drained(logs.read_logs, FakePool(CLUSTER, nodes), RunLog(RUN, CLUSTER))
    notices = [event for event in seen if isinstance(event, Notice)]
    assert [one.level for one in notices] == ([] if seen_there else ["warning"])
    assert all(
        "a: no connection of its ranks to another node was seen: it may have trained alone"
        in one.text
        for one in notices
    )
    assert all("let it meet at 10.0.0.1:29500:" in one.hint for one in notices)


@pytest.mark.parametrize("free", [4096, None])
def test_the_disk_of_the_logs_is_named_if_a_rank_failed_without_a_word(free: int | None) -> None:
    dropped = happened(0, "log-dropped", file="ranks/0.log", free_bytes=free)
    failed = happened(50, "rank-ended", rank=0, exit_code=1)
    pool = FakePool(CLUSTER, {"a": {"tail": [dropped, failed, ended("a", "failed")]}})
    log = RunLog(RUN, CLUSTER)
    drained(logs.read_logs, pool, log)
    cause = log.first_cause()
    assert cause is not None
    assert ("nearly full" in cause.remedy) is (free is not None)


def test_several_nodes_that_met_no_other_are_in_the_order_of_the_inventory() -> None:
    unseen = happened(0, "never-met", master="10.0.0.1:29500")
    log = RunLog(RUN, CLUSTER)
    for node in ("b", "a"):
        list(log._happened(node, unseen.head))
    (warning,) = log._warn_of_unmet()
    assert warning.text == (
        "a,b: no connection of their ranks to another node was seen: each may have trained alone"
    )


def test_ranks_that_start_a_launcher_each_are_one_warning_with_the_command_to_type() -> None:
    def nested(rank: int) -> Message:
        return happened(0, "nested-launcher", rank=rank, pid=7, launcher="torchrun")

    nodes = {"a": {"tail": [nested(0), ended("a")]}, "b": {"tail": [nested(1), ended("b")]}}
    script = replace(CLUSTER, job=Job(command=("bash", "train all.sh")))
    for stream in (logs.read_logs, follow):
        seen, _ = drained(stream, FakePool(script, nodes), RunLog(RUN, script))
        (warning,) = [event for event in seen if isinstance(event, Notice)]
        assert warning.level == "warning"
        assert "started torchrun of its own, and so may every rank" in warning.text
        assert warning.hint.endswith(
            ": clusterctl launch --launcher direct --procs-per-node 1 -- bash 'train all.sh'"
        )


def test_history_is_in_order_of_time() -> None:
    seen, errors = drained(logs.read_logs, pool(), RunLog(RUN, CLUSTER))
    lines = [
        line.line.text for event in seen if isinstance(event, LogLines) for line in event.lines
    ]
    assert lines == ["first", "second", "third \\xff"]
    assert errors == {}


def test_a_last_line_without_an_end_is_of_when_it_was_written() -> None:
    nodes = FakePool(
        CLUSTER,
        {
            "a": {"tail": [data(0, 0, b"line\nno end", time=10.0), ended("a")]},
            "b": {"tail": [data(1, 0, b"later\n", time=20.0), ended("b")]},
        },
    )
    seen, _ = drained(logs.read_logs, nodes, RunLog(RUN, CLUSTER))
    lines = [one for event in seen if isinstance(event, LogLines) for one in event.lines]
    assert [(one.line.text, one.time) for one in lines] == [
        ("line", 10.0),
        ("no end", 10.0),
        ("later", 20.0),
    ]


HOSTILE = st.sampled_from(
    [
        b"a",
        b"\xc3",
        b"\xa4",
        b"\xff",
        b"\n",
        b"\n\n",
        b"\r",
        b"\r\n",
        b"\x1b[2J",
        b"\x00",
        b"x" * 99,
    ]
)
PIECES = st.lists(st.tuples(st.sampled_from([0, 1]), st.lists(HOSTILE, min_size=1)))
"""Whose log grew by what, in order of time."""


@given(PIECES)
def test_what_is_printed_uncut_is_what_is_printed_line_by_line(
    pieces: list[tuple[int, list[bytes]]],
) -> None:
    tails: tuple[list[Message], list[Message]] = ([], [])
    whole = [b"", b""]
    for time, (number, parts) in enumerate(pieces):
        body = b"".join(parts)
        tails[number].append(data(number, len(whole[number]), body, time=time + 1.0))
        whole[number] += body
    nodes = {name: {"tail": [*tails["ab".index(name)], ended(name)]} for name in "ab"}

    def printed(
        *, uncut: bool, pattern: re.Pattern[str] | None = None, ranks: frozenset[int] | None = None
    ) -> bytes:
        sink = io.TextIOWrapper(io.BytesIO())
        wanted = Filter(pattern=pattern, ranks=ranks)
        raw, log = Raw(sink), RunLog(RUN, CLUSTER, judged=False)
        lines = MergedLines(wanted, PassThrough(), uncut=uncut, patience=logs.UNTIL_ALL_HAVE_SENT)
        for event in logs.read_logs(FakePool(CLUSTER, nodes), log, lines, errors={}):
            assert isinstance(event, LogLines)
            raw.show(event.lines)
        return sink.buffer.getvalue()

    assert printed(uncut=True) == printed(uncut=False)
    word = re.compile("a|x")
    assert printed(uncut=True, pattern=word) == printed(uncut=False, pattern=word)
    for number in (0, 1):
        assert printed(uncut=True, ranks=frozenset({number})) == whole[number]


def test_lines_that_were_read_are_shown_before_all_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES", 10)
    tail = [data(0, at, b"line\n", time=1.0) for at in range(0, 50, 5)]
    nodes = FakePool(CLUSTER, {"a": {"tail": [*tail, ended("a")]}, "b": {"tail": [ended("b")]}})
    lines = MergedLines(sink=PassThrough(), patience=logs.UNTIL_ALL_HAVE_SENT)
    reading = logs.read_logs(nodes, RunLog(RUN, CLUSTER), lines, errors={})
    shown = [len(event.lines) for event in reading if isinstance(event, LogLines)]
    assert sum(shown) == 10
    assert max(shown) == 3


def test_a_node_that_does_not_answer_is_named_and_the_others_shown() -> None:
    nodes = FakePool(CLUSTER, {"a": {"tail": [data(0, 0, b"here\n"), ended("a")]}})
    seen, errors = drained(logs.read_logs, nodes, RunLog(RUN, CLUSTER))
    assert len(seen) == 1
    assert list(errors) == ["b"]


def test_a_broken_connection_is_a_trouble() -> None:
    broken = replace(Reply.failed("b", NodeError("lost", "answer")), messages=(data(1, 0, b"x\n"),))
    nodes = FakePool(CLUSTER, {"a": {"tail": [ended("a")]}, "b": {"tail": broken}})
    _, errors = drained(logs.read_logs, nodes, RunLog(RUN, CLUSTER))
    assert errors["b"].state == "lost"


def test_collected_files_are_the_bytes_of_the_nodes(tmp_path: Path) -> None:
    seen, _ = finish(logs.collect, pool(), RunLog(RUN, CLUSTER), tmp_path / "all")
    assert len(seen) == 2
    assert (tmp_path / "all/a/ranks/0.log").read_bytes() == b"first\nthird \xff\n"
    event = json.loads((tmp_path / "all/a/events.jsonl").read_text())
    assert event["kind"] == "supervisor-up"


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90s", NOW - 90),
        ("1.5m", NOW - 90),
        ("2h", NOW - 7200),
        ("1970-01-01T00:01:00+00:00", 60.0),
        ("1970-01-01T00:01:00Z", 60.0),
    ],
)
def test_since(text: str, moment: float) -> None:
    wanted = LogQuery(since=text).filter(NOW)
    assert wanted.since == moment


@pytest.mark.parametrize(
    ("ranks", "since", "pattern", "flag"),
    [
        ("x", None, None, "--rank"),
        (None, "soon", None, "--since"),
        (None, None, "(", "--grep"),
        (None, None, "a{99999999999999999999}", "--grep"),
    ],
)
def test_what_cannot_be_read_is_named(
    ranks: str | None, since: str | None, pattern: str | None, flag: str
) -> None:
    with pytest.raises(UsageError, match=flag):
        LogQuery(rank=ranks, since=since, grep=pattern).filter(NOW)


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "ranks/../../x", "ranks/x.log", "nccl/.."])
def test_a_node_does_not_choose_where_its_logs_are_written(tmp_path: Path, name: str) -> None:
    evil = Message({"data": name, "rank": 0, "offset": 0}, b"evil")
    nodes = FakePool(CLUSTER, {"a": {"tail": [evil, ended("a")]}, "b": {"tail": [ended("b")]}})
    _, errors = finish(logs.collect, nodes, RunLog(RUN, CLUSTER), tmp_path / "in" / "out")
    assert errors["a"].state == "bad-output"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_collecting_again_leaves_nothing_of_the_last_time(tmp_path: Path) -> None:
    for body in (b"xxxxxxxxxx", b"yyy"):
        tails = {"tail": [happened(0, "supervisor-up"), data(0, 0, body), ended("a")]}
        nodes = FakePool(CLUSTER, {"a": tails, "b": {"tail": [ended("b")]}})
        finish(logs.collect, nodes, RunLog(RUN, CLUSTER), tmp_path)
    assert (tmp_path / "a/ranks/0.log").read_bytes() == b"yyy"
    assert len((tmp_path / "a/events.jsonl").read_text().splitlines()) == 1


def test_ranks_that_the_run_does_not_have_are_refused() -> None:
    wanted = Filter(ranks=frozenset({0, 2, 9}))
    nodes = tuple(
        NodeAnswer(node=CLUSTER.node(name), node_run=node_run(name, world_size=2)) for name in "ab"
    )
    with pytest.raises(UsageError, match="--rank: expected 0-1, found 2,9"):
        logs.require_ranks(wanted, RunStatus(run=RUN, cluster="lab", nodes=nodes))
    silent = (NodeAnswer(node=CLUSTER.node("a"), error=NodeError("timeout", "answer")),)
    logs.require_ranks(wanted, RunStatus(run=RUN, cluster="lab", nodes=silent))


def test_the_last_lines_are_whole_ones_and_reading_goes_on_behind_them() -> None:
    whole = b"".join(b"line %d\n" % number for number in range(5))
    asked: list[Any] = []

    def answer(request: Request) -> list[Message]:
        asked.append(dict(request.args))
        if len(asked) == 1:  # it begins and ends within a line
            return [data(0, 10, whole[10:] + b"hal"), ended("a", "running")]
        begin = request.args["from"]
        assert isinstance(begin, dict)
        return [data(0, begin["ranks/0.log"], b"half\n"), ended("a")]

    pool = FakePool(CLUSTER, {"a": {"tail": answer}, "b": {"tail": [ended("b")]}})
    log = RunLog(RUN, CLUSTER)
    log.continues = True
    seen: list[str] = []

    def show(events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, LogLines):
                seen.extend(line.line.text for line in event.lines)

    lines = MergedLines(sink=LastLines(LineDeduplicator(), 2), patience=logs.UNTIL_ALL_HAVE_SENT)
    show(read_logs(pool, log, lines, tail=2, errors={}))
    assert seen == ["line 3", "line 4"]
    assert asked[0]["lines"] == 2
    log.resume_reading()
    show(follow(pool, log, errors={}))
    assert seen == ["line 3", "line 4", "half"]
    assert asked[1]["from"]["ranks/0.log"] == len(whole)


def test_a_search_of_the_last_lines_reads_all_of_the_log() -> None:
    assert lines_to_read(20, Filter()) == 20
    assert lines_to_read(0, Filter(ranks=frozenset({0}))) == 1
    assert lines_to_read(20, Filter(since=1.0)) == 0
    assert lines_to_read(20, Filter(pattern=re.compile("x"))) == 0


@pytest.mark.parametrize(("chosen", "finished"), [(None, True), ("a,b", True), ("a", False)])
def test_a_run_counts_as_finished_only_if_all_its_nodes_were_read(
    *, chosen: str | None, finished: bool
) -> None:
    log = logs.run_log(RUN, CLUSTER, chosen)
    drained(logs.read_logs, FakePool(CLUSTER, {n: {"tail": [ended(n)]} for n in "ab"}), log)
    assert log.finished is finished


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([data(0, 1 << 39, b"x")], "ranks/0.log has 0 bytes"),
        ([data(0, 0, b"xx"), data(0, 0, b"xx")], "ranks/0.log has 2 bytes"),
        ([data(number, 0, b"x") for number in range(6)], "collected 5 logs of it; it has more"),
        ([data(0, 0, b"x" * 600), data(0, 600, b"x" * 600)], "expected 1000 at most"),
        ([Message({"data": "ranks/0.log", "rank": 0, "offset": 2000, "dropped": 2000}, b"x")],
         "expected 1000 at most"),
        ([data(0, 0, b"x" * 200), data(0, 200, b"x")], "of room left"),
    ],
)  # fmt: skip
def test_a_node_cannot_fill_the_disk_of_who_collects(
    messages: list[Message], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "COLLECT_FILES", 5)
    monkeypatch.setattr(logs, "COLLECT_BYTES", 1000)
    monkeypatch.setattr(logs, "SPARE_CHECK", 100)
    if words == "of room left":
        monkeypatch.setattr(logs, "SPARE_BYTES", 1 << 62)
    tails = {"a": {"tail": [*messages, ended("a")]}, "b": {"tail": [data(0, 0, b"b"), ended("b")]}}
    _, errors = finish(logs.collect, FakePool(CLUSTER, tails), RunLog(RUN, CLUSTER), tmp_path)
    assert list(errors) == ["a"]
    assert words in str(errors["a"])
    assert (tmp_path / "b/ranks/0.log").read_bytes() == b"b"
    assert sum(path.stat().st_size for path in (tmp_path / "a").rglob("*.log")) <= 1000


@pytest.mark.parametrize("tail", [1, None])
def test_who_follows_a_run_that_is_hung_already_is_told_once_and_why(tail: int | None) -> None:
    hung = {"since": 1000.0, "quiet_s": 300.0, "alarm": 1}

    def node(name: str) -> dict[str, Any]:
        def read(request: Request) -> list[Message]:
            begin: Any = request.args["from"]
            events = [happened(0, "hung", **hung)] if not begin["events.jsonl"] else []
            live = ended(name, "running", hung=hung)
            return [*events, ended(name, "failed") if request.args["follow"] else live]

        kept = [Message({"dump": stood_still(name), "state": "failed"})]
        return {"tail": read, "dump": kept}

    pool = FakePool(CLUSTER, {name: node(name) for name in "ab"})
    seen, errors = drained(logs.show_logs, pool, RUN, CLUSTER, LogQuery(follow=True, tail=tail))
    told = [one for one in seen if isinstance(one, NodeEvent) and one.event["kind"] == "hung"]
    assert {one.node for one in told} == {"a", "b"}
    assert [type(one) for one in seen].count(HangExplained) == 1
    assert not errors
    out, err = io.StringIO(), io.StringIO()
    shown = EventPrinter(
        screen=Screen(Console(file=out), Console(file=err)), lines=Prefixed(io.StringIO())
    )
    for event in seen:
        shown.show(event)
    assert err.getvalue().count("no rank has shown a sign of life") == 1
