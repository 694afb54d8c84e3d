"""What a training is going to do, in a few lines before its first step."""

from __future__ import annotations

from train.config.batch_size import BatchSize
from train.config.config import Config
from train.data.batches import Batches
from train.distributed.process_group import Ranks
from train.errors import counted
from train.model import kinds
from train.model.kinds import Weights
from train.model.model import Model
from train.model.optimizer import warm_up_steps
from train.model.parallelize import local

RULE = "=" * 80


def banner(
    config: Config,
    ranks: Ranks,
    model: Model,
    size: BatchSize,
    batches: Batches,
    *,
    steps: int,
    step: int,
) -> list[str]:
    """Return the lines that rank 0 prints before the first step."""
    env, weights = ranks.env, kinds.count(model.network)
    hosts = ", ".join(f"{host} ({count})" for host, count in ranks.on_nodes().items())
    alone = env.remark or "no distributed variables are set: a single process"
    start = "" if env.launched else f" ({alone})"
    what = "row" if config.batching == "packed" else "sample"
    what = what if size.total == 1 else f"{what}s"
    tokens = counted(round(batches.tokens_per_step), "token")
    _, held_out = batches.samples
    evaluated = f", {held_out} for evaluation" if held_out else ""
    made = "adapter" if config.method == "lora" else "model"
    done = f", {step} of them done" if step else ""
    if step and step >= steps:
        done += "; to train on, raise max_steps or num_train_epochs"
    if config.warmup_steps > steps:
        warm_up = warm_up_steps(config, steps)
        done += f"; warmup_steps: {config.warmup_steps} is shortened to {warm_up}"
    context = config.context_parallel
    shared = f", {context} ranks share a row (context parallel)" if context > 1 else ""
    return [
        RULE,
        f"Hosts:      {hosts}",
        f"World size: {env.world_size}{start}",
        f"Mesh:       {_mesh(config, model)}{shared} on {ranks.device.type}",
        f"Model:      {config.name_or_path}, {_trained(config, model, weights)}",
        f"Trained:    {weights.words()}",
        f"Data:       {batches.described}{evaluated}",
        *_datasets(config, batches),
        f"Batch:      {size.words()} {what} a step, about {tokens} a step",
        f"Steps:      {steps}{done}",
        f"Output:     {config.output_dir}, {config.save_every.words()}; {made}/ at the end",
        RULE,
    ]


def _datasets(config: Config, batches: Batches) -> list[str]:
    """Return a line for each of several data sets: its share counts tokens of an epoch."""
    if len(config.datasets) == 1 and config.datasets[0].weight == 1:
        return []
    whole = sum(share.weight * tokens for share, tokens in batches.datasets)
    return [
        f"{'':11} {share.weight * tokens / whole:6.1%} of the tokens of an epoch: {each.path}, "
        f"weight {share.weight:g}, {counted(share.samples, 'sample')}, "
        f"{counted(tokens, 'token')}"
        for each, (share, tokens) in zip(config.datasets, batches.datasets, strict=True)
    ]


def _mesh(config: Config, model: Model) -> str:
    kept = "" if config.reshard_after_forward else ", gathered weights kept"
    match model.layout:
        case "single":
            return "one process holds the whole model (single)"
        case "ddp":
            return f"each of {model.mesh.size()} ranks holds the whole model (DDP)"
        case "hsdp":
            nodes, local = model.mesh.shape
            within = f"{nodes} nodes x {local} ranks, sharded in a node"
            return f"{within}, repeated over nodes (HSDP){kept}"
        case _:
            return f"sharded over {model.mesh.size()} ranks (FSDP){kept}"


def _trained(config: Config, model: Model, weights: Weights) -> str:
    how = f"LoRA r={config.lora_r}" if config.method == "lora" else "all weights"
    held = sum(local(parameter).nbytes for parameter in model.network.parameters())
    trained, every = weights.trained_total, weights.total
    return (
        f"{how}: {trained:,} of {every:,} parameters trained ({trained / every:.2%}), "
        f"{held / 2**20:,.0f} MiB of weights on rank 0"
    )
