"""How a model is laid over the ranks: as the configuration says, or as nodes and memory suggest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from train.config.config import Config
from train.distributed import host_memory
from train.distributed.process_group import Ranks
from train.errors import ConfigError, ModelError
from train.model import memory
from train.model.kinds import Weights
from train.model.load import compute_dtype
from train.model.memory import GIB, HostMemory

USABLE = 0.9
"""Of a device's memory: an estimate is none too exact, and memory fragments."""
KEEPABLE = 0.6
"""The same, for what is only worth it if there is plenty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a model is laid over the ranks: fsdp, hsdp, ddp or single."""

    name: str
    remarks: tuple[str, ...] = ()
    """What the user should know, if it is not the usual."""
    reshards: bool = True
    """Whether a layer's gathered weights are freed after its forward pass."""
    defers: bool = True
    """Whether gradients are reduced after a step's last micro-batch only; until then FSDP holds
    them whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a layout is chosen by."""

    config: Config
    ranks: Ranks
    folder: Path
    weights: Weights


def choose(config: Config, ranks: Ranks, folder: Path, weights: Weights) -> Layout:
    """Choose a layout, the same on every rank; all raise if a node has too little memory."""
    plan = Plan(config=config, ranks=ranks, folder=folder, weights=weights)
    chosen = _pick(plan)
    remarks = (*chosen.remarks, *_exact_experts(plan, chosen.name))
    remarks += _look_at_host_memory(plan, chosen.name)
    reshards = _reshards(plan, chosen.name)
    plan = replace(plan, config=replace(config, reshard_after_forward=reshards))
    return replace(chosen, reshards=reshards, defers=_defers(plan, chosen.name), remarks=remarks)


