"""The second round trip: what only a try between nodes shows, once addresses are chosen.

Every node first listens and writes its tokens. When all have, every node connects to the others
and looks for their tokens; only then does any stop listening.
"""

import functools
import posixpath
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from clusterctl import values
from clusterctl.checks.storage.run_paths import run_paths, share_of
from clusterctl.facts.network.counters import (
    RDMA_COUNTERS,
    STATISTICS,
    counters_of,
    folder_values,
    port_counters,
)
from clusterctl.facts.network.pairwise import (
    LARGEST_PROBE,
    ConnectResult,
    ListenResult,
    PairwiseFacts,
    TokenSeen,
)
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.parse_facts import folder_questions
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.model.from_json import DocumentError, from_json
from clusterctl.network.choice import Network
from clusterctl.transport.interface import Reply
from clusterctl.verbs.events import Emit
from clusterctl.verbs.preflight.collect_facts import STEP_SECONDS, FactsSession
from clusterctl.wire import Message

ALL_PAIRS = 16
"""Up to so many nodes each one tries every other; beyond, those at distances 1, 2, 4, 8 …"""
CONNECT_SECONDS = 3.0
"""The kernel repeats a lost first packet after one second."""
TOKEN_SECONDS = 4.0
"""How long a token may take to show; broken shares cost the check this long."""
AT_ONCE = 64
"""Nodes at a step at once. All may be one machine, and a step takes 30 ms of a core: its own, and
that of those to whom it connects. A node that gets none for `CONNECT_SECONDS` seems cut off."""


@values.dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """A share to which a node was to write its token."""

    path: str
    folder: str = ""
    """Where it could; empty: nowhere."""
    words: str = ""


@values.dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """A node listens, and has written its tokens."""

    bound: tuple[ListenResult, ...]
    written: tuple[_Written, ...]


@values.dataclass(frozen=True, slots=True, kw_only=True)
class _Met:
    """A node has tried the others."""

    connected: tuple[ConnectResult, ...]
    seen: tuple[TokenSeen, ...]


@values.dataclass(frozen=True, slots=True, kw_only=True)
class _Left:
    """A node listens no more."""

    foreign: tuple[str, ...] = ()
    counters: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Probe:
    """The answers so far."""

    session: FactsSession
    network: Network
    facts: Mapping[str, NodeFacts]
    prepared: dict[str, _Prepared] = field(default_factory=dict)
    connected: dict[str, _Met] = field(default_factory=dict)
    left: dict[str, _Left] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    """Each text that a result has, once: a thousand nodes name the same ones, 5 KB each."""

    @functools.cached_property
    def order(self) -> tuple[str, ...]:
        """Those that listen; asked for once all have prepared."""
        return tuple(node.name for node in self.cluster.nodes if node.name in self.prepared)

    @functools.cached_property
    def ranks(self) -> dict[str, int]:
        """The place of each node in the inventory."""
        return {node.name: rank for rank, node in enumerate(self.cluster.nodes)}

    @property
    def cluster(self) -> Cluster:
        return self.session.cluster

    def take(self, name: str, head: dict[str, Any]) -> str:
        """Keep a node's answer to a step, once; return what is wrong with it."""
        step = head.get("step")
        try:
            if step == "prepare" and name not in self.prepared:
                self.prepared[name] = from_json(_Prepared, head, "")
            elif step == "meet" and name not in self.connected:
                met = from_json(_Met, head, "")
                self.connected[name] = replace(
                    met, connected=tuple(map(self._shared, met.connected))
                )
            elif "end" in head:
                self.left[name] = from_json(_Left, head, "")
            else:
                return self.session.clocks[name].invalid(head)
        except DocumentError as error:
            return str(error)
        return ""

    def _shared(self, one: ConnectResult) -> ConnectResult:
        """Return it with the texts that earlier results hold."""
        held = ((each.name, getattr(one, each.name)) for each in fields(one))
        texts: dict[str, Any] = {
            name: self.texts.setdefault(text, text) for name, text in held if isinstance(text, str)
        }
        return replace(one, **texts)


def probe_connectivity(
    session: FactsSession, facts: Mapping[str, NodeFacts], network: Network, *, emit: Emit
) -> dict[str, NodeFacts]:
    """Let the nodes try each other, and end their talks; return the facts with `between`."""
    probe = _Probe(session=session, network=network, facts=facts)
    _exchange(probe, emit=emit)
    return {
        name: replace(known, between=_between(probe, name)) if known.answered else known
        for name, known in facts.items()
    }


def _exchange(probe: _Probe, *, emit: Emit) -> None:
    for message in (_prepare, _targets, _end):
        _step(probe, message, emit=emit)


def _step(probe: _Probe, message: Callable[[_Probe, str], dict[str, Any]], *, emit: Emit) -> None:
    """Send each node a step, to so many at once, until all have answered."""
    session = probe.session
    waiting = deque(name for name in session.calls if name not in session.ended)
    owing: dict[str, str] = {}
    while waiting or owing:
        if waiting and len(owing) < AT_ONCE:
            name = waiting.popleft()
            if name not in session.ended:
                head = message(probe, name)
                session.send({name: head})
                owing[name] = head["step"]
            continue
        name, item = next(session.stream)
        met = len(probe.connected)
        _hear(probe, name, item, owing)
        if len(probe.connected) > met:
            emit(session.progress("trying connections", probe.connected))


