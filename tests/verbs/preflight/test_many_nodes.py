"""What a check does for one node does not grow with the number of nodes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from clusterctl.facts.nodefacts import NodeFacts, from_document
from clusterctl.facts.storage.storage import PathFacts
from clusterctl.inventory.cluster import Cluster, Job, Node, Ssh
from clusterctl.network.choice import Network, NodeNetwork
from clusterctl.transport.interface import Reply
from clusterctl.verbs.events import ignore
from clusterctl.verbs.preflight import connectivity
from clusterctl.verbs.preflight.check import CheckOptions, judge
from clusterctl.verbs.preflight.collect_facts import ClockProbe, FactsSession
from clusterctl.verbs.preflight.connectivity import probe_connectivity
from clusterctl.wire import Message
from tests.checks.fixture_facts import facts_of, read_cases
from tests.fake_pool import FakeCall

CHECKS = Path(__file__).parents[2] / "checks"
OURS = str(Path(connectivity.__file__).parents[2])
CASES = (
    "network.proxy/same.json",
    "node.cpus/container.json",
    "node.kernel-settings/governor.json",
    "node.memory/lost-module.json",
    "network.flaps/equal.json",
    "ssh.login/all-alike.json",
    "network.pairs/all-reach-all.json",
)
"""Of each the first node."""
SIZES = (64, 96, 128)


def lines_run(work: Callable[[], object]) -> int:
    """Return how many lines of clusterctl some work runs, a line again for each turn of a loop."""
    count = 0

    def line(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        del frame, arg
        count += event == "line"
        return line

    def call(frame: FrameType, event: str, arg: Any) -> Any:
        del event, arg
        return line if frame.f_code.co_filename.startswith(OURS) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def assert_linear(counts: list[int]) -> None:
    """Assert that so many more nodes cost the same, however many there are already."""
    first, second, third = counts
    assert second - first > 0
    assert third - second <= 1.05 * (second - first)


def merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return both documents as one; of two values the second."""
    both = {name for name in first if isinstance(first[name], dict)} & {*second}
    joined = {name: merged(first[name], second[name]) for name in both if second[name]}
    return {**first, **{n: v for n, v in second.items() if v is not None}, **joined}


def facts_of_many(count: int) -> dict[str, NodeFacts]:
    """Return so many nodes, each with something that is compared with the others."""
    known: dict[str, Any] = {}
    for case in CASES:
        known = merged(known, facts_of(read_cases(CHECKS / case)[0])[0])
    links = known["between"]["connected"]
    return from_document(
        {
            "nodes": [
                {
                    **known,
                    "node": f"n{i}",
                    "hostname": f"n{i}",
                    "between": {
                        **known["between"],
                        "connected": [
                            {**link, "target": f"n{(i + step) % count}"}
                            for step, link in enumerate(links, start=1)
                        ],
                    },
                }
                for i in range(count)
            ]
        }
    )


def judged(cluster: Cluster, facts: dict[str, NodeFacts]) -> None:
    judge(cluster, facts, CheckOptions()).document()


def test_to_judge_a_node_takes_as_long_among_many() -> None:
    counts = []
    for count in (2, *SIZES):  # the first loads what is loaded once
        facts = facts_of_many(count)
        nodes = tuple(Node(host=name, name=name, ssh=Ssh()) for name in facts)
        cluster = Cluster(name="lab", nodes=nodes, job=Job(command=("train.py",)))
        counts.append(lines_run(partial(judged, cluster, facts)))
    assert_linear(counts[1:])


def test_a_step_of_the_probe_takes_a_node_as_long_among_many() -> None:
    counts = []
    for count in (2, *SIZES):  # the first loads what is loaded once
        names = [f"n{i}" for i in range(count)]
        nodes = tuple(Node(host=name, name=name, ssh=Ssh()) for name in names)
        session = FactsSession(
            cluster=Cluster(name="lab", nodes=nodes, shared=("/data",)),
            calls={node.name: FakeCall(node, [Message({})]) for node in nodes},
            clocks={name: ClockProbe(began=0.0) for name in names},
        )
        place = NodeNetwork(
            address="10.0.0.1", interface="eth0", subnet="", speed_mbps=None, candidates=(), why=""
        )
        share = PathFacts(path="/data", exists=True, folder=True)
        facts = {name: NodeFacts(node=name, paths=(share,)) for name in names}
        session.stream = iter(probe_answers(names))
        network = Network(nodes=dict.fromkeys(names, place), master_port=1)
        probing = partial(probe_connectivity, session, facts, network, emit=ignore)
        counts.append(lines_run(probing))
        assert len(session.ended) == count
    assert_linear(counts[1:])


def probe_answers(names: list[str]) -> Iterator[tuple[str, Message | Reply]]:
    """Yield what nodes say that reach none of the others."""
    bound = [{"key": "pair", "address": "10.0.0.1", "port": 4000}]
    written = [{"path": "/data", "folder": "/data"}]
    for name in names:
        yield name, Message({"step": "prepare", "bound": bound, "written": written})
    for name in names:
        yield name, Message({"step": "meet", "connected": [], "seen": []})
    for name in names:
        yield name, Message({"foreign": [], "end": True})
        yield name, Reply(node=name)
