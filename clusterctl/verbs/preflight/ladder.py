"""`check --deep`: rungs that build on each other, tried by the job's own torch on all nodes."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clusterctl.checks.gpu.planned import NVIDIA, planned_devices
from clusterctl.facts.answers import Answer
from clusterctl.facts.gpu.accelerators import BUS_ORDER, ORDER
from clusterctl.facts.ladder import Ladder
from clusterctl.facts.network.nccl_log import parse_nccl
from clusterctl.facts.network.pairwise import Collective, PairRate
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.model.from_json import DocumentError, from_json
from clusterctl.network.choice import Network, environment
from clusterctl.plan.container import trial_words
from clusterctl.transport.interface import Reply, Request
from clusterctl.values import dataclass
from clusterctl.verbs.events import Emit
from clusterctl.verbs.preflight.job_check import command_answer
from clusterctl.verbs.rpc import Nodes, call_all
from clusterctl.wire import plain

JOIN_SECONDS = 45.0
"""For torch to be imported everywhere and the nodes to find each other."""
LIMIT_S = 240.0
"""For the whole ladder. Each rung has a limit of its own, so a hang ends sooner."""
PROGRAM = (
    "clusterctl.wire", "clusterctl.node.agent.child_tasks", "clusterctl.node.probe.trial.dcgm",
    "clusterctl.node.probe.trial.device_time", "clusterctl.node.probe.trial.gpu_trial",
    "clusterctl.node.probe.trial.nccl_lines", "clusterctl.node.probe.trial.job_collective",
    "clusterctl.node.probe.trial.job_ladder",
)  # fmt: skip
MAIN = "clusterctl.node.probe.trial.job_ladder:main"
DEVICE = "cuda"
"""Where the rungs of the GPUs are tried, as torch calls it."""
ACROSS = frozenset({"sum", "across"})
ON_GPUS = frozenset({"gpus", "dcgm", "inside"})
LIMITS = {"sum": 40.0, "gpus": 40.0, "dcgm": 40.0, "inside": 40.0, "across": 60.0}
"""Seconds that a child of each rung may take."""
RUNGS = ("sum", "gpus", "dcgm", "inside", "across")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Climb:
    """What the nodes that take part have in common."""

    cluster: Cluster
    network: Network
    names: tuple[str, ...]
    rungs: tuple[str, ...]
    rails: int
    """GPUs that every node has."""


def climb_ladder(
    cluster: Cluster, pool: Nodes, facts: Mapping[str, NodeFacts], network: Network, *, emit: Emit
) -> dict[str, NodeFacts]:
    """Let every node with torch and an address take part; return the facts with what it tried."""
    able = [node for node in cluster.nodes if _is_able(facts[node.name], network)]
    gpus = {node.name: _gpus(facts[node.name], cluster) for node in able}
    rungs = tuple(
        rung
        for rung in RUNGS
        if (rung not in ACROSS or len(able) > 1) and (rung not in ON_GPUS or any(gpus.values()))
    )
    if cluster.master not in able or not rungs:
        return dict(facts)
    climb = _Climb(
        cluster=cluster,
        network=network,
        names=tuple(node.name for node in able),
        rungs=rungs,
        rails=min(map(len, gpus.values())),
    )
    requests = {
        node.name: _request(climb, node, facts[node.name], gpus[node.name]) for node in able
    }
    phase = "trying GPUs and network"
    replies = call_all(pool, requests, phase=phase, timeout=LIMIT_S + 30.0, emit=emit)
    return {**facts, **{name: _known(facts[name], replies[name], climb) for name in replies}}


def _is_able(facts: NodeFacts, network: Network) -> bool:
    return facts.node in network.nodes and bool(facts.python and facts.python.torch_build)


def _gpus(facts: NodeFacts, cluster: Cluster) -> list[int]:
    return [gpu.index for gpu in planned_devices(facts, cluster)]


def _request(climb: _Climb, node: Node, facts: NodeFacts, gpus: list[int]) -> Request:
    assert facts.python is not None
    job = climb.cluster.job
    chosen = environment(climb.network.nodes[node.name], facts)
    settings = [*((v.name, v.value) for v in chosen), (ORDER, BUS_ORDER), *job.env]
    if node.gpus_wanted == 0:
        settings.append(("CUDA_VISIBLE_DEVICES", ""))
    nvidia = facts.gpus is not None and facts.gpus.tool == NVIDIA
    plan = {
        "rank": climb.names.index(node.name),
        "world": len(climb.names),
        "address": climb.network.master_address,
        "port": climb.network.master_port,
        "join_s": JOIN_SECONDS,
        "limit_s": LIMIT_S,
        "limits": LIMITS,
        "device": DEVICE,
        "gpus": gpus,
        "rails": climb.rails,
        "dcgm": nvidia and bool(gpus),
        "rungs": list(climb.rungs),
    }
    command: dict[str, Any] = {
        "key": "ladder",
        "container": trial_words(climb.cluster, facts, [name for name, _ in settings]),
        "argv": [facts.python.executable, "-c", MAIN, json.dumps(plan)],
        "modules": list(PROGRAM),
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


def _known(facts: NodeFacts, reply: Reply, climb: _Climb) -> NodeFacts:
    """Return the facts of a node with what it tried."""
    answer = command_answer(reply, "ladder")
    if isinstance(answer, str):
        return _unknown(facts, answer)
    found = _last_document(answer)
    if not found:
        return _unknown(facts, answer.why())
    try:
        blamed = [climb.names[rank] for rank in found.pop("blamed", ())]
        ranks = [dict(rank) for rank in found.pop("rails", ())]
        rails = [_rail(rank) for rank in ranks] if climb.rails else []
        inside = [_with_transport(rank) for rank in found.pop("inside", ())]
        told = {**found, "blamed": blamed, "inside": inside, "rails": rails}
        ladder = from_json(Ladder, told, "ladder")
        summed = _collective(found["sum"], climb.names) if "sum" in found else None
        across = _together([_collective(rank, climb.names) for rank in ranks])
    except (AttributeError, DocumentError, IndexError, TypeError, ValueError) as error:
        return _unknown(facts, str(error))
    if summed is None and "sum" in climb.rungs:
        summed = Collective(error=ladder.error or answer.why())
    if summed is not None and across is not None:
        summed = replace(summed, pairs=across.pairs)
    if not ladder.error and answer.state != "ok":
        ladder = replace(ladder, error=answer.why())
    on_gpus = across is not None and (climb.rails or not across.right)
    return replace(facts, ladder=ladder, collective=summed, across=across if on_gpus else None)


def _with_transport(rank: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a rank with what NCCL's lines say."""
    lines = from_json(tuple[str, ...], rank.get("nccl", []), "nccl")
    return {**rank, "transport": plain(parse_nccl(lines))}


