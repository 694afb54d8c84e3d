"""The second round trip: what only a try between nodes shows, once addresses are chosen.

Every node first listens and writes its tokens. When all have, every node connects to the others
and looks for their tokens; only then does any stop listening.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from clusterctl.checks.run_paths import run_paths, share_of
from clusterctl.facts.from_json import from_json
from clusterctl.facts.interfaces import counters_of, folder_values
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.rdma import counters_folder
from clusterctl.facts.request import RDMA_COUNTERS, STATISTICS, folder_questions
from clusterctl.facts.values.pairwise import (
    LARGEST_PROBE,
    ConnectResult,
    ListenResult,
    PairwiseFacts,
    TokenSeen,
)
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.network.choice import Network
from clusterctl.transport.interface import Reply
from clusterctl.verbs.events import Event
from clusterctl.verbs.preflight.collect_facts import STEP_SECONDS, FactsSession
from clusterctl.verbs.response_schema import LEFT, MET, PREPARED, schema_error

ALL_PAIRS = 16
"""Up to so many nodes each one tries every other; beyond, those at distances 1, 2, 4, 8 …"""
CONNECT_SECONDS = 3.0
"""The kernel repeats a lost first packet after one second."""
TOKEN_SECONDS = 4.0
"""How long a token may take to show; broken shares cost the check this long."""


@dataclass(slots=True)
class _Probe:
    """The answers so far."""

    session: FactsSession
    network: Network
    facts: Mapping[str, NodeFacts]
    prepared: dict[str, dict[str, Any]] = field(default_factory=dict)
    connected: dict[str, dict[str, Any]] = field(default_factory=dict)
    left: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def cluster(self) -> Cluster:
        return self.session.cluster

    def take(self, name: str, head: dict[str, Any]) -> str:
        """Keep a node's answer to a step, once; return what is wrong with it."""
        step = head.get("step")
        if step == "prepare" and name not in self.prepared:
            invalid = schema_error(head, PREPARED)
            self.prepared.update({} if invalid else {name: head})
        elif step == "meet" and name not in self.connected:
            invalid = schema_error(head, MET)
            self.connected.update({} if invalid else {name: head})
        elif "end" in head:
            invalid = schema_error(head, LEFT)
            self.left.update({} if invalid else {name: head})
        else:
            invalid = self.session.clocks[name].invalid(head)
        return invalid

    def owes(self, name: str, sent: Collection[str]) -> bool:
        """Tell whether a node has not answered the last of the steps that were sent."""
        answers = self.connected if "meet" in sent else self.prepared
        return "end" in sent or name not in answers

    def all_have(self, answers: Mapping[str, object]) -> bool:
        return all(n in answers or n in self.session.ended for n in self.session.calls)


def probe_connectivity(
    session: FactsSession, facts: Mapping[str, NodeFacts], network: Network
) -> Generator[Event, None, dict[str, NodeFacts]]:
    """Let the nodes that answered try each other, and end their conversations.

    Returns:
        The facts, with `between` for those nodes.
    """
    probe = _Probe(session=session, network=network, facts=facts)
    session.send({name: _prepare(probe, session.cluster.node(name)) for name in session.calls})
    yield from _exchange(probe)
    return {
        name: replace(known, between=_between(probe, name)) if known.answered else known
        for name, known in facts.items()
    }


def _exchange(probe: _Probe) -> Iterator[Event]:
    session = probe.session
    sent: set[str] = set()
    while not probe.all_have({}):
        if "meet" not in sent and probe.all_have(probe.prepared):
            sent.add("meet")
            session.send({name: _targets(probe, name) for name in probe.prepared})
        if "meet" in sent and "end" not in sent and probe.all_have(probe.connected):
            sent.add("end")
            session.send({name: _end(probe, name) for name in session.calls})
        name, item = next(session.stream)
        if isinstance(item, Reply):
            session.ended.setdefault(name, item)
        elif name in session.ended:
            continue
        elif invalid := probe.take(name, item.head):
            session.give_up(name, invalid)
        elif item.head.get("step") == "meet":
            silent = {node.name for node in session.cluster.nodes} - set(session.calls)
            yield session.progress("trying connections", {*probe.connected, *silent})
        elif "end" not in item.head and probe.owes(name, sent):
            # A late message about clocks is not the answer to the step.
            session.calls[name].set_deadline(STEP_SECONDS)


def _prepare(probe: _Probe, node: Node) -> dict[str, Any]:
    """Return the step that listens and writes tokens to the shares."""
    own = probe.network.nodes.get(node.name)
    sockets = []
    if own is not None:
        interface = probe.facts[node.name].interface(own.interface)
        padding = min((interface.mtu if interface else None) or 0, LARGEST_PROBE)
        sockets.append({"key": "pair", "address": own.address, "port": 0, "padding": padding})
        if node.name == probe.cluster.master.name:
            port = probe.network.master_port
            sockets.append({"key": "master", "address": own.address, "port": port})
    name = _token_name(probe, node)
    tokens = [
        {"path": share, "folders": _folders(probe.cluster, node, share), "name": name}
        for share in _answering(probe, node.name)
    ]
    return {"step": "prepare", "sockets": sockets, "tokens": tokens}


def _answering(probe: _Probe, name: str) -> tuple[str, ...]:
    """Return the shares that are folders there: a hung one would only cost its limit again."""
    known = probe.facts[name]
    return tuple(s for s in probe.cluster.shared if (p := known.path(s)) is not None and p.folder)


