"""The firewall rules of nodes whose connections failed, so that the finding names the rule."""

from collections.abc import Mapping
from dataclasses import replace

from clusterctl.facts.network.firewall import FirewallChain, parse_ruleset
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.transport.interface import Reply, Request
from clusterctl.verbs.events import Emit
from clusterctl.verbs.preflight.job_check import command_answer
from clusterctl.verbs.rpc import Nodes, call_all

_KEY = "nft"
_SECONDS = 5.0


def read_firewall_rules(
    pool: Nodes, facts: Mapping[str, NodeFacts], *, emit: Emit
) -> dict[str, NodeFacts]:
    """Read the rules of both ends of failed connections as root; return the facts with them."""
    failed = {
        end
        for node in facts.values()
        for made in (node.between.connected if node.between else ())
        if made.state in {"timeout", "refused", "unreachable"}
        for end in (node.node, made.target)
    }
    command = {"key": _KEY, "argv": ["nft", "-s", "list", "ruleset"], "limit_s": _SECONDS}
    requests = {
        name: Request(op="read", args={"commands": [command]})
        for name, node in facts.items()
        if name in failed and node.firewall == "nft" and node.uid == 0
    }
    replies = call_all(
        pool, requests, phase="reading firewall rules", timeout=_SECONDS + 30.0, emit=emit
    )
    read = {
        name: replace(facts[name], firewall_chains=_chains(reply))
        for name, reply in replies.items()
    }
    return {**facts, **read}


def _chains(reply: Reply) -> tuple[FirewallChain, ...] | None:
    answer = command_answer(reply, _KEY)
    return None if isinstance(answer, str) or not answer.good else parse_ruleset(answer.text)
