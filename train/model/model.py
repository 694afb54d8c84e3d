"""The model: loaded once, given its adapters, cut into shards, and proven to be what we think.

The order is the only one that works: adapters, activation checkpointing, shards, storage, weights,
buffers. Adapters put on a sharded model would train unsynchronized on each rank without an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from transformers.utils.logging import disable_progress_bar

from train.config.config import Config
from train.data.encoding import IGNORED
from train.distributed.context import NAME, Context, refusal
from train.distributed.process_group import Ranks
from train.errors import ConfigError, explain_oom
from train.model import adapters, nf4, preference, quantized, slices
from train.model.activations import MASKED
from train.model.chunked_loss import Head
from train.model.layout import Layout
from train.model.load import (
    base_of,
    compute_dtype,
    head_of,
    packing_refusal,
)
from train.model.parallelize import distribute, replicate, shard, verify_sharded

LEAK = {True: 1e-4, False: 5e-2}
"""What another first document may change of a packed row's second, as a share of the largest logit,
in float32 and below: rounding alone changes 3e-7 (Mixtral, on a CPU), a leak 1.4 % and more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Sums over the tokens of one forward pass; sums add up, means do not."""

    total: Tensor
    counted: int
    """Tokens that it is of, on this rank."""
    correct: Tensor
    """Tokens that the model would have said itself, counted in evaluation only; or pairs whose
    chosen text has the higher reward."""
    rewards: Tensor | None = None
    """Of pairs: sums of the chosen texts' and of the rejected texts'."""

    def sums(self) -> Tensor:
        """Return all four without a graph."""
        rewards = self.total.new_zeros(2) if self.rewards is None else self.rewards
        return torch.stack((self.total, self.correct, *rewards)).double().detach()


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
        *,
        flash: bool = False,
        keeps_gathered: bool = False,
        defers: bool = True,
        config: Config | None = None,
        context: Context | None = None,
    ) -> None:
        self.remarks = remarks
        """What the user should know of it."""
        self.network = network
        """The model itself (a PeftModel for LoRA), with the names that checkpoints use."""
        self.layout = layout
        self.mesh = mesh
        self.trained = {n: p for n, p in network.named_parameters() if p.requires_grad}
        """Name → parameter, of everything that the optimizer may change."""
        self.buffers = _untrained(network) if not self.adapter else {}
        """Name → what else a model's files hold, if all of the model is exported: buffers, and
        what is frozen."""
        self._forward = forward
        self._device = next(iter(self.trained.values())).device
        self._head = Head(head_of(network))
        if original := getattr(base_of(network).get_output_embeddings(), "original_module", None):
            self._head.also(original)
        self._pairs = config if config and config.in_pairs else None
        # FSDP casts by its own policy; the other layouts leave it to autocast.
        self._dtype = dtype if layout in {"single", "ddp"} else torch.float32
        self._computes = dtype
        self._context = context
        self._flash = flash
        self._keeps_gathered = keeps_gathered
        self._defers = defers

    def loss(
        self,
        input_ids: Tensor,
        labels: Tensor,
        position_ids: Tensor | None,
        vision: dict[str, Tensor] | None = None,
    ) -> Loss:
        """Run the model forward and add up the cross entropy of the labels that count.

        The label at a place belongs to the token at that place. Positions restart with each packed
        document. `vision` is what the model gets of images, by its own names.
        """
        following = functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
        if self._context:
            input_ids, following, position_ids = self._context.cut(
                input_ids, following, position_ids
            )
        following = following.flatten()
        kept = (following != IGNORED).nonzero().squeeze(1)
        self._head.set(self._to_device(kept), self._to_device(following[kept]))
        run = partial(self._run, input_ids, position_ids, vision or {})
        if self._pairs is None:
            total, correct = self._head.sums(run())
            return Loss(total=total, counted=len(kept), correct=correct)
        counts = kept.div(labels.shape[1], rounding_mode="floor").bincount(minlength=len(labels))
        sums = preference.sums(
            self._pairs, self.network, lambda: self._head.losses(run())[0], counts
        )
        return Loss(total=sums[0], counted=len(kept), correct=sums[1], rewards=sums[2:])

    @torch.no_grad()
    def try_head(self) -> None:
        """Find out whether the model gives the head's output back as it is; all ranks call this.

        Some models scale or cap their logits afterwards: those need them whole.
        """
        # A trained head's gradient in parts is a plain sum, and pairs weigh differently.
        self._head.whole |= self._pairs is not None and self._head.is_trained
        if self._head.whole:
            return
        with self._watched_head():
            output = self._logits(torch.arange(8).unsqueeze(0), None, first=0)
            assert self._head.raw is not None
            whole = not torch.equal(output, self._head.raw)
        self._head.whole = whole

    @torch.no_grad()
    def try_packing(self) -> None:
        """Refuse packed rows if a document changes the logits of the next one; all ranks call this.

        Attention keeps documents apart by their positions. The states of linear attention and
        of state space models run on through a row, and models without positions do not know.
        """
        tokens = torch.arange(24) % self.vocabulary
        positions = torch.cat((torch.arange(8), torch.arange(8))).unsqueeze(0)
        self.network.eval()  # without dropout
        with self._watched_head():
            one, other = (
                self._logits(torch.cat((first, tokens[16:])).unsqueeze(0), positions, first=8)
                for first in (tokens[:8], tokens[8:16])
            )
        self.network.train()
        moved = float((one - other).abs().max() / one.abs().max().clamp_min(1e-9))
        exact = one.dtype == torch.float32 and self._computes == torch.float32
        if moved > LEAK[exact]:
            raise packing_refusal(type(base_of(self.network)).__name__.removeprefix("FSDP"))

    @torch.no_grad()
    def changes_in_context(self, documents: int) -> bool:
        """Return whether rows that are cut over ranks get other logits; all ranks call this."""
        assert self._context
        tokens = torch.arange(16 * self._context.size).repeat(documents).unsqueeze(0)
        places, tokens = tokens, tokens.cumsum(1) % self.vocabulary
        self.network.eval()
        with self._watched_head():
            whole = [self._logits(one, None, first=0) for one in tokens.chunk(documents, 1)]
            wanted = self._context.part(torch.cat(whole).unsqueeze(0))[0]
            mine, _, positions = self._context.cut(tokens, tokens, places)
            found = self._logits(mine, positions, first=0)
            self._context.uncut()
        self.network.train()
        # All of them: one that a rounded router sends to another expert is no reason.
        moved = float((found - wanted).norm() / wanted.norm().clamp_min(1e-9))
        exact = found.dtype == torch.float32 and self._computes == torch.float32
        return moved > LEAK[exact]

    @contextmanager
    def _watched_head(self) -> Iterator[None]:
        """Make all logits whole and keep them, and leave nothing of it behind."""
        whole, self._head.whole, self._head.watched = self._head.whole, True, True
        try:
            yield
        finally:
            self._head.whole, self._head.watched, self._head.raw = whole, False, None
            for module in self.network.modules():
                if isinstance(module, FSDPModule):
                    # Without a backward pass gathered weights would stay, and hide a checkpoint's.
                    module.reshard()

    def _logits(self, tokens: Tensor, positions: Tensor | None, *, first: int) -> Tensor:
        """Return the logits of one row from a place on."""
        places = torch.arange(first, tokens.shape[1], device=self._device)
        self._head.set(places, places)
        return self._run(tokens, positions, {})

    def _run(
        self, input_ids: Tensor, position_ids: Tensor | None, vision: dict[str, Tensor]
    ) -> Tensor:
        extra: dict[str, Any] = {key: self._to_device(value) for key, value in vision.items()}
        if position_ids is not None:
            extra["position_ids"] = self._to_device(position_ids)
        if position_ids is not None and self._flash:
            bounds, longest = document_bounds(position_ids)
            extra |= dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), self._to_device(bounds))
            extra |= dict.fromkeys(("max_length_q", "max_length_k"), longest)
        low = self._dtype != torch.float32
        with torch.autocast(self._device.type, dtype=self._dtype, enabled=low):
            output = self._forward(input_ids=self._to_device(input_ids), use_cache=False, **extra)
        return cast("Tensor", output.logits)

    def _to_device(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the device; from pinned memory, or the copy would wait for the GPU."""
        if self._device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)

    @contextmanager
    def only_last_synchronizes(self, *, last: bool) -> Iterator[None]:
        """Hold the gradients' communication back until the last micro-batch of a step."""
        held_back: AbstractContextManager[Any] = nullcontext()
        if isinstance(self._forward, FSDPModule):
            if self._defers:
                self._forward.set_requires_gradient_sync(last)
            else:  # each rank adds up its own part; over nodes only the sums are exchanged
                self._forward.set_requires_all_reduce(last)
            # The weights are the same until the optimizer's step: gathered once, if there is room.
            self._forward.set_reshard_after_backward(last or not self._keeps_gathered)
        elif isinstance(self._forward, DistributedDataParallel) and not last:
            held_back = self._forward.no_sync()
        with held_back:
            yield

    @property
    def vocabulary(self) -> int:
        """How many tokens it has embeddings for."""
        return int(base_of(self.network).get_input_embeddings().weight.shape[0])

    @property
    def adapter(self) -> dict[str, Any]:
        """The adapters' configuration as PEFT itself saves it, its names resolved; {} without."""
        configs = getattr(self.network, "peft_config", None)
        return {**configs["default"].to_dict(), "inference_mode": True} if configs else {}

    @property
    def scales_loss(self) -> bool:
        """Whether gradients pass through float16."""
        return self._computes == torch.float16

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


