"""The facts of every node: one connection and one round trip each, all at once."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from clusterctl.checks.places import places
from clusterctl.facts.answers import Answers
from clusterctl.facts.learn import learn
from clusterctl.facts.nodefacts import Clock, NodeFacts, Reach
from clusterctl.facts.request import CLOCK_ROUNDS, Place, Wanted, read_arguments
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.plan.lock import lock_name
from clusterctl.transport.interface import Call, Reply, Request
from clusterctl.verbs.events import Event, Progress
from clusterctl.verbs.nodes import Nodes
from clusterctl.verbs.ping import Pings
from clusterctl.wire import Message


@dataclass(slots=True)
class _Stopwatch:
    """The clock of one node, by the shortest of several round trips."""

    began: float
    asked: float = 0.0
    rounds: int = 0
    best: Clock | None = None

    def ask(self, call: Call) -> None:
        """Send the next question."""
        self.asked = time.time()
        call.send(Message({}))

    def hear(self, theirs: float) -> None:
        """Keep the answer if its round trip was the shortest."""
        now = time.time()
        error = (now - self.asked) / 2
        self.rounds += 1
        if error >= 0 and (self.best is None or error < self.best.error_s):
            self.best = Clock(offset_s=theirs - (self.asked + now) / 2, error_s=error)


@dataclass(slots=True)
class Survey:
    """One conversation with each node, for its facts and then for the meeting."""

    cluster: Cluster
    word: str = field(default_factory=lambda: secrets.token_hex(16))
    """What the nodes of this survey know each other by."""
    calls: dict[str, Call] = field(default_factory=dict)
    ended: dict[str, Reply] = field(default_factory=dict)
    stream: Iterator[tuple[str, Message | Reply]] = field(default_factory=lambda: iter(()))
    """What the nodes say, in both phases."""
    watches: dict[str, _Stopwatch] = field(default_factory=dict)
    facts: dict[str, NodeFacts] = field(default_factory=dict)

    def send(self, heads: Mapping[str, Mapping[str, object]]) -> None:
        """Send a message to each of these nodes that is still there."""
        for name, head in heads.items():
            if name not in self.ended:
                self.calls[name].send(Message(dict(head)))

    def finish(self) -> None:
        """End every conversation."""
        self.send({name: {"step": "end"} for name in self.calls})
        for name, item in self.stream:
            if isinstance(item, Reply):
                self.ended[name] = item

    def progress(self, phase: str, done: Collection[str]) -> Progress:
        """Return how far a phase is."""
        names = [node.name for node in self.cluster.nodes]
        waiting = tuple(name for name in names if name not in done)
        return Progress(
            phase=phase, done=len(names) - len(waiting), total=len(names), waiting_for=waiting
        )


def read_facts(survey: Survey, pool: Nodes) -> Generator[Event, None, dict[str, NodeFacts]]:
    """Learn all facts that need one node only; the conversations stay open.

    Args:
        survey: of the cluster, not begun yet.
        pool: the ways to its nodes.

    Returns:
        The facts of every node, in the inventory's order; a node that did not answer has only
        `reach`.
    """
    pings = Pings(survey.cluster)
    try:
        yield from _connect(survey, pool)
        survey.stream = pool.follow(survey.calls)
        yield from _listen(survey)
        answers = pings.answers()
        return {
            node.name: _seen_from_here(survey.facts[node.name], answers.get(node.name, ""), node)
            for node in survey.cluster.nodes
        }
    finally:
        pings.close()


def wanted_of(cluster: Cluster, node: Node) -> Wanted:
    """Return what is to be known of a node."""
    found: dict[str, Place] = {}
    for place in places(cluster, node):
        before = found.get(place.path, Place(path=place.path))
        found[place.path] = replace(
            before,
            write=before.write or place.role in {"workdir", "checkpoints"},
            digest=before.digest or place.role == "needs",
        )
    return Wanted(
        python=node.python,
        gpus=node.gpus_wanted,
        places=tuple(found.values()),
        lock=lock_name(cluster, node),
        env_init=cluster.job.env_init,
        listeners=node.name == cluster.master.name,
    )


def _connect(survey: Survey, pool: Nodes) -> Iterator[Event]:
    """Open all connections, and let each node read as soon as its own is there."""
    meant = {node.name for node in survey.cluster.nodes}
    done: set[str] = set()
    for reply in pool.open():
        if reply.node not in meant:
            continue  # it was left out after the pool was made
        done.add(reply.node)
        if reply.ok:
            wanted = wanted_of(survey.cluster, survey.cluster.node(reply.node))
            args = {**read_arguments(wanted), "word": survey.word}
            survey.calls[reply.node] = pool.start(reply.node, Request(op="survey", args=args))
            survey.watches[reply.node] = _Stopwatch(began=time.monotonic())
        else:
            survey.facts[reply.node] = _silent(reply)
        yield survey.progress("connecting", done)


def _listen(survey: Survey) -> Iterator[Event]:
    """Hear the nodes until each has given its answers, or is gone."""
    while len(survey.facts) < len(survey.cluster.nodes):
        name, item = next(survey.stream)
        watch = survey.watches[name]
        if isinstance(item, Reply):
            survey.ended[name] = item
            survey.facts.setdefault(name, _silent(item))
        elif "answers" in item.head:
            survey.facts[name] = _learned(survey, name, item)
        else:
            if "time" in item.head:
                watch.hear(float(item.head["time"]))
            if watch.rounds < CLOCK_ROUNDS:
                watch.ask(survey.calls[name])
            continue
        yield survey.progress("reading facts", survey.facts)


def _learned(survey: Survey, name: str, message: Message) -> NodeFacts:
    wanted = wanted_of(survey.cluster, survey.cluster.node(name))
    watch = survey.watches[name]
    seconds = time.monotonic() - watch.began
    try:
        answers = Answers.of(message)
    except ValueError as error:
        bad = Reply(node=name, state="bad-output", phase="answer", words=str(error))
        return _silent(bad)
    facts = learn(name, answers, wanted, clock=watch.best)
    return replace(facts, reach=Reach(seconds=seconds))


def _silent(reply: Reply) -> NodeFacts:
    reach = Reach(
        state=reply.state,
        phase=reply.phase,
        words=reply.words,
        hint=reply.hint,
        seconds=reply.seconds,
    )
    return NodeFacts(node=reply.node, reach=reach)


def _seen_from_here(facts: NodeFacts, ping: str, node: Node) -> NodeFacts:
    return replace(facts, reach=replace(facts.reach, ping=ping, key=_key_problem(node)))


def _key_problem(node: Node) -> str:
    """Say why the inventory's key cannot be read; its public half will do for one in the agent."""
    if node.local or not node.ssh.identity:
        return ""
    path = Path(node.ssh.identity).expanduser()
    try:
        with path.open("rb"):
            return ""
    except OSError as error:
        in_agent = path.with_name(path.name + ".pub").exists()
        return "" if in_agent else f"{path}: {error.strerror}"
