"""Whether each node can be reached."""

import shlex
from collections import Counter
from collections.abc import Iterator

from clusterctl.checks.finding import Finding, fail, likewise, unknown, warn, without_name
from clusterctl.checks.registry import SSH, Check, Facts
from clusterctl.checks.wording import NOT_IN_FACTS
from clusterctl.facts.machine.system import SshStatus
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster

_MESSAGE = {
    "unreachable": "the machine does not answer",
    "refused": "the machine answers, but refuses SSH connections",
    "auth": "the SSH server rejects your login",
    "hostkey": "the host key is unknown or differs from the recorded one",
    "timeout": "it accepts the connection but does not answer",
    "lost": "the connection broke",
    "bad-output": "its reply is not a clusterctl message",
}
_OF_PHASE = {
    "config": "ssh on this machine cannot tell how to reach it",
    "asleep": "the connection broke while this machine slept, or this process was stopped",
    "limit": "it lets your user start no more processes, or open no more files",
}
"""What says more than the state."""
_REMEDY = {
    "unreachable": "ping {host}; check its power and its address",
    "refused": "start the SSH server on the node: sudo systemctl start ssh",
    "auth": "copy your key to the node: ssh-copy-id {host}",
    "hostkey": "compare the fingerprint, then: clusterctl check --accept-new",
    "timeout": "look at the machine's console: it or its disk is overloaded or frozen",
    "lost": "run the check again; if that fails too, check the network to {host}",
    "bad-output": "ssh {host} true shows what its login shell prints",
}


@Check(
    SSH,
    title="every node answers to SSH",
    why="clusterctl does everything over SSH: facts, sync, start, logs and stop.",
    fix="Log in with `ssh HOST` until that works without a question. Then the address, key,"
    " user and host key are right.",
    source="https://man.openbsd.org/ssh_config",
    final=True,
)
def connect(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Report why each node failed, with the SSH server's own message; fold equal failures."""
    alike: dict[tuple[str, str], dict[str, tuple[str, str, str]]] = {}
    for node in cluster.nodes:
        reach = facts[node.name].reach if node.name in facts else SshStatus(state="unreachable")
        if reach.state != "ok":
            message = _OF_PHASE.get(reach.phase) or (
                _MESSAGE.get(reach.state, reach.state) + _ping_note(reach)
            )
            remedy = reach.hint or _REMEDY.get(reach.state, "").format(host=shlex.quote(node.host))
            phase = "" if reach.phase in {"", reach.state} else f"{reach.phase}: "
            words = phase + reach.words
            plain = [without_name(text, node.host, node.name) for text in (remedy, words)]
            alike.setdefault((message, plain[0]), {})[node.name] = remedy, words, plain[1]
    for (message, _), failed in alike.items():
        shared = Counter(plain for _, _, plain in failed.values())
        found = (words if shared[plain] == 1 else plain for _, words, plain in failed.values())
        yield fail(
            tuple(failed),
            message,
            wanted="an answer over SSH",
            found="\n".join(dict.fromkeys(found)),
            remedy=likewise(remedy for remedy, _, _ in failed.values()),
        )


def _ping_note(reach: SshStatus) -> str:
    if reach.state != "unreachable" or not reach.ping:
        return ""
    return " to SSH, but answers to ping" if reach.ping == "ok" else " to SSH or ping"


@Check(
    "ssh.ping",
    title="every node answers to ping",
    why="A firewall that drops ICMP also breaks path MTU discovery: large transfers may hang.",
    fix="Allow ICMP between the nodes, at least `fragmentation needed` (type 3, code 4).",
    source="https://www.rfc-editor.org/rfc/rfc2923",
    blocks=False,
    applies=lambda node, _cluster: node.reach.ping != "",
)
def ping(node: NodeFacts) -> Iterator[Finding]:
    """Warn if only ping gets no answer: a run can work without it."""
    if node.answered and node.reach.ping == "silent":
        yield warn(
            node.node,
            "it answers to SSH but not to ping",
            wanted="an ICMP echo",
            found="no answer",
            remedy="allow ICMP in the firewall; harmless if all other checks pass",
        )


@Check(
    "ssh.identity",
    title="SSH used the key that the inventory names",
    why="SSH also tries the agent's keys and the default ones; such a login may fail tomorrow.",
    fix="Install the public key of `ssh: {identity: ...}` on the node with `ssh-copy-id`.",
    source="https://man.openbsd.org/ssh_config#IdentityFile",
    blocks=False,
    applies=lambda node, cluster: bool(cluster.node(node.node).ssh.identity),
)
def identity(node: NodeFacts, cluster: Cluster) -> Iterator[Finding]:
    """Warn if another key was used; without a working key, `ssh.connect` fails."""
    named = cluster.node(node.node).ssh.identity
    if not node.answered or not named:
        return
    if node.reach.key is None:
        yield unknown(
            node.node,
            "it is unknown whether SSH used the key that the inventory names",
            wanted=named,
            found=NOT_IN_FACTS,
            remedy="clusterctl check",
        )
    elif node.reach.key:
        yield warn(
            node.node,
            "SSH used another key than the one that the inventory names",
            wanted=named,
            found=node.reach.key,
            remedy="correct `identity:` under `ssh:` in the inventory, or remove it",
        )