def _pick(plan: Plan) -> Layout:
    config, ranks = plan.config, plan.ranks
    counts = ranks.on_nodes()
    size = ranks.env.world_size
    if config.parallel == "single" and size > 1:
        message = f"parallel: expected one process for single, found {size}\nhint: parallel: auto"
        raise ModelError(message)
    if config.parallel != "auto":
        return Layout(name=config.parallel)
    if size == 1:
        # FSDP casts each layer's weights once; autocast would keep the hidden states in float32,
        # and leave routed experts in it.
        low = config.method == "full" and compute_dtype(config, ranks.device) != torch.float32
        return Layout(name="fsdp" if low else "single")
    if len(counts) == 1:
        return Layout(name="fsdp")
    if len(set(counts.values())) > 1:
        shape = ", ".join(f"{node}: {count}" for node, count in counts.items())
        return Layout(
            name="fsdp",
            remarks=(f"flat FSDP over all ranks, because nodes differ in ranks ({shape})",),
        )
    return _repeated(plan, local=size // len(counts))


def _exact_experts(plan: Plan, name: str) -> tuple[str, ...]:
    """Remark on routed experts that autocast does not reach: their product is no linear layer."""
    low = compute_dtype(plan.config, plan.ranks.device) != torch.float32
    if plan.config.method == "lora" or not low or name not in {"single", "ddp"}:
        return ()
    if "routed experts" not in plan.weights.trained:
        return ()
    return (f"{name} computes the routed experts in float32; parallel: fsdp in bfloat16",)


def _repeated(plan: Plan, *, local: int) -> Layout:
    """Repeat the model over nodes, if its part has room on each rank; else shard it over all."""
    ranks = plan.ranks
    rows = enumerate(ranks.gather(_no_room(plan, shards=local, usable=USABLE)))
    lacking = [(rank, why) for rank, why in rows if why]
    if not lacking:
        return Layout(name="hsdp")
    rank, why = lacking[0]
    of = f"nodes of {local} ranks" if local > 1 else "nodes of one rank"
    remark = (
        f"flat FSDP over {of} each: every layer's weights cross the network in every pass, because "
        f"a node's share of the model does not fit on rank {rank} on {ranks.hosts[rank]}: {why}; "
        "set parallel: hsdp to replicate it anyway"
    )
    return Layout(name="fsdp", remarks=(remark,))


def _reshards(plan: Plan, name: str) -> bool:
    """Say whether layers are gathered again for the backward pass: one more time over the network.

    Where the ranks did not agree on it, they would wait for each other forever.
    """
    config, ranks = plan.config, plan.ranks
    if config.reshard_after_forward is not None:
        return config.reshard_after_forward
    shards = _shards(ranks, name)
    if name in {"single", "ddp"}:
        return True
    keeping = replace(plan, config=replace(config, reshard_after_forward=False))
    # A rank that holds everything itself has nothing to gather.
    lacking = shards == 1 or _no_room(keeping, shards=shards, usable=KEEPABLE)
    return any(ranks.gather(bool(lacking)))


def _defers(plan: Plan, name: str) -> bool:
    """Say whether gradients are summed up whole over a step, which saves reductions.

    Those of adapters are small. Those of all weights take four bytes each on every rank.
    """
    if plan.config.method == "lora" or name in {"single", "ddp"}:
        return True
    shards = _shards(plan.ranks, name)
    lacking = _no_room(plan, shards=shards, usable=KEEPABLE, defers=True)
    return not any(plan.ranks.gather(bool(lacking)))


def _shards(ranks: Ranks, name: str) -> int:
    """Return over how many ranks a layout cuts the weights."""
    if name in {"single", "ddp"}:
        return 1
    return ranks.env.local_world_size if name == "hsdp" else ranks.env.world_size


def _look_at_host_memory(plan: Plan, name: str) -> tuple[str, ...]:
    """Refuse nodes without memory for their ranks' weights; warn of those that may run short."""
    ranks = plan.ranks
    rows = ranks.gather((_on_host(plan, name), host_memory.available()))
    remarks = []
    for rank in ranks.leaders:
        need, left = rows[rank]
        node, has = ranks.hosts[rank], f"{memory.size_in_words(left)} available"
        if need is None:
            continue  # a model that cannot be read is refused when it is
        if need.certain > left:
            wanted = f"{memory.size_in_words(need.certain)} for its ranks' weights"
            problem = f"host memory on {node}: expected {wanted} and for reading them, found {has}"
            raise ConfigError(problem, hint=memory.MORE_ROOM)
        if (total := need.total - need.libraries) > left:  # libraries are loaded by now
            takes = f"its ranks take about {memory.size_in_words(total)}"
            remarks.append(f"host memory on {node}: {takes}, {has}: the kernel may end them")
    return tuple(remarks)


def _on_host(plan: Plan, name: str) -> HostMemory | None:
    """Return what this node's ranks take of its memory; None if the model cannot be read."""
    local, gpu = plan.ranks.env.local_world_size, plan.ranks.device.type == "cuda"
    shards = _shards(plan.ranks, name)
    try:
        shape = memory.shape(plan.folder)
    except (OSError, ValueError):
        return None
    need = memory.memory(plan.config, shape, plan.weights, shards=shards, gpu=gpu)
    return memory.host_memory(plan.config, shape, need, shards=shards, local=local, gpu=gpu)


def _no_room(plan: Plan, *, shards: int, usable: float, defers: bool | None = None) -> str:
    """Return why a rank's part of the training has no room on this device; nothing if it has."""
    ranks = plan.ranks
    gpu = ranks.device.type == "cuda"
    if gpu:
        room = float(torch.cuda.get_device_properties(ranks.device).total_memory)
    else:  # shared by the ranks of the host
        room = host_memory.physical() / ranks.env.local_world_size
    try:
        shape = memory.shape(plan.folder)
        need = memory.memory(
            plan.config, shape, plan.weights, shards=shards, gpu=gpu, defers=defers
        )
    except (OSError, ValueError) as error:
        return f"its size cannot be read ({type(error).__name__}: {error})"
    if need.total <= usable * room:
        return ""
    return f"expected {need.words()}, found {room / GIB:.1f} GiB"