def _rail(rank: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a rail, with its fastest pair instead of each."""
    known = [pair[1] for pair in _pairs(rank) if pair is not None]
    return {**_with_transport(rank), "fastest_gbps": max(known, default=None)}


def _pairs(rank: Mapping[str, Any]) -> tuple[tuple[float, float] | None, ...]:
    """Return by rank the seconds of a round trip and Gb/s to it; None: not tried."""
    pairs: tuple[tuple[float, float] | None, ...] = from_json(
        tuple[tuple[float, float] | None, ...], rank.get("pairs", []), "pairs"
    )
    return pairs


def _together(rails: list[Collective]) -> Collective | None:
    """Return what the GPUs of a node reached at the same time."""
    if not rails:
        return None
    first, *others = rails
    pairs = []
    for rate in first.pairs:
        to = [rate, *(one for rail in others for one in rail.pairs if one.peer == rate.peer)]
        if len(to) == len(rails):
            trips = min(one.round_trip_s for one in to)
            gbps = sum(one.gbps for one in to)
            pairs.append(PairRate(peer=rate.peer, round_trip_s=trips, gbps=gbps))
    return Collective(
        backend=next((rail.backend for rail in rails if rail.backend), ""),
        right=all(rail.right for rail in rails),
        gbps=sum(rail.gbps for rail in rails),
        error=next((rail.error for rail in rails if rail.error), ""),
        block_bytes=first.block_bytes,
        pairs=tuple(pairs),
    )


def _unknown(facts: NodeFacts, why: str) -> NodeFacts:
    return replace(facts, ladder=Ladder(error=why), collective=Collective(error=why))


def _last_document(answer: Answer) -> dict[str, Any]:
    """Return what the node printed last; it prints all that it knows after each rung."""
    for line in reversed(answer.text.splitlines()):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    return {}


def _collective(found: Mapping[str, Any], names: tuple[str, ...]) -> Collective:
    summed: Collective = from_json(Collective, {**found, "pairs": []}, "sum")
    pairs = zip(names, _pairs(found), strict=False)
    rates = (
        PairRate(peer=peer, round_trip_s=pair[0], gbps=pair[1]) for peer, pair in pairs if pair
    )
    return replace(summed, pairs=tuple(rates))
