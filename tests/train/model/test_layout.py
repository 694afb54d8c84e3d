"""How a model is laid over the ranks, and that what is unusual is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from tests.train.outcome import close
from tests.train.world import Training, World

pytestmark = pytest.mark.torch

SHORT: dict[str, Any] = {"max_steps": 2}


def short_of_memory(rank: int) -> None:
    """Have rank 1 find next to no memory."""
    from train.model import layout

    if rank == 1:
        patch.object(layout, "USABLE", 1e-6).start()


def test_nodes_of_one_rank_keep_the_weights_where_there_is_room(
    world: World, usual: Callable[..., Training]
) -> None:
    alone = usual(**SHORT)
    run = world.run(nodes=(1, 1), **SHORT)
    assert "2 nodes x 1 ranks, sharded in a node, repeated over nodes (HSDP)" in run.said()
    assert close(alone.losses(), run.losses())


def test_where_one_node_has_no_room_all_are_sharded_flat_and_it_is_said(world: World) -> None:
    run = world.run(nodes=(2, 2), before=short_of_memory, **SHORT)
    assert "sharded over 4 ranks (FSDP)" in run.said()
    assert "flat FSDP over nodes of 2 ranks each" in run.said()
    assert "every layer's weights cross the network" in run.said()
    assert "does not fit on rank 1 on " in run.said()
    assert "expected about 0." in run.said()


def short_of_host_memory(rank: int) -> None:
    """Have the second node find next to no host memory."""
    from train.distributed import host_memory

    if rank == 1:
        patch.object(host_memory, "available", lambda: 1 << 16).start()


def test_a_node_without_host_memory_is_refused_on_all(world: World) -> None:
    run = world.start(nodes=(1, 1), before=short_of_host_memory, **SHORT)
    assert run.wait() == [2, 2]
    assert "for its ranks' weights and for reading them, found 0.1 MiB available" in run.said()
    assert "hint: more nodes with parallel: fsdp" in run.said(1)


def cannot_be_sliced(_rank: int) -> None:
    """Have no base read in slices, and no host memory for a whole one."""
    from train.distributed import host_memory
    from train.model import slices

    def fill(*_: Any) -> None:
        patch.object(host_memory, "available", lambda: 1 << 16).start()
        raise slices.CannotSlice("a test wants it so")

    vars(slices)["load_into"] = fill


def test_a_base_that_must_be_read_whole_needs_room_on_the_first_rank(world: World) -> None:
    run = world.start(nodes=(2,), before=cannot_be_sliced, **SHORT)
    assert run.wait() == [2, 2]
    assert "for the whole model on rank 0, found 0.1 MiB available" in run.said()


def test_a_model_whose_size_cannot_be_read_is_sharded_flat(world: World, tmp_path: Path) -> None:
    import torch

    from train.distributed.env import RankEnv
    from train.distributed.process_group import Ranks
    from train.model import layout
    from train.model.kinds import Weights

    ranks = SimpleNamespace(
        on_nodes=lambda: {"a": 1, "b": 1},
        env=RankEnv(world_size=2),
        device=torch.device("cpu"),
        gather=lambda value: [value, value],
        hosts=("a", "b"),
        leaders=(0, 1),
    )
    none = Weights(every={}, trained={})
    laid = layout.choose(world.base, cast("Ranks", ranks), tmp_path, none)
    assert laid.name == "fsdp"
    assert "its size cannot be read (FileNotFoundError" in laid.remarks[0]


def nameless(_rank: int) -> None:
    """Have the model not say what its layers are."""
    from transformers import LlamaPreTrainedModel

    LlamaPreTrainedModel._no_split_modules = []


def test_a_model_that_does_not_name_its_layers_is_said(
    world: World, usual: Callable[..., Training]
) -> None:
    named = usual(nodes=(2,), **SHORT)
    run = world.run(nodes=(2,), before=nameless, **SHORT)
    assert "LlamaForCausalLM does not say what its layers are" in run.said()
    assert "what its layers are" not in named.said()
    assert close(named.losses(), run.losses())


def short_of_room_to_keep(rank: int) -> None:
    """Have rank 1 find no memory for gathered weights."""
    from train.model import layout

    if rank == 1:
        patch.object(layout, "KEEPABLE", 1e-6).start()


def test_gathered_weights_are_kept_where_every_rank_has_room(
    world: World, usual: Callable[..., Training]
) -> None:
    kept = usual(nodes=(2,), **SHORT)
    assert "sharded over 2 ranks (FSDP), gathered weights kept on cpu" in kept.said()
    freed = world.run(nodes=(2,), before=short_of_room_to_keep, **SHORT)
    assert "sharded over 2 ranks (FSDP) on cpu" in freed.said()
    assert kept.losses() == freed.losses()


def reports_gathers(_rank: int) -> None:
    """Print a line for each group of weights that is gathered."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group as groups

    real: Any = groups.foreach_all_gather  # type: ignore[attr-defined]

    def gather(*words: Any, **how: Any) -> Any:
        print("one gather", flush=True)
        return real(*words, **how)

    patch.object(groups, "foreach_all_gather", gather).start()