def document_bounds(position_ids: Tensor) -> tuple[Tensor, int]:
    """Return where packed documents begin and the last one ends, and the length of the longest.

    Flash attention works with these. If transformers computes them from positions on a GPU, the
    CPU waits for the GPU in every layer.
    """
    starts = (position_ids.flatten() == 0).nonzero().squeeze(1)
    bounds = functional.pad(starts, (0, 1), value=position_ids.numel()).int()
    return bounds, int(bounds.diff().max())


def _untrained(network: nn.Module) -> dict[str, Tensor]:
    """Return a state dict's buffers, such as the bias of a router's choice, and what is frozen."""
    stored = network.state_dict().keys()
    buffers = {name: buffer for name, buffer in network.named_buffers() if name in stored}
    return buffers | {n: p.detach() for n, p in network.named_parameters() if not p.requires_grad}


def build(config: Config, ranks: Ranks, folder: Path, laid: Layout, network: nn.Module) -> Model:
    """Shard and fill the model; every rank must call this.

    `network` has no memory yet: it is from `make_on_meta`. A model that cannot be loaded is a
    ConfigError on every rank; a part that is not sharded or not filled is a ModelError.
    """
    disable_progress_bar()
    mesh = ranks.mesh(laid.name)
    dtype = compute_dtype(config, ranks.device)
    with explain_oom("the base model"):
        network, remarks = _materialized(config, ranks, folder, laid.name, mesh, network)
        if config.masks_attention and ranks.device.type == "cuda":
            remarks += (MASKED,)
        context = None
        if config.context_parallel > 1:
            context = Context(ranks.context(config.context_parallel))
            base_of(network).set_attn_implementation(NAME)
        forward = network
        if laid.name == "ddp":
            forward = replicate(network, config, ranks.device, dtype)
        model = Model(
            network,
            forward,
            laid.name,
            mesh,
            dtype,
            remarks,
            flash=config.flash_attention,
            keeps_gathered=config.reshard_after_forward is False,
            defers=laid.defers,
            config=config,
            context=context,
        )
        model.try_head()
        packed = config.batching == "packed"
        if context and any(ranks.gather(model.changes_in_context(1 + packed))):
            name = type(base_of(network)).__name__.removeprefix("FSDP")
            raise refusal(f"{name}, which says something else of rows that are cut")
        if packed and not context:
            model.try_packing()
    return model


