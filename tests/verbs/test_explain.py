"""A run that is hung is explained once, beside its log, whatever becomes of it meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace

import pytest

from clusterctl.errors import ClusterError
from clusterctl.model.dump import NodeDump
from clusterctl.model.from_json import from_json
from clusterctl.verbs.dump import explain
from clusterctl.verbs.dump.dump import DumpResult
from clusterctl.verbs.dump.explain import HangExplained, HangExplainer, explainer
from clusterctl.verbs.events import Event, NodeEvent, Notice
from clusterctl.verbs.follow import Tick
from clusterctl.verbs.runs.run_log import RunLog
from clusterctl.wire import Message
from tests.fake_pool import FakePool
from tests.verbs.hostile import stood_still
from tests.verbs.run_answers import CLUSTER, RUN, node_run


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(explain, "APART_SECONDS", 0.0)


def told(kind: str, node: str = "a", alarm: object = 1) -> NodeEvent:
    return NodeEvent(node=node, event={"kind": kind, "alarm": alarm})


def stacks_of(*states: str) -> DumpResult:
    dumps = [from_json(NodeDump, stood_still(name), "") for name in "ab"[: len(states)]]
    known = dict(zip("ab", states, strict=False))
    return DumpResult(
        run=RUN, time=1.0, dumps=tuple(dumps), states=known, notes={}, silent=()
    )  # fmt: skip


class Taker:
    """Gives stacks when it is let, and counts how often it was asked."""

    def __init__(self, *results: DumpResult | None) -> None:
        self.results = list(results)
        self.begun = 0
        self.let = threading.Event()

    def __call__(self) -> DumpResult:
        self.begun += 1
        assert self.let.wait(60)
        result = self.results.pop(0)
        if result is None:
            raise ClusterError("no")
        return result


def until(condition: Callable[[], object]) -> Iterator[Event]:
    """Yield moments without news until something is so."""
    for _ in range(60_000):
        if condition():
            return
        threading.Event().wait(0.001)
        yield Tick()
    pytest.fail("it never came")


def news(events: Iterator[Event]) -> list[Event]:
    return [one for one in events if isinstance(one, HangExplained | Notice)]


def test_a_hang_is_explained_once_while_the_log_goes_on() -> None:
    taker = Taker(stacks_of("running", "running"), stacks_of("running", "running"))
    seen: list[Event] = []

    def events() -> Generator[Event]:
        yield told("hung")
        yield told("hung", "b")
        yield from until(lambda: taker.begun)
        for _ in range(100):
            yield Tick()  # nothing waits for a node that is slow
        assert not news(iter(seen))
        taker.let.set()
        yield from until(lambda: news(iter(seen)))
        yield told("hung", "b")
        yield told("running-again")
        yield told("hung", alarm=2)
        yield from until(lambda: len(news(iter(seen))) == 2)

    seen.extend(HangExplainer(RUN, taker).over(events()))
    found = news(iter(seen))
    assert [type(one) for one in found] == [HangExplained, HangExplained]
    assert taker.begun == 2
    assert isinstance(found[0], HangExplained)
    document = found[0].document()
    assert document["verdict"]["text"]
    assert "nodes" not in document


def test_a_hang_of_the_next_attempt_is_explained_too() -> None:
    taker = Taker(stacks_of("running", "running"), stacks_of("running", "running"))
    taker.let.set()
    seen: list[Event] = []

    def events() -> Generator[Event]:
        yield told("hung")
        yield from until(lambda: len(news(iter(seen))) == 1)
        for node in "ab":
            yield NodeEvent(node=node, event={"kind": "again", "attempt": 2})
        yield told("hung", alarm=1001)
        yield NodeEvent(node="c", event={"kind": "again", "attempt": 2})  # late, and no news
        yield from until(lambda: len(news(iter(seen))) == 2)

    seen.extend(HangExplainer(RUN, taker).over(events()))
    assert taker.begun == 2


def test_a_node_that_claims_hangs_without_end_gets_few_stacks_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(explain, "APART_SECONDS", 600.0)
    taker = Taker(stacks_of("running", "running"), stacks_of("running", "running"))
    taker.let.set()

    def events() -> Generator[Event]:
        yield told("hung")
        yield from until(lambda: taker.begun)
        for alarm in range(2, 50):
            yield told("hung", alarm=alarm)
            yield Tick()
        assert taker.begun == 1

    list(HangExplainer(RUN, taker).over(events()))
    assert taker.begun == 2, "once more at the end of the run"


def test_a_run_that_runs_again_is_not_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    taker = Taker(stacks_of("running", "running"))

    def events() -> Generator[Event]:
        yield told("hung")
        yield from until(lambda: taker.begun)
        yield told("running-again")
        taker.let.set()

    assert news(HangExplainer(RUN, taker).over(events())) == []
    monkeypatch.setattr(explain, "SETTLE_SECONDS", 600.0)
    earlier = Taker()  # as one reads it who follows from later on
    assert news(HangExplainer(RUN, earlier).over(each(told("hung"), told("running-again")))) == []
    assert (taker.begun, earlier.begun) == (1, 0)


def each(*events: Event) -> Generator[Event]:
    yield from events


@pytest.mark.parametrize("states", [("stopping", "running"), ("running", "failed")])
def test_a_run_that_ends_meanwhile_is_explained_by_what_its_nodes_kept(
    states: tuple[str, str],
) -> None:
    kept = stacks_of("failed", "failed")
    taker = Taker(stacks_of(*states), kept)
    taker.let.set()
    assert news(HangExplainer(RUN, taker).over(each(told("hung")))) == [HangExplained(result=kept)]
    well = Taker(*[stacks_of("finished", "finished")] * 2)
    well.let.set()
    assert news(HangExplainer(RUN, well).over(each(told("hung")))) == []


def at_end(*, named: bool, stacks: bool = True) -> tuple[RunLog, DumpResult]:
    """Return the log of a run whose collective timed out, and the stacks that were kept."""
    log = RunLog(RUN, CLUSTER)
    end = {"state": "failed", "by": "rank", "exit_code": 1, "reason": "", "stacks": stacks}
    log.node_runs = {"a": node_run("a", "failed"), "b": node_run("b", "failed", end=end)}
    kept = stacks_of("failed", "failed")
    dumps = tuple(replace(one, timed_out=one.node == "b" and named) for one in kept.dumps)
    return log, replace(kept, dumps=dumps)


def test_the_end_of_a_run_that_waited_in_vain_names_the_rank_once() -> None:
    log, kept = at_end(named=True)
    taker = Taker(kept)
    taker.let.set()
    (found,) = news(HangExplainer(RUN, taker).over(each(Tick()), log))
    assert isinstance(found, HangExplained)
    assert found.document()["verdict"]["ranks"] == [1]
    unclear, unnamed = at_end(named=False)
    taker = Taker(unnamed)
    taker.let.set()
    assert news(HangExplainer(RUN, taker).over(each(Tick()), unclear)) == []
    other, _ = at_end(named=True, stacks=False)
    assert news(HangExplainer(RUN, untold := Taker()).over(each(Tick()), other)) == []
    assert untold.begun == 0
    hung = Taker(stacks_of("running", "running"))
    hung.let.set()
    told_before = HangExplainer(RUN, hung).over(each(told("hung"), *[Tick()] * 3), log)
    assert len(news(told_before)) == 1, "it was hung, and explained, before it timed out"


@pytest.mark.parametrize("result", [None, stacks_of()])
def test_where_no_stacks_are_had_the_command_is_said(result: DumpResult | None) -> None:
    taker = Taker(result)
    taker.let.set()
    (notice,) = news(HangExplainer(RUN, taker).over(each(told("hung"))))
    assert isinstance(notice, Notice)
    assert notice.hint == f"clusterctl dump {RUN}"


def test_an_interrupted_follower_resumes_with_what_was_asked_before() -> None:
    taker = Taker(stacks_of("running", "running"))
    hangs = HangExplainer(RUN, taker)
    followed = hangs.over(each(told("hung"), *[Tick()] * 10))
    assert next(followed) == told("hung")
    next(followed)
    followed.close()  # as Ctrl-C does, before an answer
    taker.let.set()
    assert len(news(hangs.over(each(told("hung"))))) == 1
    assert taker.begun == 1


@pytest.mark.parametrize("alarm", [None, "1", 1.5, [1]])
def test_news_without_a_number_asks_nobody(alarm: object) -> None:
    assert news(HangExplainer(RUN, Taker()).over(each(told("hung", alarm=alarm)))) == []


def test_the_nodes_are_asked_and_keep_what_they_answer() -> None:
    answer = {"state": "running"}
    pool = FakePool(
        CLUSTER, {name: {"dump": [Message({**answer, "dump": stood_still(name)})]} for name in "ab"}
    )
    (found,) = news(explainer(pool, RUN, CLUSTER).over(each(told("hung"))))
    assert isinstance(found, HangExplained)
    asked = [(one.args["keep"], one.args["steady"]) for _, one in pool.requests]
    assert asked == [(True, True)] * 2
