"""Rows that ranks share have the numbers of whole rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.train.families import make_family
from tests.train.outcome import weights
from tests.train.world import Training, World
from train.config.config import Config
from train.errors import ConfigError

pytestmark = pytest.mark.torch

CUT = ("llama", "qwen3", "qwen3_moe", "mixtral", "glm4_moe", "phi3", "gpt2")
REFUSED = {
    "gemma3_text": "context_parallel: .* sliding or chunked attention in Gemma3ForCausalLM",
    "gpt_oss": "attn_implementation: expected sdpa",
    "qwen3_next": "context_parallel: .* states that run on through a row in Qwen3NextForCausalLM",
    "falcon_h1": "context_parallel: .* states that run on through a row in FalconH1ForCausalLM",
}


@given(size=st.integers(1, 4), rows=st.lists(st.sets(st.integers(1, 47)), min_size=1, max_size=3))
def test_all_ranks_together_look_back_at_what_one_alone_does(
    size: int, rows: list[set[int]]
) -> None:
    from train.distributed.context import pieces

    width = 12 * 2 * size
    starts = [[0, *sorted(place for place in row if place < width)] for row in rows]
    seen = {}
    for rank in range(size):
        half = width // (2 * size)
        places = [*range(rank * half, rank * half + half)]
        places += range(width - (rank + 1) * half, width - rank * half)
        for piece in pieces(starts, width, rank, size):
            for row in range(len(rows))[piece.rows]:
                mine, keys = places[piece.queries], range(width)[piece.keys]
                # As attention that is causal from the last key on.
                for number, place in enumerate(mine):
                    assert (row, place) not in seen
                    seen[row, place] = keys[: len(keys) - len(mine) + number + 1]
    wanted = {
        (row, place): range(max(start for start in starts[row] if start <= place), place + 1)
        for row in range(len(rows))
        for place in range(width)
    }
    assert seen == wanted


def test_ranks_have_as_much_to_do() -> None:
    from train.distributed.context import pieces

    work = [
        sum(
            (piece.keys.stop - piece.keys.start) * (piece.queries.stop - piece.queries.start)
            for piece in pieces([[0], [0]], 4096, rank, 4)
        )
        for rank in range(4)
    ]
    assert len(set(work)) == 1


def same(one: Training, other: Training) -> None:
    """Compare two trainings, whose sums are rounded in other orders."""
    for of in (Training.losses, Training.evaluations):
        assert of(other) == pytest.approx(of(one), abs=1e-5, rel=0)


def test_two_ranks_share_packed_rows_and_go_on_bit_for_bit(
    world: World, usual: Callable[..., Training]
) -> None:
    how: dict[str, Any] = {"batching": "packed", "learning_rate": 5e-3}
    alone = usual(eval_steps=6, **how)
    how |= {"nodes": (2,), "parallel": "fsdp", "context_parallel": 2, "lora_dropout": 0.0}
    shared = world.run(save_steps=3, eval_steps=6, **how)
    assert "4 per device x 1 group of 2 ranks x 3 accumulation" in shared.said()
    same(alone, shared)
    again = world.run(resume_from_checkpoint=str(shared.output / "step-000003"), **how)
    rest = {step: loss for step, loss in shared.losses().items() if step > 3}
    assert again.losses() == rest
    assert weights(again) == weights(shared)


TWO: dict[str, Any] = {"nodes": (2,), "parallel": "fsdp", "context_parallel": 2}
FOUR: dict[str, Any] = {"nodes": (4,), "context_parallel": 2, "activation_checkpointing": True}
OTHERS: dict[str, dict[str, Any]] = {
    "hsdp": {"nodes": (2, 2), "parallel": "hsdp", "context_parallel": 2, "batching": "packed"},
    "ddp": {"nodes": (4,), "parallel": "ddp", "context_parallel": 4, "batching": "packed"},
}


@pytest.mark.soak  # the test above has two ranks and packed rows of one family
@pytest.mark.parametrize("name", CUT)
@pytest.mark.parametrize("method", ["lora", "full"])
def test_every_family(world: World, tmp_path: Path, name: str, method: str) -> None:
    base = make_family(tmp_path / "base", name, Path(world.base.name_or_path))
    how: dict[str, Any] = {"name_or_path": str(base), "method": method, "learning_rate": 2e-3}
    how["eval_steps"] = 6
    for layout in ({**TWO, "batching": "packed"}, FOUR):
        same(
            world.run(**how, batching=layout.get("batching", "balanced")),
            world.run(**how, **layout),
        )


@pytest.mark.soak  # FSDP is above
@pytest.mark.parametrize("name", OTHERS)
def test_other_layouts(world: World, usual: Callable[..., Training], name: str) -> None:
    how: dict[str, Any] = {"batching": "packed", "learning_rate": 5e-3, "eval_steps": 6}
    same(usual(**how), world.run(**how | OTHERS[name]))


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_looks_back_in_another_way_is_refused_without_its_weights(
    base: Config, tmp_path: Path, name: str
) -> None:
    from train.model.load import count_weights

    folder = make_family(tmp_path / "base", name, Path(base.name_or_path))
    with pytest.raises(ConfigError, match=REFUSED[name]):
        count_weights(replace(base, context_parallel=2), folder)


def mixes_up(_rank: int) -> None:
    """Put the keys of the ranks in a wrong order, as only running the model shows."""
    from train.distributed import context

    vars(context)["_in_order"] = lambda gathered: (
        gathered.flip(0).flatten(0, 0)[0].repeat(1, 1, len(gathered), 1)
    )


@pytest.mark.soak  # no other test has such a model
def test_a_model_whose_logits_change_is_refused_before_it_trains(world: World) -> None:
    run = world.start(nodes=(2,), context_parallel=2, before=mixes_up)
    assert set(run.wait()) == {2}
    assert "found LlamaForCausalLM, which says something else of rows that are cut" in run.said()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"attn_implementation": "eager"}, "attn_implementation: expected sdpa with"),
        ({"objective": "dpo"}, "context_parallel: expected 1 for pairs, found 2"),
        ({"context_parallel": 0}, "context_parallel: expected 1 or more, found 0"),
    ],
)
def test_what_does_not_go_with_it_is_refused(base: Config, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        replace(base, **{"context_parallel": 2, **keys})


def test_groups_that_cross_nodes_need_the_data_on_both(world: World) -> None:
    run = world.start(nodes=(1, 1), context_parallel=2, node_data="strided")
    assert set(run.wait()) == {2}
    assert "node_data: expected whole where ranks of several nodes share rows" in run.said()
