"""`check --deep`: one collective across all nodes, as the job's own torch does it."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Any

from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.values.pairwise import Collective, PairRate
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.network.choice import Network
from clusterctl.network.environment import environment
from clusterctl.transport.interface import Reply, Request
from clusterctl.verbs.events import Event
from clusterctl.verbs.preflight.job_check import command_answer
from clusterctl.verbs.rpc import Nodes, call_all

JOIN_SECONDS = 45.0
"""For torch to be imported everywhere and the nodes to find each other."""
LIMIT_S = 90.0


def run_collective(
    cluster: Cluster, pool: Nodes, facts: Mapping[str, NodeFacts], network: Network
) -> Generator[Event, None, dict[str, NodeFacts]]:
    """Let every node that has torch and an address take part; with fewer than two, nobody does.

    Returns:
        The facts, with `collective` of those that took part.
    """
    able = [node for node in cluster.nodes if _is_able(facts[node.name], network)]
    known = dict(facts)
    if len(able) < 2 or cluster.master not in able:  # noqa: PLR2004  (nobody to talk to)
        return known
    requests = {
        node.name: _request(cluster, node, rank, len(able), facts[node.name], network)
        for rank, node in enumerate(able)
    }
    phase = "summing across the nodes"
    replies = yield from call_all(pool, requests, phase=phase, timeout=LIMIT_S + 30.0)
    names = [node.name for node in able]
    for name, reply in replies.items():
        known[name] = replace(known[name], collective=_collective(reply, names))
    return known


def _is_able(facts: NodeFacts, network: Network) -> bool:
    return facts.node in network.nodes and bool(facts.python and facts.python.torch_build)


def _request(
    cluster: Cluster, node: Node, rank: int, world: int, facts: NodeFacts, network: Network
) -> Request:
    assert facts.python is not None
    job = cluster.job
    chosen = environment(network.nodes[node.name], facts)
    settings = [*((v.name, v.value) for v in chosen), *job.env]
    if node.gpus_wanted == 0:
        settings.append(("CUDA_VISIBLE_DEVICES", ""))
    where = [network.master_address, str(network.master_port), str(JOIN_SECONDS)]
    command: dict[str, Any] = {
        "key": "collective",
        "argv": [facts.python.executable, "-c", str(rank), str(world), *where],
        "source": "clusterctl.node.probe.job_collective",
        "source_at": 2,
        "limit_s": LIMIT_S,
        "cwd": "/",
        "job": {
            "env": [[name, value, "asked"] for name, value in settings],
            "env_init": job.env_init,
            "workdir": "/",
        },
    }
    return Request(op="read", args={"commands": [command]})


def _collective(reply: Reply, names: list[str]) -> Collective:
    answer = command_answer(reply, "collective")
    if isinstance(answer, str):
        return Collective(error=answer)
    lines = answer.text.strip().splitlines()
    try:
        result = json.loads(lines[-1])
        return Collective(
            backend=str(result["backend"]),
            right=result["right"] is True,
            gbps=float(result["gbps"]),
            error=str(result["error"]),
            pairs=tuple(
                PairRate(peer=peer, round_trip_s=float(pair[0]), gbps=float(pair[1]))
                for peer, pair in zip(names, result.get("pairs", []), strict=False)
                if pair is not None
            ),
        )
    except (IndexError, KeyError, TypeError, ValueError, RecursionError):
        return Collective(error=answer.why())
