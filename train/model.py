"""The model: loaded once, given its adapters, cut into shards, and proven to be what we think.

The order is the only one that works: adapters, activation checkpointing, shards, storage, weights,
buffers. Adapters put on a sharded model would train unsynchronised on each rank without an error.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from train.batches import MULTIPLE
from train.config import ConfigError
from train.head import Head
from train.mistakes import room_for, unusable
from train.samples import IGNORED
from train.skeleton import EVERY, count_targets, refuse_shared_head

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from torch.distributed.device_mesh import DeviceMesh

    from train.config import Config
    from train.ranks import Ranks


class ModelError(Exception):
    """The model cannot be trained as asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Sums over the tokens of one forward pass; sums add up, means do not."""

    total: Tensor
    correct: Tensor
    """Tokens that the model would have said itself; counted in evaluation only."""


class Model:
    """A causal language model on this rank: its shard, its forward pass, what of it is trained."""

    def __init__(
        self,
        network: nn.Module,
        forward: nn.Module,
        layout: str,
        mesh: DeviceMesh,
        dtype: torch.dtype,
        remarks: tuple[str, ...],
    ) -> None:
        self.remarks = remarks
        """What a person should know of it."""
        self.network = network
        """The model itself (a PeftModel for LoRA), with the names that checkpoints use."""
        self.layout = layout
        self.mesh = mesh
        self.trained = {n: p for n, p in network.named_parameters() if p.requires_grad}
        """Name → parameter, of everything that the optimizer may change."""
        self._forward = forward
        self._device = next(iter(self.trained.values())).device
        self._head = Head(_base(network).get_output_embeddings())
        # FSDP casts by its own policy; the other layouts leave it to autocast.
        self._dtype = dtype if layout in {"single", "ddp"} else torch.float32

    def loss(self, input_ids: Tensor, labels: Tensor, position_ids: Tensor | None) -> Loss:
        """Run the model forward and add up the cross entropy of the labels that count.

        Args:
            input_ids: Tokens, one row a sample.
            labels: The same shape; the label at a place belongs to the token at that place.
            position_ids: Positions that start anew with each packed document.
        """
        following = functional.pad(labels[:, 1:], (0, 1), value=IGNORED).flatten()
        kept = (following != IGNORED).nonzero().squeeze(1)
        self._head.set(self._brought(kept), self._brought(following[kept]))
        total, correct = self._head.sums(self._run(input_ids, position_ids))
        return Loss(total=total, correct=correct)

    @torch.no_grad()
    def try_head(self) -> None:
        """Find out whether the model gives the head's output back as it is; all ranks call this.

        Some models scale or cap their logits afterwards: those need them whole.
        """
        if self._head.whole:
            return
        self._head.whole = True
        tokens = torch.arange(8).unsqueeze(0)
        everything = torch.arange(8, device=self._device)
        self._head.set(everything, everything)
        output = self._run(tokens, None)
        assert self._head.raw is not None
        self._head.whole = not torch.equal(output, self._head.raw)
        for module in self.network.modules():
            if isinstance(module, FSDPModule):
                # Without a backward pass gathered weights would stay, and hide a checkpoint's.
                module.reshard()

    def _run(self, input_ids: Tensor, position_ids: Tensor | None) -> Tensor:
        extra = {}
        if position_ids is not None:
            extra["position_ids"] = self._brought(position_ids)
        low = self._dtype != torch.float32
        with torch.autocast(self._device.type, dtype=self._dtype, enabled=low):
            output = self._forward(input_ids=self._brought(input_ids), use_cache=False, **extra)
        return cast("Tensor", output.logits)

    def _brought(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the device; from pinned memory, or the copy would wait for the GPU."""
        if self._device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)

    @contextmanager
    def only_last_synchronises(self, *, last: bool) -> Iterator[None]:
        """Hold the gradients' communication back until the last micro-batch of a step.

        Raises:
            ConfigError: The micro-batch needs more memory than there is.
        """
        held_back: AbstractContextManager[Any] = nullcontext()
        if isinstance(self._forward, FSDPModule):
            self._forward.set_requires_gradient_sync(last)
        elif isinstance(self._forward, DistributedDataParallel) and not last:
            held_back = self._forward.no_sync()
        with room_for("the batch"), held_back:
            yield

    @property
    def vocabulary(self) -> int:
        """How many tokens it has embeddings for."""
        return int(_base(self.network).get_input_embeddings().weight.shape[0])

    @property
    def gradient_factor(self) -> float:
        """What gradients must be multiplied by to be sums over ranks: DDP takes means."""
        return float(self.mesh.size()) if self.layout == "ddp" else 1.0

    @property
    def copies(self) -> int:
        """How many ranks hold the same part of a gradient."""
        match self.layout:
            case "ddp":
                return self.mesh.size()
            case "hsdp":
                return self.mesh.size(0)
            case _:
                return 1