def _materialized(
    config: Config, ranks: Ranks, folder: Path, layout: str, mesh: DeviceMesh, network: nn.Module
) -> tuple[nn.Module, tuple[str, ...]]:
    """Return the model with its weights, sharded as the layout says, and remarks on that."""
    dtype = compute_dtype(config, ranks.device)
    if config.load_in_4bit:
        nf4.refuse_unusable(ranks.device)
    remarks = shard(network, mesh, config, dtype) if layout in {"fsdp", "hsdp"} else ()
    network.to_empty(device=ranks.device)
    base_of(network).tie_weights()
    if problem := slices.load_slices(config, ranks, folder, network):
        if config.load_in_4bit:
            found = f"expected a base that can be read a layer at a time, found {problem}"
            raise ConfigError(f"load_in_4bit: {found}", hint="load_in_4bit: false")
        quantized.refuse_whole(folder / "config.json", config.name_or_path, problem)
        if layout == "single":
            network.to_empty(device="meta")  # or it would be there twice
        source = slices.load_whole(config, ranks, folder, dtype)
        if layout == "single":
            network = cast("nn.Module", source).to(ranks.device)
        else:
            distribute(network, source)
            remarks += (f"the base is read whole on rank 0 and sent, because {problem}",)
    if config.method == "lora":
        adapters.fill(network, config)
    verify_sharded(network, layout)
    return network, remarks
