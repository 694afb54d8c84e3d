"""The weights of a model by what they do in it, and which of them are trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from train.model import vision
from train.model.vision import is_in

KINDS = (
    "attention", "shared experts", "routed experts", "router", "dense MLP", "embeddings and head",
    "vision tower", "projector", "other",
)  # fmt: skip
ROUTERS = frozenset({"gate", "router", "shared_expert_gate"})
NORMS = 2
"""Of a layer, in most models."""
MLPS = frozenset({"mlp", "feed_forward", "ffn"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """How many weights a model has, by kind."""

    every: dict[str, int]
    """Kind → weights, those of adapters included."""
    trained: dict[str, int]
    """Kind → trained weights; a kind without any is left out."""
    shrunk: int = 0
    """Base weights that are kept in 4 bits."""
    folded: int = 0
    """Base weights that PEFT adds the adapter's product to in each forward pass."""
    norms: int = NORMS
    """Norms of a decoder layer that are as wide as its hidden state."""
    qk_norm: bool = False
    """Whether queries and keys have norms of their own."""

    @property
    def trained_total(self) -> int:
        """All trained weights."""
        return sum(self.trained.values())

    @property
    def total(self) -> int:
        """All weights."""
        return sum(self.every.values())

    def words(self) -> str:
        """Return the trained weights by kind, in the order of KINDS."""
        return ", ".join(f"{kind} {self.trained[kind]:,}" for kind in KINDS if kind in self.trained)


def count(network: Any) -> Weights:
    """Count a model's weights, those that two modules share once."""
    kinds = Kinds(network)
    every = dict.fromkeys(KINDS, 0)
    trained = dict.fromkeys(KINDS, 0)
    for name, parameter, size in sizes(network):
        kind = kinds.of(name.rpartition(".")[0])
        every[kind] += size
        trained[kind] += size if parameter.requires_grad else 0
    return Weights(
        every=every,
        trained={kind: number for kind, number in trained.items() if number},
        shrunk=sum(_shrunk(network).values()),
        folded=sum(
            module.get_param().numel()
            for module in network.modules()
            if type(module).__name__ == "ParamWrapper"
        ),
        norms=_norms_of_a_layer(network),
        qk_norm=any(name.endswith(".q_norm") for name, _ in network.named_modules()),
    )


def sizes(network: Any) -> Iterator[tuple[str, Any, int]]:
    """Yield the names of parameters, these, and how many weights are in each."""
    shrunk = _shrunk(network)
    for name, parameter in network.named_parameters():
        yield name, parameter, shrunk.get(name, parameter.numel())


def _shrunk(network: Any) -> dict[str, int]:
    """Return the names of weights that several of share a number (`train.model.nf4`)."""
    return {
        f"{name}.weight": module.in_features * module.out_features
        for name, module in network.named_modules()
        if hasattr(module, "quant_state")
    }


def _norms_of_a_layer(network: Any) -> int:
    """Count the norms of a decoder layer that are as wide as its hidden state."""
    width = (network.get_input_embeddings().weight.shape[-1],)
    for module in network.modules():
        if type(module).__name__ == "ModuleList" and len(module):
            children = dict(module[0].named_children()).items()
            norms = [child for name, child in children if "norm" in name or name.startswith("ln_")]
            if count := sum(tuple(norm.weight.shape) == width for norm in norms):
                return count
    return NORMS


class Kinds:
    """Tells what a module is for, by the names and classes on the way to it."""

    def __init__(self, network: Any) -> None:
        """Read a model's modules, with adapters or without."""
        self._classes = {name: type(m).__name__.lower() for name, m in network.named_modules()}
        ends = {id(network.get_input_embeddings()), id(network.get_output_embeddings())}
        self._vision = vision.parts(network)
        self._ends = tuple(name for name, m in network.named_modules() if id(m) in ends)

    def of(self, module: str) -> str:
        """Return the kind of a module, one of KINDS."""
        parts = module.split(".")
        classes = [self._classes.get(".".join(parts[: n + 1]), "") for n in range(len(parts))]
        names, both = set(parts), (*parts, *classes)
        in_an_end = any(is_in(module, end) for end in self._ends)
        shared = ("shared_expert", "shared_mlp")
        # The first that holds counts: a layer's norm may be called after its attention.
        of_vision = next(
            (kind for kind, names in self._vision.items() for name in names if is_in(module, name)),
            "",
        )
        if of_vision:
            return of_vision
        rules = (
            ("embeddings and head", in_an_end or classes[-1] == "embedding"),
            ("other", "norm" in classes[-1]),
            ("router", names & ROUTERS or any("router" in c or "gating" in c for c in classes)),
            ("shared experts", any(part.startswith(shared) for part in parts)),
            ("routed experts", any(word.endswith("experts") for word in both)),
            ("attention", any("attn" in word or "attention" in word for word in both)),
            ("dense MLP", names & MLPS or any("mlp" in c for c in classes)),
        )
        return next((kind for kind, holds in rules if holds), "other")
