"""A model's numbers and the memory that training it takes, from the headers of its files alone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from train.config.config import Config
from train.model import quantized
from train.model.activations import EXACT, LOW, Method, Widths, first, passing, per_token
from train.model.kinds import Weights
from train.model.quantized import Scheme

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
GIB = 2**30
GRADIENT_BYTES = 4
TRAINED_BYTES = 4 + GRADIENT_BYTES + 8
"""A trained weight: itself, its gradient, AdamW's two moments, all float32."""
HEADS = frozenset({"lm_head", "embed_out", "output"})
"""What models call their output layer."""
NF4, SCALES = 0.5, 1 / 64 + 1 / 4096
"""Bytes of a base's weight in 4 bits, and of its part of the scales, which every rank has whole."""
LARGEST = 4
"""A layer of a Llama has about so many times the weights of its largest matrix."""
LOGIT_BYTES = 10
"""A logit if all are held: in bfloat16, in float32 for the loss, and its gradient."""
LOGITS_AT_A_TIME = 1 << 25
"""Logits that are held of a frozen head: 128 MiB in float32."""
TRAINED_ROWS = 1024
"""Rows of logits that are held of a trained head at least: each part of them adds to the gradient
of the whole weight, which takes as long as the arithmetic of some hundred rows on a GPU."""
CHANGED_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")
"""Keys of models that cap or scale their logits after the head: all of them are held then."""
OVERHEAD = {True: 1.5 * GIB, False: 0.4 * GIB}
"""On a GPU CUDA's context, cuBLAS, and what fragments; on a CPU Python and torch."""
COMMUNICATORS = 1.0 * GIB
"""Buffers of NCCL on a GPU whose weights are sharded. Assumed, not measured: with eight local peers
and InfiniBand it takes 1 to 1.5 GiB."""

HOST_OVERHEAD = 2.0 * GIB
"""Host memory of a process that computes on a GPU: Python, torch, CUDA. Assumed, not measured."""
MORE_ROOM = "more nodes with parallel: fsdp, fewer other processes, or a higher memory limit"
LAYERS_READ = 3
"""Of a rank's slices of a layer: read, stacked, and as one tensor (`train.model.slices`)."""
STRETCHED = {"dynamic", "linear", "yarn"}
"""Kinds of RoPE scaling whose factor may not be in max_position_embeddings yet, as in Qwen 2.5's;
that of `llama3` and `longrope` always is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model's numbers, read without loading it."""

    parameters: int
    on_disk: int
    """Bytes of its files."""
    layers: int
    width: int
    vocabulary: int
    widths: Widths
    """Of all layers, for what they keep."""
    tower: Widths | None = None
    """Of the layers that see, if there are any."""
    patches: float = 0.0
    """That these have for each token of an image, which is one of the language model's."""
    changes_logits: bool = False
    """Whether it caps or scales its logits, which are then held whole."""
    positions: int = 0
    """How many it was made for; 0 if unknown."""
    complete: bool
    """Whether all the files that its index names are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on one GPU; an estimate, and a rough one for the activations."""

    weights: float
    trained: float
    gathered: float
    """What FSDP holds whole: a layer or two for a moment, the head and, while gradients
    accumulate, these."""
    activations: float
    """With logits; only what gradients do not take the place of, if a step has one micro-batch."""
    overhead: float

    @property
    def total(self) -> float:
        """All of it."""
        return float(sum(asdict(self).values()))

    def words(self) -> str:
        """Return it as a line; a part that is next to nothing is left out."""
        parts = asdict(self).items()
        named = [f"{name} {size / GIB:.1f}" for name, size in parts if size > GIB / 20]
        return f"about {self.total / GIB:.1f} GiB ({', '.join(named)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Bytes of host memory that the processes of one node take together; an estimate."""

    weights: float
    """On CPUs: the base's weights and what is trained."""
    reading: float
    """Slices of a layer between the files and the device."""
    activations: float
    """On CPUs: these and gathered layers."""
    libraries: float

    @property
    def certain(self) -> float:
        """What is taken whatever the batch is."""
        return self.weights + self.reading

    @property
    def total(self) -> float:
        """All of it."""
        return self.certain + self.activations + self.libraries