def _token_name(probe: _Probe, node: Node) -> str:
    return f"{probe.session.nonce[:8]}-{probe.cluster.nodes.index(node)}"


def _folders(cluster: Cluster, node: Node, share: str) -> list[str]:
    """Return the share and the run's own folders on it: not every user may write to its top."""
    inner = [
        place.path
        for place in run_paths(cluster, node)
        if place.role in {"workdir", "checkpoints"} and share_of(cluster, place.path) == share
    ]
    return list(dict.fromkeys([share, *map(posixpath.normpath, inner)]))


def _targets(probe: _Probe, name: str) -> dict[str, Any]:
    """Return the step that connects to the others and reads their tokens."""
    own = probe.network.nodes.get(name)
    targets, tokens = [], []
    order = tuple(node.name for node in probe.cluster.nodes if node.name in probe.prepared)
    for peer in peers(order, name):
        for bound in probe.prepared[peer]["bound"]:
            if own is not None and _is_own(probe, peer, bound):
                # As NCCL: not bound, so that the routing table chooses. The rendezvous is tried
                # from the very address that the master will be told of.
                source = own.address if bound["key"] == "master" else None
                target = {"target": peer, "key": bound["key"], "source": source}
                targets.append({**target, "address": bound["address"], "port": bound["port"]})
        writer = probe.cluster.node(peer)
        for written in probe.prepared[peer]["written"]:
            share, folder = written["path"], written.get("folder")
            # Only folders that the writer was told to write to.
            if share in _answering(probe, name) and folder in _folders(
                probe.cluster, writer, share
            ):
                token = {"path": share, "folder": folder, "writer": peer}
                tokens.append({**token, "name": _token_name(probe, writer)})
    return {
        "step": "meet",
        "targets": targets,
        "limit_s": CONNECT_SECONDS,
        "tokens": tokens,
        "token_limit_s": TOKEN_SECONDS,
    }


def _end(probe: _Probe, name: str) -> dict[str, Any]:
    """Return the last step, which reads the counters of the links that the run will use again."""
    folders = {
        path: RDMA_COUNTERS if "/" in device else STATISTICS
        for device, path in _counter_folders(probe, name).items()
    }
    return {"step": "end", "counters": folder_questions(folders)}


def _counter_folders(probe: _Probe, name: str) -> dict[str, str]:
    """Return the folders of the counters that were read before, by device."""
    known, own = probe.facts[name], probe.network.nodes.get(name)
    before = {counters.device for counters in known.counters}
    found = {
        port.name: counters_folder(port.name)
        for port in known.rdma or ()
        if port.active and port.name in before
    }
    if own is not None and own.interface in before:
        found[own.interface] = f"/sys/class/net/{own.interface}/statistics"
    return found


def _is_own(probe: _Probe, peer: str, bound: Mapping[str, Any]) -> bool:
    """Tell whether a node listens where it was told to: others are not sent anywhere else."""
    network = probe.network
    place = network.nodes.get(peer)
    if place is None or bound["address"] != place.address or not bound.get("port"):
        return False
    is_master = peer == probe.cluster.master.name and bound["port"] == network.master_port
    return bound["key"] == "pair" or (bound["key"] == "master" and is_master)


def peers(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Return whom a node tries: all others, or of many the first and those at doubling distances.

    The first is the master. The distances reach everybody over a few steps, so a node that nobody
    reaches shows as such.
    """
    if len(names) <= ALL_PAIRS:
        return tuple(other for other in names if other != name)
    own, count = names.index(name), len(names)
    chosen = {names[0]}
    distance = 1
    while distance < count:
        chosen.add(names[(own + distance) % count])
        distance *= 2
    return tuple(other for other in names if other in chosen - {name})


def _between(probe: _Probe, name: str) -> PairwiseFacts:
    prepared, connected = probe.prepared.get(name), probe.connected.get(name)
    reply = probe.session.ended.get(name)
    problem = ""
    if prepared is None or connected is None:
        problem = "no answer"
        if reply is not None:
            problem = (reply.error.message if reply.error else "") or reply.state
    left = probe.left.get(name, {})
    foreign = left.get("foreign", [])
    bound = [{**_given(one), "foreign": foreign} for one in (prepared or {}).get("bound", ())]
    connections = [{"port": 0, **_given(one)} for one in (connected or {}).get("connected", ())]
    seen = [{"seen": None, **_given(one)} for one in (connected or {}).get("seen", ())]
    # Its own token, which nobody can have seen: it says why this node could not write.
    unwritten = [
        {"path": one["path"], "writer": name, "seen": None, "words": one.get("words") or ""}
        for one in (prepared or {}).get("written", ())
        if not one.get("folder")
    ]
    return PairwiseFacts(
        bound=from_json(tuple[ListenResult, ...], bound, "bound"),
        connected=from_json(tuple[ConnectResult, ...], connections, "connected"),
        tokens=from_json(tuple[TokenSeen, ...], [*seen, *unwritten], "seen"),
        counters=tuple(
            counters_of(device, folder_values(left["counters"][path]))
            for device, path in _counter_folders(probe, name).items()
            if path in (left.get("counters") or {})
        ),
        problem=problem,
    )


def _given(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an answer that are not null."""
    return {key: value for key, value in answer.items() if value is not None}
