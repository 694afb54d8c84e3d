"""An agent that stays takes the next request; where it has gone, another one does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from clusterctl.inventory.cluster import Node, Ssh
from clusterctl.transport import agent
from clusterctl.transport.connection import LocalConnection
from clusterctl.transport.interface import Reply, Request, Timeouts
from clusterctl.transport.stream import Stream


class Counting(LocalConnection):
    started = 0
    newest: Stream

    def start_agent(self) -> Stream:
        self.started += 1
        self.newest = super().start_agent()
        return self.newest

    def ask(self, *, stay: bool, op: str = "hello", answers: str = "python") -> Reply:
        with closing(self.call(Request(op=op, args={}, stay=stay))) as call:
            (message,) = call.messages()
            assert answers in message.head, message.head
            call.send(message)  # too late: it must not be taken for the next request
            return call.reply()


@pytest.fixture
def connection() -> Iterator[Counting]:
    here = Node(name="n", host="localhost", ssh=Ssh(), local=True)
    with closing(Counting(here, Timeouts())) as opened:
        yield opened


def test_one_agent_answers_as_long_as_it_is_asked_to_stay(connection: Counting) -> None:
    for stay, started in ((True, 1), (True, 1), (False, 1), (False, 2)):
        assert connection.ask(stay=stay).ok
        assert connection.started == started


def test_an_agent_of_another_python_gets_the_sources_of_each_question(
    connection: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "compiled_for", lambda *_: b"")
    monkeypatch.setattr(agent, "modules_for", agent.modules_for.__wrapped__)
    assert connection.ask(stay=True).ok
    assert connection.ask(stay=True, op="read", answers="answers").ok
    assert connection.started == 1


def test_an_agent_that_stays_gets_each_module_once() -> None:
    first, known = "collect-facts", frozenset({"collect-facts", "sync-compare"})
    assert len(agent.further(first, known)) < 100
    again, new = (len(agent.modules_for("start", ops)) for ops in (frozenset(), known))
    assert again - new > 100_000


def test_an_agent_that_has_gone_is_replaced(connection: Counting) -> None:
    assert connection.ask(stay=True).ok
    (stayed,) = connection._staying
    stayed.stream.close()
    assert connection.ask(stay=True).ok
    assert connection.started == 2
    connection._staying[0] = connection._staying[0]._replace(since=stayed.since - 100)
    assert connection.ask(stay=False).ok
    assert connection.started == 3


def test_an_agent_whose_answer_comes_after_the_end_does_not_stay(connection: Counting) -> None:
    connection.close()
    assert connection.ask(stay=True).ok
    (stayed,) = connection._staying
    with pytest.raises(BrokenPipeError):
        stayed.stream.send(b"x", 1.0)


def test_an_agent_whose_call_is_closed_meanwhile_does_not_stay(connection: Counting) -> None:
    with closing(connection.call(Request(op="hello", args={}, stay=True))) as call:
        call._closed = True  # type: ignore[attr-defined]  # what another thread's close does first
        assert list(call.messages())
    assert not connection._staying


def test_an_agent_that_cannot_be_asked_is_ended(connection: Counting) -> None:
    with pytest.raises(KeyError):
        connection.call(Request(op="no-such-operation", args={}))
    with pytest.raises(BrokenPipeError):
        connection.newest.send(b"x", 1.0)