def build(config: Config, ranks: Ranks, folder: Path, layout: str) -> Model:
    """Load, adapt, shard and fill the model; every rank must call this.

    Args:
        config: What to load and to train.
        ranks: All ranks.
        folder: The base model's folder on this node.
        layout: From `train.layout`.

    Raises:
        ConfigError: The model cannot be loaded, or lacks weights, on every rank; or there is no
            room for it on this one.
        ModelError: A part of it is not sharded, not filled, or cannot be.
    """
    disable_progress_bar()  # type: ignore[no-untyped-call]
    mesh = ranks.mesh(layout)
    dtype = compute_dtype(config, ranks.device)
    with room_for("the base model"):
        network, remarks = _laid_out(config, ranks, folder, layout, mesh)
    forward = network
    if layout == "ddp":
        ids = [ranks.device.index] if ranks.device.type == "cuda" else None
        forward = DistributedDataParallel(
            network, device_ids=ids, broadcast_buffers=False, gradient_as_bucket_view=True
        )
    model = Model(network, forward, layout, mesh, dtype, remarks)
    model.try_head()
    return model


def _laid_out(
    config: Config, ranks: Ranks, folder: Path, layout: str, mesh: DeviceMesh
) -> tuple[nn.Module, tuple[str, ...]]:
    """Return the model with its weights, sharded as the layout says, and remarks on that."""
    dtype = compute_dtype(config, ranks.device)
    source = _loaded(config, ranks, folder, dtype)
    if layout == "single":
        return cast("nn.Module", source).to(ranks.device), ()
    with torch.device("meta"):
        network = _network(config, folder, dtype)
    remarks = () if layout == "ddp" else _shard(network, mesh, config, dtype)
    network.to_empty(device=ranks.device)
    _base(network).tie_weights()
    _fill(network, source)
    prove(network, layout)
    return network, remarks


def _loaded(config: Config, ranks: Ranks, folder: Path, dtype: torch.dtype) -> nn.Module | None:
    """Return the model with its weights on rank 0; the others wait, and hear what went wrong.

    A large model takes longer to read than a collective of the training may take.
    """
    source, problem = None, None
    if ranks.is_first:
        try:
            source = _network(config, folder, dtype)
        except ConfigError as error:
            problem = error
        except (ImportError, OSError, RuntimeError, SafetensorError, ValueError) as error:
            problem = unusable(config, folder, error)
            problem.__cause__ = error
    (said, *_) = ranks.gather((problem.problems, problem.hint) if problem else None, ranks.storage)
    if said:
        raise problem or ConfigError(said[0], hint=said[1])
    return source


