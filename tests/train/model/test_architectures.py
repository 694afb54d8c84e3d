"""Other architectures than Llama, trained through: the same losses, the adapter, the way back."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.train.families import EAGER, FAMILIES, LEAKS, make_family
from tests.train.outcome import close, weights
from tests.train.world import Training, World

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing"),  # peft asks for it
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False"),  # peft sets it itself
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),  # read in this process
]

QUICK = {"glm4_moe"}
"""In `make test`; the others are soaked in."""
SOME: dict[str, Any] = {"max_steps": 4, "save_steps": 2, "learning_rate": 5e-3}


def families(of: Iterable[str] = FAMILIES, *, quick: set[str]) -> list[Any]:
    """Return families as parameters, most of them for `make soak`."""
    marks = {name: () if name in quick else (pytest.mark.soak,) for name in of}
    return [pytest.param(name, marks=marks[name]) for name in of]


def how(world: World, tiny: Path, name: str) -> dict[str, Any]:
    """Return what a training of a family is started with."""
    folder = world.folder / name
    if not folder.exists():
        make_family(folder, name, tiny / "model")
    attention = "eager" if name in EAGER else "sdpa"
    return SOME | {"name_or_path": str(folder), "attn_implementation": attention}


def reloads(run: Training, name: str) -> None:
    """Prove that PEFT's reading of the adapter says what was trained, and not what the base did."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from train.model import export
    from train.model.load import make

    folder = Path(run.config.name_or_path)
    attention = {"attn_implementation": run.config.attn_implementation}
    tokens = torch.arange(20)[None]
    base: Any = AutoModelForCausalLM.from_pretrained(folder, **attention)
    base.eval()
    before = base(input_ids=tokens, use_cache=False).logits
    theirs = PeftModel.from_pretrained(base, run.output / "adapter").eval()
    ours: Any = make(run.config, folder, torch.float32).eval()
    assert not ours.load_state_dict(export.weights(run.output / "step-000004"), strict=False)[1]
    said, trained = (m(input_ids=tokens, use_cache=False).logits for m in (theirs, ours))
    assert torch.equal(said, trained), name
    assert not torch.allclose(trained, before), name


@pytest.mark.parametrize("name", families(quick=QUICK))
def test_an_adapter_trains_the_same_anywhere_and_is_read_by_peft(
    world: World, tiny: Path, name: str
) -> None:
    start = how(world, tiny, name)
    nodes = (2,) if name in QUICK else (2, 2)  # test_trainer.py has several nodes
    alone = world.run(nodes=(1,), **start)
    assert len(alone.losses()) == 4
    cut = world.run(nodes=nodes, activation_checkpointing=True, **start)
    assert close(alone.losses(), cut.losses())
    reloads(cut, name)
    checkpoint = str(cut.output / "step-000002")
    again = world.run(
        nodes=nodes, activation_checkpointing=True, resume_from_checkpoint=checkpoint, **start
    )
    assert again.losses() == {s: loss for s, loss in cut.losses().items() if s > 2}
    assert weights(again) == weights(cut)


@pytest.mark.soak
@pytest.mark.parametrize("name", families(quick=QUICK))
def test_an_adapter_trains_the_same_on_the_ranks_of_one_node(
    world: World, tiny: Path, name: str
) -> None:
    start = how(world, tiny, name)
    alone, two = (world.run(nodes=(count,), **start) for count in (1, 2))
    assert close(alone.losses(), two.losses())


@pytest.mark.soak
@pytest.mark.parametrize("name", ["glm4_moe", "mixtral"])
def test_adapters_on_routed_experts_and_routers_train_the_same_anywhere(
    world: World, tiny: Path, name: str
) -> None:
    named = ("experts.gate_up_proj", "experts.down_proj", "mlp.gate.weight")
    start = how(world, tiny, name) | {"lora_target_parameters": named}
    alone = world.run(nodes=(1,), **start)
    assert "routed experts" in alone.said()
    four = world.run(nodes=(2, 2), activation_checkpointing=True, **start)
    assert close(alone.losses(), four.losses())
    reloads(four, name)


@pytest.mark.parametrize("name", families(quick=set()))
def test_all_weights_train_the_same_anywhere_and_are_read_by_transformers(
    world: World, tiny: Path, name: str
) -> None:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from train.model import export
    from train.model.load import make

    start = how(world, tiny, name) | {"method": "full", "learning_rate": 1e-3}
    alone = world.run(nodes=(1,), **start)
    four = world.run(nodes=(2, 2), activation_checkpointing=True, **start)
    assert close(alone.losses(), four.losses())
    attention = {"attn_implementation": four.config.attn_implementation}
    exported: Any = AutoModelForCausalLM.from_pretrained(four.output / "model", **attention)
    exported.eval()
    trained: Any = make(four.config, Path(four.config.name_or_path), torch.float32).eval()
    trained.load_state_dict(export.weights(four.output / "step-000004"), strict=False)
    trained.tie_weights()
    tokens = torch.arange(20)[None]
    mine, theirs = (m(input_ids=tokens, use_cache=False).logits for m in (exported, trained))
    assert torch.equal(mine, theirs)
    folders = (four.output / "model", Path(four.config.name_or_path))
    written, hubs = (load_file(folder / "model.safetensors").keys() for folder in folders)
    assert written == hubs
    checkpoint = str(four.output / "step-000002")
    again = world.run(
        nodes=(2, 2), activation_checkpointing=True, resume_from_checkpoint=checkpoint, **start
    )
    assert again.losses() == {s: loss for s, loss in four.losses().items() if s > 2}


@pytest.mark.parametrize("name", families(sorted(LEAKS), quick={"qwen3_next"}))
def test_packed_documents_that_see_each_other_are_refused(
    world: World, tiny: Path, name: str
) -> None:
    start = how(world, tiny, name) | {"batching": "packed", "global_batch_size": 4, "max_steps": 2}
    run = world.start(nodes=(2,), **start)
    assert run.wait() == [2, 2]
    assert "batching: expected a model whose packed documents do not see" in run.said()
