"""The facts of every node: one connection and one round trip each, all at once."""

import math
import secrets
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from clusterctl.checks.software.packages import named_packages
from clusterctl.checks.storage.run_paths import build_locks, run_paths
from clusterctl.errors import NodeError
from clusterctl.facts.answers import Answers
from clusterctl.facts.machine.system import Clock, SshStatus
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.parse_facts import parse_facts, read_arguments
from clusterctl.facts.request import CLOCK_ROUNDS, ContainerWords, FactRequest, PathQuestion
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.inventory.wrap import read_container
from clusterctl.model.answers import ClockAnswer
from clusterctl.model.from_json import invalid
from clusterctl.plan.container import image_words, question_words
from clusterctl.plan.launchers import launcher_file
from clusterctl.plan.lock import lock_name
from clusterctl.transport.interface import Call, Reply, Request
from clusterctl.verbs.events import Emit, Progress
from clusterctl.verbs.preflight.ping import Pings
from clusterctl.verbs.rpc import NOT_OURS, Nodes
from clusterctl.wire import Message

FACTS_SECONDS = 180.0
"""Longest a node may take for its facts; each question has its own limit there."""
STEP_SECONDS = 60.0
"""Longest a node may take for a step of the probe."""
CLOCK_ERROR_SECONDS = 0.1
"""A clock known to this is not asked again: a round trip costs all three processes, and the check
allows ten times as much."""


@dataclass(slots=True)
class ClockProbe:
    """The clock of one node, by the shortest of several round trips."""

    began: float
    sent_at: float = 0.0
    rounds: int = 0
    received: int = 0
    best: Clock | None = None

    def ask(self, call: Call) -> None:
        """Send the next question, or that the answers are precise enough."""
        if self.rounds == CLOCK_ROUNDS:
            return  # the node expects no more
        enough = self.best is not None and self.best.error_s <= CLOCK_ERROR_SECONDS
        self.sent_at = time.time()
        call.send(Message({"enough": True} if enough else {}))

    def invalid(self, head: Mapping[str, object]) -> str:
        """Return why a message does not belong to this conversation; empty: it does."""
        self.received += 1
        if self.received > CLOCK_ROUNDS + 1:
            return "it sent more messages than expected"
        return "" if head == {"clock": "ready"} else invalid(ClockAnswer, head)

    def receive(self, theirs: float) -> None:
        """Keep the answer if its round trip was the shortest."""
        now = time.time()
        error = (now - self.sent_at) / 2
        self.rounds += 1
        if error >= 0 and (self.best is None or error < self.best.error_s):
            self.best = Clock(offset_s=theirs - (self.sent_at + now) / 2, error_s=error)


@dataclass(slots=True)
class FactsSession:
    """One conversation with each node, for its facts and then for the probe."""

    cluster: Cluster
    packages: tuple[str, ...] = ()
    """To be asked for, besides those that the job names."""
    only: frozenset[str] = frozenset()
    """Names of the facts that are wanted; empty: all."""
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    """What the nodes of this session know each other by."""
    calls: dict[str, Call] = field(default_factory=dict)
    ended: dict[str, Reply] = field(default_factory=dict)
    stream: Iterator[tuple[str, Message | Reply]] = field(default_factory=lambda: iter(()))
    """What the nodes say, in both phases."""
    clocks: dict[str, ClockProbe] = field(default_factory=dict)
    connect_s: dict[str, float] = field(default_factory=dict)
    """How long each new connection took."""
    facts: dict[str, NodeFacts] = field(default_factory=dict)

    def send(self, heads: Mapping[str, Mapping[str, object]]) -> None:
        """Send a message to each of these nodes that is still there."""
        for name, head in heads.items():
            if name not in self.ended:
                self.calls[name].set_deadline(STEP_SECONDS)
                self.calls[name].send(Message(dict(head)))

    def give_up(self, name: str, invalid: str) -> None:
        """Read no more of a node whose message is not an answer."""
        error = NodeError("bad-output", "answer", f"{NOT_OURS}: {invalid}")
        self.ended[name] = Reply.failed(name, error)
        self.calls[name].close()

    def finish(self) -> None:
        """End every conversation."""
        self.send({name: {"step": "end"} for name in self.calls})
        for name, item in self.stream:
            if isinstance(item, Reply):
                self.ended.setdefault(name, item)
            elif name not in self.ended and "end" not in item.head:
                self.give_up(name, "it sent more messages than expected")

    def progress(self, phase: str, done: Collection[str]) -> Progress:
        """Return how far a phase is."""
        return Progress.of_nodes(phase, (node.name for node in self.cluster.nodes), done)