def _network(config: Config, folder: Path, dtype: torch.dtype) -> nn.Module:
    """Make the model with its adapters: with weights, or without any under a meta device."""
    bare = torch.empty(0).is_meta
    trust = config.trust_remote_code
    shape = AutoConfig.from_pretrained(folder, trust_remote_code=trust, local_files_only=True)
    shape.use_cache = False
    how: dict[str, Any] = {
        # What is trained stays in float32: small updates would vanish in bfloat16.
        "dtype": torch.float32 if config.method == "full" else dtype,
        "attn_implementation": config.attn_implementation,
        "trust_remote_code": trust,
    }
    if bare:
        network = AutoModelForCausalLM.from_config(shape, **how)  # type: ignore[no-untyped-call]
    else:
        how["output_loading_info"] = True
        network, found = cast(
            "tuple[Any, dict[str, Any]]",
            AutoModelForCausalLM.from_pretrained(
                folder, config=shape, local_files_only=True, **how
            ),
        )
        if lacking := sorted(found["missing_keys"]):
            # transformers makes them up, with a warning among many.
            raise ValueError(f"{lacking[0]} is in no file (and {len(lacking) - 1} others)")
    _refuse_too_long(config, network)
    if config.method == "lora":
        if config.lora_target_modules != EVERY:
            count_targets(config, [name for name, _ in network.named_modules()])
            refuse_shared_head(config, network)
        network = get_peft_model(network, lora(config))
    network.train()
    if config.activation_checkpointing:
        # Before the shards, so that recomputing is inside what FSDP gathers.
        # transformers before 5.23 knows the old name only.
        model = _base(network)
        enable = getattr(model, "activation_checkpointing_enable", None)
        (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
    return cast("nn.Module", network)


def _refuse_too_long(config: Config, network: Any) -> None:  # noqa: ANN401  (as in _base)
    """Refuse rows that are longer than a model which learns each position by itself (GPT-2) knows.

    It would look beyond its table, and a GPU says of that no more than that an assertion failed.

    Raises:
        ConfigError: They are.
    """
    known = getattr(network.config, "max_position_embeddings", None) or 0
    words = network.get_input_embeddings()
    tables = [m for m in network.modules() if isinstance(m, nn.Embedding) and m is not words]
    if not known or all(table.num_embeddings < known for table in tables):
        return
    most = known // MULTIPLE * MULTIPLE  # rows are filled up
    if config.seq_len > most:
        message = f"seq_len: wanted at most {most}, since {config.name_or_path} has learned {known}"
        raise ConfigError((f"{message} positions, found {config.seq_len}",))


def lora(config: Config) -> LoraConfig:
    """Return the adapters' shape as PEFT writes it down."""
    targets = config.lora_target_modules
    return LoraConfig(
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules="all-linear" if targets == EVERY else list(targets),
        base_model_name_or_path=config.name_or_path,
        task_type="CAUSAL_LM",
    )


def compute_dtype(config: Config, device: torch.device) -> torch.dtype:
    """Return the numbers that matrix products are done in."""
    if config.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return cast("torch.dtype", getattr(torch, config.dtype))


def _base(network: nn.Module) -> Any:  # noqa: ANN401  (transformers' classes have no types)
    """Return the transformers model inside the adapters, if there are any."""
    inner = getattr(network, "get_base_model", None)
    return inner() if inner else network


def _shard(
    network: nn.Module, mesh: DeviceMesh, config: Config, dtype: torch.dtype
) -> tuple[str, ...]:
    """Cut the model into shards: a group a layer, one for the ends, one for what remains."""
    base = _base(network)
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
    if layers:
        return ()
    remark = (
        f"{name} does not say what its layers are (_no_split_modules): all of it is one FSDP "
        "group, gathered whole in every pass"
    )
    return (remark,)


def _layers(base: Any) -> list[nn.Module]:  # noqa: ANN401  (as in _base)
    """Return what is gathered and let go as one, by what transformers says must stay together."""
    names = set(getattr(base, "_no_split_modules", None) or ())
    return [module for module in base.modules() if type(module).__name__ in names]


def _final_norm(base: Any) -> nn.Module | None:  # noqa: ANN401  (as in _base)
    """Return the norm before the head: the last child of the backbone that is called one."""
    children: list[nn.Module] = list(base.base_model.children())
    norms = [m for m in children if "norm" in type(m).__name__.lower()]
    return norms[-1] if norms else None


def _fill(network: nn.Module, source: nn.Module | None) -> None:
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


def prove(network: nn.Module, layout: str) -> None:
    """Refuse a model with a part that would train alone; loading is strict about missing ones."""
    if layout == "ddp":
        return
    alone = [
        name
        for name, parameter in network.named_parameters()
        if parameter.requires_grad and not isinstance(parameter, DTensor)
    ]
    if alone:
        message = (
            f"{alone[0]}: wanted every trained parameter sharded, found this one ordinary "
            f"(and {len(alone) - 1} others): each rank would train its own"
        )
        raise ModelError(message)