def test_weights_that_are_kept_are_gathered_once_a_step(world: World) -> None:
    how: dict[str, Any] = {"nodes": (2,), "before": reports_gathers}
    how["per_device_train_batch_size"] = 2

    def gathers(**more: Any) -> int:
        said = world.run(max_steps=3, gradient_accumulation_steps=3, **how, **more).said()
        assert ("(FSDP) on cpu" in said) == bool(more)
        _, _, later = said.partition("Step 1/3")
        second, _, _ = later.partition("Step 2/3")
        return second.count("one gather")

    kept, freed = gathers(), gathers(reshard_after_forward=True)
    # Freed: three forward and three backward passes, but the first group stays between the two.
    assert kept > 1
    assert freed == 3 * kept + 3 * (kept - 1)


def reports_reductions(rank: int) -> None:
    """Find no room for whole gradients, and print a line for each reduction of a group's."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group as groups

    short_of_room_to_keep(rank)
    real: Any = groups.foreach_reduce  # type: ignore[attr-defined]

    def reduce(*words: Any, **how: Any) -> Any:
        print("one reduction", flush=True)
        return real(*words, **how)

    patch.object(groups, "foreach_reduce", reduce).start()


@pytest.mark.parametrize(
    ("parallel", "nodes"), [pytest.param("fsdp", (2,), marks=pytest.mark.soak), ("hsdp", (1, 1))]
)
def test_gradients_of_all_weights_are_not_held_whole_where_there_is_no_room(
    world: World, parallel: str, nodes: tuple[int, ...]
) -> None:
    how: dict[str, Any] = {
        "nodes": nodes, "parallel": parallel, "method": "full", "gradient_accumulation_steps": 3,
        "global_batch_size": None, "per_device_train_batch_size": 2, "learning_rate": 1e-3, **SHORT,
    }  # fmt: skip
    held = world.run(**how)
    reduced = world.run(before=reports_reductions, **how)
    assert close(held.losses(), reduced.losses())
    groups = 4  # two layers, the embeddings, the norm with the head
    assert reduced.said().count("one reduction") == groups * 3 * SHORT["max_steps"]


def test_all_weights_in_bfloat16_are_cast_by_fsdp_also_in_one_process(world: World) -> None:
    run = world.run(method="full", dtype="bfloat16", learning_rate=1e-3, **SHORT)
    assert "sharded over 1 ranks (FSDP)" in run.said()
    exact = world.run(method="full", learning_rate=1e-3, **SHORT)
    assert "one process holds the whole model (single)" in exact.said()


def test_experts_that_autocast_does_not_reach_are_said(
    world: World, tiny: Path, tmp_path: Path
) -> None:
    from tests.train.families import make_family

    how: dict[str, Any] = {
        "name_or_path": str(make_family(tmp_path / "moe", "qwen3_moe", tiny / "model")),
        "method": "full", "dtype": "bfloat16", "learning_rate": 1e-3, **SHORT,
    }  # fmt: skip
    remark = "computes the routed experts in float32; parallel: fsdp in bfloat16"
    assert f"single {remark}" in world.run(parallel="single", **how).said()
    assert remark not in world.run(**how).said()
    assert remark not in world.run(parallel="single", **{**how, "method": "lora"}).said()


def refuses_to_send(_rank: int) -> None:
    """Fail where DDP would send the first rank's weights to the others."""
    from torch.nn.parallel import distributed

    def send(*_: Any, **__: Any) -> None:
        raise AssertionError("weights were sent that each rank has read")

    patch.object(distributed, "_sync_module_states", send).start()


def test_ddp_does_not_send_weights_that_each_rank_has_read(
    world: World, usual: Callable[..., Training]
) -> None:
    alone = usual(**SHORT)
    run = world.run(nodes=(2,), parallel="ddp", before=refuses_to_send, **SHORT)
    assert close(alone.losses(), run.losses())