def _hear(probe: _Probe, name: str, item: Message | Reply, owing: dict[str, str]) -> None:
    """Take what a node says; `owing` are those that have not answered, each with its step."""
    session = probe.session
    if isinstance(item, Reply):
        session.ended.setdefault(name, item)
    elif name in session.ended:
        return
    elif invalid := probe.take(name, item.head):
        session.give_up(name, invalid)
    elif name in owing and item.head.get("step") == owing[name]:
        del owing[name]
    elif name in owing and "end" not in item.head:
        # A late message about clocks is not the answer to the step.
        session.calls[name].set_deadline(STEP_SECONDS)
    if name in session.ended:
        owing.pop(name, None)


def _prepare(probe: _Probe, name: str) -> dict[str, Any]:
    """Return the step that listens and writes tokens to the shares."""
    node = probe.cluster.node(name)
    own = probe.network.nodes.get(name)
    sockets = []
    if own is not None:
        interface = probe.facts[name].interface(own.interface)
        padding = min((interface.mtu if interface else None) or 0, LARGEST_PROBE)
        sockets.append({"key": "pair", "address": own.address, "port": 0, "padding": padding})
        if name == probe.cluster.master.name:
            port = probe.network.master_port
            sockets.append({"key": "master", "address": own.address, "port": port})
    tokens = [
        {
            "path": share,
            "folders": _folders(probe.cluster, node, share),
            "name": _token_name(probe, name),
        }
        for share in _answering(probe, name)
    ]
    return {"step": "prepare", "sockets": sockets, "tokens": tokens}


def _answering(probe: _Probe, name: str) -> tuple[str, ...]:
    """Return the shares that are folders there: a hung one would only cost its limit again."""
    known = probe.facts[name]
    return tuple(s for s in probe.cluster.shared if (p := known.path(s)) is not None and p.folder)


def _token_name(probe: _Probe, name: str) -> str:
    return f"{probe.session.nonce[:8]}-{probe.ranks[name]}"


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
    for peer in peers(probe.order, name):
        for bound in probe.prepared[peer].bound:
            if own is not None and _is_own(probe, peer, bound):
                # As NCCL: not bound, so that the routing table chooses. The rendezvous is tried
                # from the very address that the master will get.
                source = own.address if bound.key == "master" else None
                target = {"target": peer, "key": bound.key, "source": source}
                targets.append({**target, "address": bound.address, "port": bound.port})
        writer = probe.cluster.node(peer)
        for written in probe.prepared[peer].written:
            share, folder = written.path, written.folder
            # Only folders that the writer had to write to.
            if share in _answering(probe, name) and folder in _folders(
                probe.cluster, writer, share
            ):
                token = {"path": share, "folder": folder, "writer": peer}
                tokens.append({**token, "name": _token_name(probe, peer)})
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
        port.name: port_counters(port.name)
        for port in known.rdma or ()
        if port.active and port.name in before
    }
    if own is not None and own.interface in before:
        found[own.interface] = f"/sys/class/net/{own.interface}/statistics"
    return found


def _is_own(probe: _Probe, peer: str, bound: ListenResult) -> bool:
    """Tell whether a node listens at the address it was given: the others connect to no other."""
    network = probe.network
    place = network.nodes.get(peer)
    if place is None or bound.address != place.address or not bound.port:
        return False
    is_master = peer == probe.cluster.master.name and bound.port == network.master_port
    return bound.key == "pair" or (bound.key == "master" and is_master)


def peers(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Return whom a node tries: all others, or of many the first and those at doubling distances.

    The first is the master. The distances reach every node over a few steps, so a node that no
    other reaches shows as such.
    """
    if len(names) <= ALL_PAIRS:
        return tuple(other for other in names if other != name)
    own, count = names.index(name), len(names)
    chosen = {0}
    distance = 1
    while distance < count:
        chosen.add((own + distance) % count)
        distance *= 2
    return tuple(names[place] for place in sorted(chosen - {own}))


def _between(probe: _Probe, name: str) -> PairwiseFacts:
    # Each answer goes as its values come: of a thousand nodes both take much memory.
    prepared, connected = probe.prepared.pop(name, None), probe.connected.pop(name, None)
    reply = probe.session.ended.get(name)
    problem = ""
    if prepared is None or connected is None:
        problem = "no answer"
        if reply is not None:
            problem = (reply.error.message if reply.error else "") or reply.state
    left = probe.left.get(name, _Left())
    # Its own token, which no other node can have seen: it shows why this node could not write.
    unwritten = [
        TokenSeen(path=one.path, writer=name, seen=None, words=one.words)
        for one in (prepared.written if prepared else ())
        if not one.folder
    ]
    return PairwiseFacts(
        bound=tuple(
            replace(one, foreign=left.foreign) for one in (prepared.bound if prepared else ())
        ),
        connected=connected.connected if connected else (),
        tokens=(*(connected.seen if connected else ()), *unwritten),
        counters=tuple(
            counters_of(device, folder_values(left.counters[path]))
            for device, path in _counter_folders(probe, name).items()
            if path in left.counters
        ),
        problem=problem,
    )
