"""Whom nodes try, whatever order they answered in."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster, Node, Ssh
from clusterctl.network.choice import Network
from clusterctl.transport.interface import Reply
from clusterctl.verbs.events import ignore
from clusterctl.verbs.preflight import connectivity
from clusterctl.verbs.preflight.collect_facts import STEP_SECONDS, ClockProbe, FactsSession
from clusterctl.verbs.preflight.connectivity import ALL_PAIRS, AT_ONCE
from clusterctl.wire import Message
from tests.fake_pool import FakeCall
from tests.verbs.run_answers import CLUSTER


def test_of_many_nodes_each_tries_the_master_though_it_answered_last() -> None:
    names = [f"n{i}" for i in range(ALL_PAIRS + 4)]
    nodes = tuple(Node(host=name, name=name, ssh=Ssh()) for name in names)
    session = SimpleNamespace(cluster=Cluster(name="lab", nodes=nodes), nonce="a" * 32)
    heard = connectivity._Probe(
        session=session,  # type: ignore[arg-type]
        network=Network(
            nodes=dict.fromkeys(names, SimpleNamespace(address="10.0.0.1")),  # type: ignore[arg-type]
            master_port=1,
        ),
        facts={},
    )
    for name in reversed(names):
        key = "master" if name == names[0] else "pair"
        bound = {"key": key, "address": "10.0.0.1", "port": 1}
        assert not heard.take(name, {"step": "prepare", "bound": [bound], "written": []})
    for name in names[1:]:
        tried = [target["target"] for target in connectivity._targets(heard, name)["targets"]]
        assert names[0] in tried
        assert len(tried) < ALL_PAIRS


def test_the_results_of_many_nodes_share_their_texts() -> None:
    heard = connectivity._Probe(session=SimpleNamespace(), network=Network(), facts={})  # type: ignore[arg-type]
    texts = ("target", "key", "address", "state", "source", "seen_as", "interface")
    for name in ("a", "b"):
        tried = {text: f"{text} of c" for text in texts}
        assert not heard.take(name, {"step": "meet", "connected": [tried], "seen": []})
    one, other = (heard.connected[name].connected[0] for name in ("a", "b"))
    assert one == other
    assert all(getattr(one, text) is getattr(other, text) for text in texts)


@pytest.mark.parametrize(
    "bound",
    [
        {"key": "pair", "address": "192.0.2.1", "port": 4000},
        {"key": "pair", "address": "10.0.0.1", "port": None},
        {"key": "master", "address": "10.0.0.1", "port": 22},
        {"key": "other", "address": "10.0.0.1", "port": 4000},
    ],
)
def test_no_node_is_sent_where_another_was_not_told_to_listen(bound: dict[str, object]) -> None:
    nodes = tuple(Node(host=name, name=name, ssh=Ssh()) for name in ("a", "b"))
    heard = connectivity._Probe(
        session=SimpleNamespace(cluster=Cluster(name="lab", nodes=nodes), nonce="a" * 32),  # type: ignore[arg-type]
        network=Network(
            nodes=dict.fromkeys(("a", "b"), SimpleNamespace(address="10.0.0.1")),  # type: ignore[arg-type]
            master_port=4000,
        ),
        facts={},
    )
    well = {"key": "master", "address": "10.0.0.1", "port": 4000}
    for name, listeners in (("a", [bound, well]), ("b", [])):
        assert not heard.take(name, {"step": "prepare", "bound": listeners, "written": []})
    (target,) = connectivity._targets(heard, "b")["targets"]
    assert (target["key"], target["address"], target["port"]) == ("master", "10.0.0.1", 4000)


class _Noted(FakeCall):
    """A call that keeps, in order, what was sent and how long its answer may take."""

    def __init__(self, node: Node) -> None:
        super().__init__(node, [Message({})])
        self.noted: list[object] = []

    def send(self, message: Message) -> None:
        self.noted.append(message.head["step"])

    def set_deadline(self, seconds: float) -> None:
        self.noted.append(seconds)


def test_a_late_word_about_clocks_gives_no_more_time_than_a_step_may_take() -> None:
    prepared: dict[str, object] = {"bound": [], "written": []}
    met: dict[str, object] = {"connected": [], "seen": []}
    clock = Message({"time": 1.0})
    said: list[tuple[str, Message | Reply]] = [
        ("a", clock),
        ("a", Message({"step": "prepare", **prepared})),
        ("a", clock),  # it owes nothing until b has prepared
        ("a", Message({"time": 1.0, "step": None})),
        ("b", Message({"step": "prepare", **prepared})),
        ("a", Message({"step": "meet", **met})),
        ("b", Message({"step": "meet", **met})),
        ("a", clock),
        *((name, Message({"foreign": [], "end": True})) for name in "ab"),
        *((name, Reply(node=name)) for name in "ab"),
    ]
    session = FactsSession(
        cluster=CLUSTER,
        calls={node.name: _Noted(node) for node in CLUSTER.nodes},
        stream=iter(said),
        clocks={node.name: ClockProbe(began=0.0) for node in CLUSTER.nodes},
    )
    heard = connectivity._Probe(
        session=session,
        network=Network(nodes={}, master_port=1),
        facts={node.name: NodeFacts(node=node.name) for node in CLUSTER.nodes},
    )
    connectivity._exchange(heard, emit=ignore)
    noted = session.calls["a"].noted  # type: ignore[attr-defined]
    step = STEP_SECONDS
    assert noted == [step, "prepare", step, step, "meet", step, "end", step]


def test_of_many_nodes_few_are_at_a_step_at_once_and_each_takes_every_step() -> None:
    names = [f"n{i}" for i in range(3 * AT_ONCE)]
    nodes = tuple(Node(host=name, name=name, ssh=Ssh()) for name in names)
    asked: deque[str] = deque()
    at_once: Counter[int] = Counter()

    class Asked(_Noted):
        def send(self, message: Message) -> None:
            super().send(message)
            asked.append(self.node.name)

    def answers() -> Iterator[tuple[str, Message | Reply]]:
        while asked:
            at_once[len(asked)] += 1
            name = asked.popleft()
            step = calls[name].noted[-1]
            if step == "prepare":
                yield name, Message({"step": step, "bound": [], "written": []})
            elif step == "meet":
                yield name, Message({"step": step, "connected": [], "seen": []})
            else:
                yield name, Message({"foreign": [], "end": True})
                yield name, Reply(node=name)

    calls = {node.name: Asked(node) for node in nodes}
    session = FactsSession(
        cluster=Cluster(name="lab", nodes=nodes),
        calls=dict(calls),
        stream=answers(),
        clocks={name: ClockProbe(began=0.0) for name in names},
    )
    heard = connectivity._Probe(
        session=session,
        network=Network(nodes={}, master_port=1),
        facts={name: NodeFacts(node=name) for name in names},
    )
    connectivity._exchange(heard, emit=ignore)
    assert max(at_once) == AT_ONCE
    assert all(call.noted[1::2] == ["prepare", "meet", "end"] for call in calls.values())
