"""Whether each node can be reached at all."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from clusterctl.checks.finding import Finding
from clusterctl.checks.registry import SSH, Facts, check
from clusterctl.facts.nodefacts import SshStatus
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Network

_SAYS = {
    "unreachable": "the machine does not answer",
    "refused": "the machine answers, its SSH port does not",
    "auth": "SSH does not let us in",
    "hostkey": "the host key is not known, or not the recorded one",
    "timeout": "it takes the connection and then does not answer",
    "lost": "the connection broke",
    "bad-output": "what came back is not an answer of ours",
}
_REMEDY = {
    "unreachable": "check that the machine is on, and its address: ping {host}",
    "refused": "start the SSH server there: sudo systemctl start ssh",
    "auth": "copy your key there: ssh-copy-id {host}",
    "hostkey": "compare the fingerprint, then: clusterctl check --accept-new",
    "timeout": "look at the machine's console: it is overloaded, frozen, or its disk is",
    "lost": "run the check again; if it repeats, look at the network to {host}",
    "bad-output": "see what its login shell prints: ssh {host} true",
}


@check(
    SSH,
    title="every node answers to SSH",
    why="Everything is done over SSH: facts, code, the start of the ranks, logs and stop.",
)
def connect(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Report how silent nodes failed, in their servers' words; one finding for those alike."""
    alike: dict[tuple[str, str], dict[str, str]] = {}
    for node in cluster.nodes:
        reach = facts[node.name].reach if node.name in facts else SshStatus(state="unreachable")
        if reach.state != "ok":
            message = _SAYS.get(reach.state, reach.state) + _ping_says(reach)
            remedy = reach.hint or _REMEDY.get(reach.state, "").format(host=shlex.quote(node.host))
            phase = "" if reach.phase in {"", reach.state} else f"{reach.phase}: "
            alike.setdefault((message, remedy), {})[node.name] = phase + reach.words
    for (message, remedy), found in alike.items():
        yield Finding(
            check=SSH,
            status="fail",
            nodes=tuple(found),
            message=message,
            wanted="an answer over SSH",
            found="\n".join(dict.fromkeys(found.values())),
            remedy=remedy,
        )


def _ping_says(reach: SshStatus) -> str:
    if reach.state != "unreachable" or not reach.ping:
        return ""
    return " to SSH, though it does to ping" if reach.ping == "ok" else ", to ping neither"


@check(
    "ssh.ping",
    title="every node answers to ping",
    why="A firewall that drops ICMP also breaks path MTU discovery: large transfers may hang.",
    blocks=False,
    applies=lambda node, _cluster: node.reach.ping != "",
)
def ping(facts: Facts, _network: Network, _cluster: Cluster) -> Iterator[Finding]:
    """Warn where only ping is silent: a run can work without it."""
    for node in facts.values():
        if node.answered and node.reach.ping == "silent":
            yield Finding(
                check="ssh.ping",
                status="warn",
                nodes=(node.node,),
                message="it answers to SSH but not to ping",
                wanted="an ICMP echo",
                found="silence",
                remedy="let ICMP through the firewall; harmless if everything else passes",
            )


@check(
    "ssh.identity",
    title="the key that the inventory names can be read here",
    why="Another key may let us in all the same, today: SSH tries the agent's and the usual ones.",
    blocks=False,
    applies=lambda node, cluster: bool(cluster.node(node.node).ssh.identity),
)
def identity(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Warn where another key was taken; where none fits, the login's own words say it."""
    for node in facts.values():
        named = cluster.node(node.node).ssh.identity
        if not node.answered or not named:
            continue
        if node.reach.key is None:
            yield Finding(
                check="ssh.identity",
                status="unknown",
                nodes=(node.node,),
                message="whether the key that the inventory names can be read is not known",
                wanted=named,
                found="the facts, from before the inventory named it, do not have it",
                remedy="clusterctl check",
            )
        elif node.reach.key:
            yield Finding(
                check="ssh.identity",
                status="warn",
                nodes=(node.node,),
                message="the key that the inventory names was not used: another one fitted",
                wanted=named,
                found=node.reach.key,
                remedy="correct `identity:` under `ssh:` in the inventory, or take it out",
            )