def collect_facts(session: FactsSession, pool: Nodes, *, emit: Emit) -> dict[str, NodeFacts]:
    """Learn all facts that need one node only; the conversations stay open.

    Args:
        session: of the cluster, not begun yet.

    Returns:
        The facts of every node, in the inventory's order; a node that did not answer has only
        `reach`.
    """
    pings = Pings(session.cluster)
    try:
        for node in session.cluster.nodes:
            wanted = _wanted(session, node)
            args = {**read_arguments(wanted), "word": session.nonce}
            # To read keeps a node busy, and a thousand of them may be one machine.
            request = Request(op="collect-facts", args=args, turn_until="answers", stay=True)
            call = session.calls[node.name] = pool.start(node.name, request)
            call.set_deadline(FACTS_SECONDS)
            session.clocks[node.name] = ClockProbe(began=time.monotonic())
        session.stream = pool.follow(session.calls)
        _listen(session, emit=emit)
        answers = pings.answers()
        return {
            node.name: _seen_from_here(session.facts[node.name], answers.get(node.name, ""), node)
            for node in session.cluster.nodes
        }
    finally:
        pings.close()


def _wanted(session: FactsSession, node: Node) -> FactRequest:
    return replace(fact_request(session.cluster, node, session.packages), only=session.only)


def fact_request(cluster: Cluster, node: Node, packages: tuple[str, ...] = ()) -> FactRequest:
    """Return what is to be known of a node."""
    found: dict[str, PathQuestion] = {}
    for place in run_paths(cluster, node):
        before = found.get(place.path, PathQuestion(path=place.path))
        found[place.path] = replace(
            before,
            write=before.write or place.role in {"workdir", "checkpoints", "state"},
            speed=before.speed or place.role == "checkpoints",
            digest=before.digest or place.role == "needs",
        )
    return FactRequest(
        python=node.python,
        gpus=node.gpus_wanted,
        places=tuple(found.values()),
        lock=lock_name(cluster, node),
        env_init=cluster.job.env_init,
        packages=(*(name for name, _ in named_packages(cluster.job)), *packages),
        container=_container(cluster),
        python_env=tuple(pair for pair in cluster.job.env if pair[0].startswith("PYTHON")),
        launcher_file=launcher_file(cluster.job, node),
        build_locks=build_locks(cluster),
        listeners=node.name == cluster.master.name,
    )


def _container(cluster: Cluster) -> ContainerWords | None:
    container = read_container(cluster.job.wrap)
    if container is None:
        return None
    return ContainerWords(
        plain=question_words(container),
        nvidia=question_words(container, "nvidia"),
        amd=question_words(container, "amd"),
        image=container.image,
        image_id=image_words(container),
        env=cluster.job.env,
    )


def _listen(session: FactsSession, *, emit: Emit) -> None:
    """Read until each node has answered or failed."""
    heard: set[str] = set()
    while len(session.facts) < len(session.cluster.nodes):
        name, item = next(session.stream)
        clock = session.clocks[name]
        if name not in heard:
            heard.add(name)
            if seconds := session.calls[name].login_seconds:
                session.connect_s[name] = seconds
            emit(session.progress("connecting", heard))
        if isinstance(item, Reply):
            session.ended.setdefault(name, item)
            session.facts.setdefault(name, _silent(item))
        elif name in session.ended:
            continue
        elif "answers" in item.head and name not in session.facts:
            session.facts[name] = _learned(session, name, item)
            # It waits for the slower ones, and owes nothing.
            session.calls[name].set_deadline(math.inf)
        elif invalid := clock.invalid(item.head):
            session.give_up(name, invalid)
            session.facts.setdefault(name, _silent(session.ended[name]))
        else:
            if "time" in item.head:
                clock.receive(item.head["time"])
            clock.ask(session.calls[name])
            if name not in session.facts:
                session.calls[name].set_deadline(FACTS_SECONDS)
            continue
        emit(session.progress("reading facts", session.facts))


def _learned(session: FactsSession, name: str, message: Message) -> NodeFacts:
    wanted = _wanted(session, session.cluster.node(name))
    clock = session.clocks[name]
    seconds = time.monotonic() - clock.began
    try:
        answers = Answers.of(message)
    except ValueError as error:
        return _silent(Reply.failed(name, NodeError("bad-output", "answer", str(error))))
    facts = parse_facts(name, answers, wanted, clock=clock.best)
    reach = SshStatus(seconds=seconds, connect_s=session.connect_s.get(name))
    return replace(facts, reach=reach)


def _silent(reply: Reply) -> NodeFacts:
    error = reply.error
    reach = SshStatus(state=reply.state, seconds=reply.seconds)
    if error is not None:
        reach = replace(reach, phase=error.phase, words=error.message, hint=error.hint)
    return NodeFacts(node=reply.node, reach=reach)


def _seen_from_here(facts: NodeFacts, ping: str, node: Node) -> NodeFacts:
    return replace(facts, reach=replace(facts.reach, ping=ping, key=_key_problem(node)))


def _key_problem(node: Node) -> str | None:
    """Say why the inventory's key cannot be read; its public half will do for one in the agent."""
    if not node.ssh.identity:
        return None
    if node.local:
        return ""
    path = Path(node.ssh.identity).expanduser()
    try:
        with path.open("rb"):
            return ""
    except OSError as error:
        in_agent = path.with_name(path.name + ".pub").exists()
        return "" if in_agent else f"{path}: {error.strerror}"