def weights_in_words(count: int) -> str:
    """Return a model's size as people say it: 8.03 billion weights."""
    for unit, name in ((10**9, "billion"), (10**6, "million"), (10**3, "thousand")):
        if count >= unit:
            return f"{count / unit:.3g} {name} weights"
    return f"{count} weights"


def size_in_words(count: float) -> str:
    """Return a number of bytes as people say it: 7.3 GiB, 12 MiB."""
    return f"{count / GIB:.1f} GiB" if count >= GIB / 10 else f"{count / 2**20:.1f} MiB"


def shape(folder: Path) -> Shape:
    """Return a model's numbers from its config.json and the headers of its weights.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file is not what its name says, or is cut off.
    """
    whole = _object(folder / "config.json")
    about, tower = whole.get("text_config") or whole, whole.get("vision_config") or {}
    files = weight_files(folder)
    present = [path for path in files if path.exists()]
    try:
        stored = quantized.scheme(folder / "config.json", str(folder))
        return Shape(
            parameters=sum(_parameters(path, stored) for path in present),
            on_disk=sum(path.stat().st_size for path in present),
            layers=first(about, "num_hidden_layers", "n_layer", "n_layers", "num_layers"),
            width=first(about, "hidden_size", "n_embd", "d_model"),
            vocabulary=first(about, "vocab_size"),
            positions=position_count(about),
            widths=Widths.of(about),
            tower=Widths.of(tower | {"num_hidden_layers": depth_of(tower)}) if tower else None,
            patches=patches_of_a_token(whole, tower),
            changes_logits=any(about.get(key) not in {None, 1} for key in CHANGED_LOGITS),
            complete=len(present) == len(files),
        )
    except (AttributeError, KeyError, TypeError) as error:
        found = f"{type(error).__name__}: {error}"
        raise ValueError(f"{folder}: expected config.json and safetensors, found {found}") from None


def depth_of(tower: Mapping[str, Any]) -> int:
    """Return how many layers a vision tower has; Qwen's calls them its depth."""
    return int(tower.get("num_hidden_layers") or tower.get("depth") or 0)


