"""What `emit` raises is raised in the use case: there it can still end what it has begun."""

from __future__ import annotations

import pytest

from clusterctl.transport.interface import Request
from clusterctl.verbs.events import Event, Notice, Progress, ignore
from clusterctl.verbs.rpc import call_all
from clusterctl.wire import Message
from tests.fake_pool import FakePool
from tests.verbs.run_answers import CLUSTER


def test_progress_is_emitted_as_each_node_answers() -> None:
    pool = FakePool(CLUSTER, {name: {"read": [Message({})]} for name in "ab"})
    seen: list[Event] = []
    requests = {name: Request(op="read", args={}) for name in "ab"}
    replies = call_all(pool, requests, phase="asking", emit=seen.append)
    assert sorted(replies) == ["a", "b"]
    assert [(one.done, one.total) for one in seen if isinstance(one, Progress)] == [(1, 2), (2, 2)]


def test_a_use_case_ends_where_its_listener_is_interrupted() -> None:
    pool = FakePool(CLUSTER, {name: {"read": [Message({})]} for name in "ab"})

    def interrupt(_event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_all(pool, {"a": Request(op="read", args={})}, phase="asking", emit=interrupt)
    ignore(Notice(text="heard by none"))
