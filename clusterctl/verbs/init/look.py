"""Connects to the hosts of a drafted inventory, looks at them, and fills in what it finds.

Two rounds: the first asks what only `init` wants to know, the second reads what a check reads, so
that both judge the nodes by the same facts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from functools import partial

from clusterctl.checks.wording import counted
from clusterctl.errors import CouldNotTell, NodeError
from clusterctl.facts.answers import Answers
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.addresses import own_user
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.network.choice import choose_network
from clusterctl.transport.interface import Reply, Request
from clusterctl.transport.pool import Pool
from clusterctl.transport.ssh.host_keys import CHANGED_KEY, IF_REINSTALLED, UnknownKey
from clusterctl.transport.ssh.ssh_config import DEFAULT_PORT, SshConfigResolver
from clusterctl.values import dataclass
from clusterctl.verbs.events import Emit, Progress
from clusterctl.verbs.init.draft import Draft, own_interpreter
from clusterctl.verbs.init.found import (
    HOME,
    INTERPRETERS,
    MOUNTS,
    Interpreter,
    Seen,
    choose_interpreters,
    possible_shares,
    shared_paths,
    with_workdirs,
)
from clusterctl.verbs.preflight.collect_facts import FactsSession, collect_facts
from clusterctl.verbs.preflight.connectivity import probe_connectivity

FIND_SECONDS = 30.0
"""For a node's interpreters; those found until then count."""
ANSWER_SECONDS = 60.0
_FINDER = "clusterctl.node.probe.interpreters"
_MODULES = ("clusterctl.wire", _FINDER, "clusterctl.node.probe.job_interpreter")