def patches_of_a_token(about: Mapping[str, Any], tower: Mapping[str, Any]) -> float:
    """Return how many patches of an image become one token of the language model."""
    if merged := tower.get("spatial_merge_size") or about.get("scale_factor"):
        return float(merged) ** 2
    tokens, side = about.get("mm_tokens_per_image"), int(tower.get("image_size") or 0)
    if tokens and side:
        return (side // int(tower.get("patch_size") or side)) ** 2 / int(tokens)
    return 1.0 if tower else 0.0


def with_tower(text: float, config: Config, model: Shape, weights: Weights, size: int) -> float:
    """Return what a language model and its tower keep, for rows that are full of images.

    A frozen tower keeps nothing: it has one layer at a time, before the language model has any.
    """
    if model.tower is None:
        return text
    patches = config.per_device_train_batch_size * config.seq_len * model.patches
    each = per_token(model.tower, method_of(config, weights, size))
    if "vision tower" in weights.trained and not config.activation_checkpointing:
        return text + patches * each
    return max(text, patches * each / max(1, model.tower.layers))


def position_count(about: Mapping[str, Any]) -> int:
    """Return how many positions a model's config.json tells of; 0 if it does not."""
    about = about.get("text_config") or about
    known = int(about.get("max_position_embeddings") or about.get("n_positions") or 0)
    rope = about.get("rope_parameters") or about.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type")) in STRETCHED:
        original = rope.get("original_max_position_embeddings") or known
        return max(known, int(original * (rope.get("factor") or 1)))
    return known


def position_remarks(network: Any, longest: int) -> Iterator[str]:
    """Say if the longest sample has more tokens than the model has positions."""
    known = position_count(network.config.to_dict())
    if 0 < known < longest:
        yield (
            f"seq_len: the longest sample has {longest} tokens, and the model was made for {known} "
            "positions"
        )


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors that a model's index names, or its only one; some may be missing."""
    index = folder / INDEX
    if not index.is_file():
        return [folder / SINGLE]
    names = _object(index).get("weight_map")
    if not isinstance(names, dict):
        raise ValueError(f"{index}: expected a weight_map, found none")  # noqa: TRY004  (the file's value)
    return [folder / name for name in sorted(set(names.values()))]


def _object(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected a JSON object, found {type(found).__name__}")  # noqa: TRY004  (the file's value)
    return found


def _parameters(path: Path, stored: Scheme | None) -> int:
    """Return the weights in a safetensors file, from its header."""
    counts = {name: math.prod(about["shape"]) for name, about in header(path).items()}
    return sum(stored.count(*each) if stored else each[1] for each in counts.items())


def header(path: Path) -> dict[str, Any]:
    """Return a safetensors file's tensors by name, each with its dtype and shape."""
    with path.open("rb") as file:
        length, size = int.from_bytes(file.read(8), "little"), path.stat().st_size
        if length > size:
            raise ValueError(f"{path}: expected a safetensors file, found none")
        found = json.loads(file.read(length))
    tensors = {name: tensor for name, tensor in found.items() if name != "__metadata__"}
    whole = 8 + length + max((each["data_offsets"][1] for each in tensors.values()), default=0)
    if size < whole:
        raise ValueError(f"{path}: expected {whole} bytes, found {size}: it is cut off")
    return tensors


def rows_at_a_time(vocabulary: int, *, trained: bool) -> int:
    """Return of how many rows the logits are held, if they are made in parts."""
    return max(LOGITS_AT_A_TIME // max(1, vocabulary), TRAINED_ROWS if trained else 1)


def memory(
    config: Config,
    model: Shape,
    weights: Weights,
    *,
    shards: int,
    gpu: bool,
    defers: bool | None = None,
) -> Memory:
    """Return what one rank takes if weights are cut over so many shards.

    `defers` is whether gradients are summed up whole until a step's last micro-batch; those of
    adapters are if it is None.
    """
    size = dtype_bytes(config, gpu=gpu)
    trained = weights.trained_total
    # Of all weights, a vision tower may be frozen.
    full = config.method == "full"
    frozen = max(0, weights.total - trained) if full else model.parameters
    layer = model.parameters / max(1, model.layers + 1)
    # Of a layer in 4 bits one weight at a time is plain, for its product.
    plain, layer_bytes = 0.0, layer * size
    if weights.shrunk:
        plain, layer_bytes = layer * size / LARGEST, layer * NF4
    tokens = config.per_device_train_batch_size * config.seq_len * (1 + config.in_pairs)
    tokens //= config.context_parallel
    method = method_of(config, weights, size)
    each = per_token(model.widths, method)
    one_layer = tokens * each / max(1, model.layers)
    activations = tokens * each
    if config.activation_checkpointing:  # the inputs of all layers, and one that is recomputed
        activations = tokens * model.width * model.layers * size + one_layer
    activations = with_tower(activations, config, model, weights, size)
    activations += model.parameters * LOW * method.autocast  # it keeps the weights that it casts
    # The folded weights are kept for the backward pass: of all layers, or of the recomputed one.
    activations += weights.folded * size / (model.layers if config.activation_checkpointing else 1)
    # A head that is trained whole, which modules_to_save may name; of pairs its logits are whole.
    rows, logit_bytes = tokens, LOGIT_BYTES
    whole_head = full or bool({*config.lora_modules_to_save} & HEADS)
    in_parts = "embeddings and head" not in weights.trained or (whole_head and not config.in_pairs)
    if in_parts and not model.changes_logits:
        rows = min(tokens, rows_at_a_time(model.vocabulary, trained=whole_head))
        # The sum of a trained weight's gradient over the parts, in float32.
        activations += 4 * model.vocabulary * model.width * whole_head
        logit_bytes = EXACT + (LOW if size == LOW else 0)
    logits = rows * model.vocabulary * logit_bytes
    gathered = 0.0
    if config.parallel == "ddp" and _accumulates(config, shards):
        # Gradients are there besides DDP's buckets, which take the place of those of one pass.
        gathered = float(GRADIENT_BYTES * trained)
    # One process that trains all weights in bfloat16 is sharded too, for FSDP to cast them.
    casts = full and size == LOW and config.parallel not in {"single", "ddp"}
    if shards > 1 or casts:
        ends = 2 * model.vocabulary * model.width
        gathered += 2 * layer_bytes + ends * size
        if config.reshard_after_forward is False:
            gathered = model.parameters * size - weights.shrunk * (size - NF4)
        holds = not full if defers is None else defers
        if shards > 1 and holds and _accumulates(config, shards):
            # In float32, until the last micro-batch cuts them.
            gathered += 4 * trained
    activations += logits
    if config.parallel != "ddp" and not _accumulates(config, shards):
        # The backward pass frees activations as it makes gradients: both are never there whole.
        # Measured for all weights on one H200: 19.8 GiB; the sum is 24.1. DDP's buckets stay.
        # The last gradients are made while a layer's activations are there.
        activations = max(one_layer, activations - GRADIENT_BYTES * trained / shards)
    if not gpu:  # on an H200 it was 0.2 GiB of 5.3 with recomputed activations, and less without
        activations += tokens * passing(model.widths, method)
    return Memory(
        weights=(frozen * (EXACT if full else size) - weights.shrunk * (size - NF4)) / shards
        + weights.shrunk * SCALES,
        trained=trained * TRAINED_BYTES / shards,
        gathered=gathered + plain,
        activations=activations,
        overhead=OVERHEAD[gpu] + COMMUNICATORS * (gpu and shards > 1),
    )


def method_of(config: Config, weights: Weights, size: int) -> Method:
    """Return what of a training decides which numbers its layers keep; these have `size` bytes."""
    full = config.method == "full"
    return Method(
        full=full,
        autocast=full and size == LOW and config.parallel in {"single", "ddp"},
        dora=config.lora_use_dora,
        size=size,
        rank=config.lora_r,
        dropout=config.lora_dropout > 0,
        qk_norm=weights.qk_norm,
        norms=weights.norms,
        masked=config.masks_attention,
        scores=config.seq_len if config.attn_implementation == "eager" else 0,
        context=config.context_parallel,
    )


def host_memory(
    config: Config, model: Shape, need: Memory, *, shards: int, local: int, gpu: bool
) -> HostMemory:
    """Return what the `local` processes of one node take of its memory.

    `need` is what one of them takes on its device.
    """
    layer = model.parameters / max(1, model.layers + 1) * base_bytes(config, gpu=gpu)
    return HostMemory(
        weights=0 if gpu else local * (need.weights + need.trained),
        reading=local * LAYERS_READ * layer / (1 if config.load_in_4bit else shards),
        activations=0 if gpu else local * (need.gathered + need.activations),
        libraries=local * (HOST_OVERHEAD if gpu else need.overhead),
    )


def base_bytes(config: Config, *, gpu: bool) -> int:
    """Return the bytes of a weight of the base as it is loaded."""
    return 4 if config.method == "full" else dtype_bytes(config, gpu=gpu)


def dtype_bytes(config: Config, *, gpu: bool) -> int:
    """Return the bytes of a weight of the base."""
    return 2 if config.dtype in {"bfloat16", "float16"} or (config.dtype == "auto" and gpu) else 4


def _accumulates(config: Config, ranks: int) -> bool:
    """Return whether a step of so many ranks takes several micro-batches."""
    if config.global_batch_size:
        once = config.per_device_train_batch_size * max(1, ranks // config.context_parallel)
        return config.global_batch_size > once
    return (config.gradient_accumulation_steps or 1) > 1
