"""A network over the ranks: cut into shards, filled with rank 0's weights, and proven to be so."""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn.parallel import DistributedDataParallel

from train import versions
from train.config.config import Config
from train.errors import ConfigError, ModelError
from train.model import kinds
from train.model.load import base_of

SEPARATE_EXPERT = re.compile(r"experts\.\d+\.")


def shard(
    network: nn.Module, mesh: DeviceMesh, config: Config, dtype: torch.dtype
) -> tuple[str, ...]:
    """Cut the model into shards: a group a layer, one for the ends, one for what remains."""
    base = base_of(network)
    name = type(base).__name__  # FSDP gives classes other names
    policy = MixedPrecisionPolicy(
        param_dtype=None if dtype == torch.float32 else dtype, reduce_dtype=torch.float32
    )
    how: dict[str, Any] = {"mesh": mesh, "mp_policy": policy}
    layers = _layers(base)
    for layer in layers:
        fully_shard(layer, reshard_after_forward=config.reshard_after_forward, **how)
    first, last = base.get_input_embeddings(), base.get_output_embeddings()
    ends = [module for module in (_final_norm(base), last) if module is not None]
    if first.weight is last.weight:
        # A shared weight must be in one group; the first module's hook is what gathers it.
        fully_shard([first, *ends], reshard_after_forward=False, **how)
    else:
        fully_shard(first, reshard_after_forward=config.reshard_after_forward, **how)
        fully_shard(ends, reshard_after_forward=False, **how)
    fully_shard(network, **how)
    for module in network.modules():
        if isinstance(module, FSDPModule):
            # Sums, so that the loss divides by the tokens of all ranks; and a plain sum, because
            # gloo has no other and NCCL's scaled one loses bfloat16 gradients (pytorch#190745).
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            # Experts that are modules of their own may get no token on one rank and some on
            # another: ranks would bring gradients of different sizes to one reduction.
            if hasattr(module, "set_reduce_scatter_unused_params"):  # since torch 2.13
                module.set_reduce_scatter_unused_params(True)
            else:
                _refuse_separate_experts(network)
    if layers:
        return ()
    remark = (
        f"{name} does not say what its layers are (_no_split_modules): all of it is one FSDP "
        "group, gathered whole in every pass"
    )
    return (remark,)


def _refuse_separate_experts(network: nn.Module) -> None:
    """Refuse trained experts that this torch would reduce by different sizes on each rank."""
    needed = versions.TABLE["torch"].tested
    for name, parameter in network.named_parameters():
        if parameter.requires_grad and SEPARATE_EXPERT.search(name):
            problem = (
                f"parallel: expected torch >= {needed} to shard trained experts that are modules "
                f"of their own ({name}), found {torch.__version__}"
            )
            raise ConfigError(problem, hint=versions.install(torch=needed))


def _layers(base: Any) -> list[nn.Module]:
    """Return what is gathered and let go as one, by what transformers says must stay together.

    A model within another one, as that of the text, may say it for its own layers only.
    """
    names = {name for m in base.modules() for name in getattr(m, "_no_split_modules", None) or ()}
    return [module for module in base.modules() if type(module).__name__ in names]


def _final_norm(base: Any) -> nn.Module | None:
    """Return the norm before the head: the last child of the backbone that is called one."""
    children: list[nn.Module] = list(base.base_model.children())
    norms = [m for m in children if "norm" in type(m).__name__.lower()]
    return norms[-1] if norms else None


def distribute(network: nn.Module, source: nn.Module | None) -> None:
    """Give every rank its part of rank 0's weights, and rank 0's buffers whole.

    Buffers that no state dict holds (rotary frequencies) would stay noise after `to_empty`, without
    an error.
    """
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(network, source.state_dict() if source else {}, options=options)
    theirs = dict(source.named_buffers()) if source else {}
    for name, buffer in network.named_buffers():
        if source:
            buffer.copy_(theirs[name])
        dist.broadcast(buffer, src=0)


@torch.no_grad()
def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, which shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def sharded_as(parameter: Tensor, part: Tensor) -> Tensor:
    """Return a part as a tensor that is sharded as a parameter is; they share the memory."""
    if not isinstance(parameter, DTensor):
        return part
    return DTensor.from_local(
        part,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def local_shard(whole: Tensor, like: Tensor) -> Tensor:
    """Return the part of a whole tensor that this rank has of a parameter."""
    if isinstance(like, DTensor):
        sizes, starts = compute_local_shape_and_global_offset(
            like.shape, like.device_mesh, like.placements
        )
        for dim, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            whole = whole.narrow(dim, start if size else 0, size)
    return whole


def verify_sharded(network: nn.Module, layout: str) -> None:
    """Refuse a model with a part that would train alone; loading is strict about missing ones."""
    if layout in {"ddp", "single"}:
        return
    alone = [
        name
        for name, parameter in network.named_parameters()
        if parameter.requires_grad and not isinstance(parameter, DTensor)
    ]
    if alone:
        message = (
            f"{alone[0]}: expected every trained parameter sharded, found this one ordinary "
            f"(and {len(alone) - 1} others): each rank would train its own"
        )
        raise ModelError(message)


def replicate(
    network: nn.Module, config: Config, device: torch.device, dtype: torch.dtype
) -> DistributedDataParallel:
    """Return what sums the gradients of ranks that hold the whole model each."""
    return DistributedDataParallel(
        network,
        device_ids=[device.index] if device.type == "cuda" else None,
        # Each rank has read the same files and drawn the same adapters.
        init_sync=False,
        **_no_sync_of_buffers(),
        gradient_as_bucket_view=True,
        find_unused_parameters=_may_skip_weights(config, network, dtype),
    )


def _may_skip_weights(config: Config, network: nn.Module, dtype: torch.dtype) -> bool:
    """Return whether a step may give a trained weight no gradient: DDP would wait for it.

    An expert may get no token on a rank. Some models have weights that they never use.
    """
    if config.trust_remote_code or "routed experts" in kinds.count(network).trained:
        return True
    trained = [p for p in network.parameters() if p.requires_grad]
    device = trained[0].device
    tokens = torch.arange(2, device=device).unsqueeze(0)
    with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
        output = network(input_ids=tokens, use_cache=False)
    output.logits.float().sum().backward()
    skipped = any(weight.grad is None for weight in trained)
    network.zero_grad(set_to_none=True)
    return skipped


def _no_sync_of_buffers() -> dict[str, Any]:
    """Return DDP's argument that leaves buffers alone, whose name depends on torch's version."""
    known = inspect.signature(DistributedDataParallel).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    return {name: False}