class UnknownHostKeys(CouldNotTell):
    """Hosts have keys that were not compared; a user may accept exactly these."""

    def __init__(self, cluster: str, keys: tuple[UnknownKey, ...]) -> None:
        what = (
            "1 host is not in known_hosts. It showed this key:"
            if len(keys) == 1
            else f"{len(keys)} hosts are not in known_hosts. They showed these keys:"
        )
        super().__init__(
            "\n".join([what, *(key.shown for key in keys)]),
            hint="compare with each host's own, on your provider's page or on its console:"
            " ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub\n"
            "then repeat the command with --accept-new; without a comparison, that trusts the"
            " first connection, as ssh does",
        )
        self.cluster = cluster
        self.keys = keys

    def accept(self) -> None:
        """Record these keys for the cluster."""
        for key in self.keys:
            key.accept(self.cluster)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """A sentence about some nodes."""

    nodes: str
    """Their names, folded: `gpu[1-4]`."""
    text: str
    hint: str = ""
    """What to type next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """The inventory with what was found."""

    draft: Draft
    failed: tuple[Remark, ...] = ()
    """Why nodes did not answer."""
    undecided: tuple[Remark, ...] = ()
    """What you have to write into the file."""


@dataclass(slots=True)
class _Look:
    """What is known so far."""

    cluster: Cluster
    seen: dict[str, Seen] = field(default_factory=dict)
    failed: dict[str, NodeError] = field(default_factory=dict)
    facts: Mapping[str, NodeFacts] = field(default_factory=dict)

    def fail(self, reply: Reply) -> None:
        if reply.error is not None:
            self.failed[reply.node] = reply.error


def look(drafted: Draft, folder: str, *, accept_new: bool = False, emit: Emit) -> Looked:
    """Look at the hosts of a draft; UnknownHostKeys without `accept_new`, if there are some."""
    with Pool(drafted.reachable, accept_new=accept_new) as pool:
        state = _Look(cluster=drafted.reachable)
        _connect(state, pool, emit=emit)
        _ask(state, pool, folder, emit=emit)
        _read_facts(state, pool, folder, emit=emit)
    return _result(state, drafted)


def _connect(state: _Look, pool: Pool, *, emit: Emit) -> None:
    """Connect to all nodes at once."""
    unknown: list[UnknownKey] = []
    done: set[str] = set()
    for reply in pool.open():
        done.add(reply.node)
        state.fail(reply)
        key = UnknownKey.of(reply.error)
        if key is not None:
            unknown.append(key)
        emit(_progress(state, "connecting", done))
    behind = [
        node.name
        for node in state.cluster.nodes
        if node.name in state.failed and state.failed[node.name].state == "hostkey"
    ]
    if behind and not unknown:
        # OpenSSH connects to jump hosts, and tells no key that could be shown.
        error = state.failed[behind[0]]
        raise CouldNotTell(f"{fold_hosts(behind)}: {error}", hint=_key_hint(error))
    if unknown:
        ordered = sorted({key.shown: key for key in unknown}.items())
        raise UnknownHostKeys(state.cluster.name, tuple(key for _, key in ordered))


def _key_hint(error: NodeError) -> str:
    """Return what to type about a refused key while there is no inventory that others could read.

    No flag accepts a key that differs from the recorded one.
    """
    if remove := error.details.get(CHANGED_KEY):
        return f"{IF_REINSTALLED}{remove}"
    if "--accept-new" in error.hint:
        return "compare the key with the host's own, then repeat the command with --accept-new"
    return error.hint


def _ask(state: _Look, pool: Pool, folder: str, *, emit: Emit) -> None:
    """Ask for interpreters and mounts; choose what the second round tries."""
    words = f"{_FINDER}:find"
    command = {
        "key": INTERPRETERS,
        "argv": ["python3", "-c", words, folder],
        "modules": list(_MODULES),
        "source_at": 2,
        "limit_s": FIND_SECONDS,
        "cwd": "/",
    }
    args = {"commands": [command], "files": [MOUNTS], "paths": [{"path": HOME}]}
    request = Request(op="read", args=args)
    reached = [node.name for node in state.cluster.nodes if node.name not in state.failed]
    done = set(state.failed)
    for reply in pool.call(dict.fromkeys(reached, request), timeout=ANSWER_SECONDS):
        done.add(reply.node)
        state.fail(reply)
        if reply.ok:
            try:
                state.seen[reply.node] = Seen.of(Answers.of(reply.last))
            except ValueError as error:
                state.failed[reply.node] = NodeError("bad-output", "answer", str(error))
        emit(_progress(state, "looking for interpreters", done))


def _read_facts(state: _Look, pool: Pool, folder: str, *, emit: Emit) -> None:
    """Read the facts as a check does, and let the nodes try the paths that may be shared."""
    one_machine = state.cluster.same_machine
    shares = possible_shares(state.seen, one_machine=one_machine)
    chosen = choose_interpreters(state.seen)
    nodes = tuple(
        replace(node, python=node.python or _interpreter(node, chosen.get(node.name)))
        for node in state.cluster.nodes
        if node.name in state.seen
    )
    if not nodes:
        return
    # Homes as folders for the code: they are written to, in case that nothing is shared.
    asked = with_workdirs(replace(state.cluster, nodes=nodes), state.seen, folder)
    asked = replace(asked, shared=tuple(dict.fromkeys([*asked.shared, *shares])))
    session = FactsSession(cluster=asked)
    facts = collect_facts(session, pool.again(asked), emit=emit)
    network = choose_network(asked, facts)
    facts = probe_connectivity(session, facts, network, emit=emit)
    state.facts = facts
    for name, known in facts.items():
        if not known.answered:
            reach = known.reach
            state.failed[name] = NodeError(
                reach.state, reach.phase, reach.words, reach.hint, node=name
            )
    answered = tuple(node for node in nodes if facts[node.name].answered)
    if not answered:
        return
    found = replace(state.cluster, nodes=answered, shared=shared_paths(asked, facts))
    found = with_workdirs(found, state.seen, folder)
    found = replace(found, nodes=tuple(map(partial(_with_gpus, facts), found.nodes)))
    if len(answered) > 1 and network.kind == "subnet" and found.subnet is None:
        found = replace(found, subnet=network.subnet)
    by_name = {node.name: node for node in found.nodes}
    # A node that did not answer gets what all others have in common.
    python, workdir = (
        _common(getattr(n, key) for n in found.nodes) for key in ("python", "workdir")
    )
    rest = {
        node.name: replace(node, python=node.python or python, workdir=node.workdir or workdir)
        for node in state.cluster.nodes
        if node.name not in by_name
    }
    everyone = {**by_name, **rest}
    nodes = tuple(everyone[node.name] for node in state.cluster.nodes)
    state.cluster = replace(found, nodes=nodes)


def _with_gpus(facts: Mapping[str, NodeFacts], node: Node) -> Node:
    gpus = facts[node.name].gpus
    count = len(gpus.devices) if gpus else 0
    # The slots of an MPI hostfile may be CPUs.
    if gpus is None or (node.gpus is not None and node.gpus <= count):
        return node
    return replace(node, gpus=count)


def _result(state: _Look, drafted: Draft) -> Looked:
    """Return the draft with what was found, and notes of what was not."""
    resolver = SshConfigResolver()
    before = {node.name: node for node in drafted.cluster.nodes}
    chosen = choose_interpreters(state.seen)
    nodes, notes = [], {}
    undecided: dict[tuple[str, str], list[str]] = {}
    failed: dict[tuple[str, str], list[str]] = {}
    for node in state.cluster.nodes:
        own = replace(node, ssh=before[node.name].ssh)
        nodes.append(own if node.local else _as_ssh_config_has_it(own, resolver))
        error = state.failed.get(node.name)
        if error is not None:
            failed.setdefault((str(error), error.hint), []).append(node.name)
            notes[node.name] = f"It did not answer: {error}\nCorrect gpus:, python: and workdir:."
            continue
        slow = state.seen[node.name].slow
        told, missing = _describe_node(node, state.facts[node.name], chosen.get(node.name), slow)
        expected = before[node.name].gpus
        if expected is not None and node.gpus is not None and node.gpus < expected:
            words = f"The file that was read has {counted(expected, 'GPU')} or slots, the machine"
            missing = (*missing, f"{words} {node.gpus or 'none'}: gpus: {node.gpus} was written.")
        notes[node.name] = "\n".join([told, *missing])
        for line in missing:
            undecided.setdefault((line, ""), []).append(node.name)
    cluster = replace(
        state.cluster,
        nodes=tuple(nodes),
        same_machine=state.cluster.same_machine or _are_containers(nodes, state.facts),
    )
    return Looked(
        draft=replace(drafted, cluster=cluster, notes=notes),
        failed=_folded(failed),
        undecided=_folded(undecided),
    )


def _folded(nodes: Mapping[tuple[str, str], list[str]]) -> tuple[Remark, ...]:
    return tuple(
        Remark(nodes=fold_hosts(names), text=text, hint=hint)
        for (text, hint), names in nodes.items()
    )


def _are_containers(nodes: Iterable[Node], facts: Mapping[str, NodeFacts]) -> bool:
    """Tell whether nodes are servers of one machine, and not two names of one server."""
    machines: dict[str, list[tuple[str | None, int | None]]] = {}
    for node in nodes:
        known = facts.get(node.name)
        if known is not None and known.boot_id:
            machines.setdefault(known.boot_id, []).append((known.netns, node.ssh.port))
    shared = [servers for servers in machines.values() if len(servers) > 1]
    return bool(shared) and all(len(set(servers)) == len(servers) for servers in shared)


def _describe_node(
    node: Node, facts: NodeFacts, interpreter: Interpreter | None, slow: tuple[str, ...]
) -> tuple[str, tuple[str, ...]]:
    """Return what a node is, and what could not be found out."""
    names = [gpu.name for gpu in facts.gpus.devices] if facts.gpus else []
    kinds = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    told = [kinds or "No GPU"] if facts.gpus else []
    missing = []
    if facts.gpus is None:
        why = facts.why_unknown("gpus") or "no answer"
        missing.append(f"Its GPUs are unknown ({why}): write gpus: N.")
    if interpreter is not None and interpreter.path == node.python:
        build = "" if "+" in interpreter.torch else f" for {interpreter.build}"
        told.append(f"torch {interpreter.torch}{build}")
    elif node.python is None:
        unanswered = f" ({', '.join(slow)}: no answer in time)" if slow else ""
        missing.append(
            f"No interpreter with torch was found{unanswered}: write python: /PATH/bin/python."
            " If there is none yet, clusterctl setup makes it at that path."
        )
    place = facts.path(node.workdir) if node.workdir else None
    if node.workdir is None:
        missing.append("Its home is unknown: write workdir: /PATH.")
    elif place is not None and place.writable is False:
        missing.append(f"{node.workdir} cannot be written ({place.problem}): write workdir: /PATH.")
    return ", ".join(told), tuple(missing)


def _as_ssh_config_has_it(node: Node, resolver: SshConfigResolver) -> Node:
    """Return a node with the user and port of ssh_config, where they are not the usual ones."""
    try:
        endpoint = resolver.resolve(node)
    except NodeError:
        return node
    user = node.ssh.user or (endpoint.user if endpoint.user != own_user() else None)
    port = node.ssh.port or (endpoint.port if endpoint.port != DEFAULT_PORT else None)
    return replace(node, ssh=replace(node.ssh, user=user, port=port))


def _interpreter(node: Node, found: Interpreter | None) -> str | None:
    """Return the path to write; this machine may have torch where this program runs."""
    if found is not None:
        return found.path
    return own_interpreter() if node.local else None


def _common(values: Iterable[str | None]) -> str | None:
    """Return the value of all; None if they differ."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _progress(state: _Look, phase: str, done: set[str]) -> Progress:
    return Progress.of_nodes(phase, (node.name for node in state.cluster.nodes), done)
