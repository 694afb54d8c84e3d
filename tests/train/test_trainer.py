"""The same mathematics on any number of ranks, in any layout, before and after a stop."""

from __future__ import annotations

import json
import re
import signal
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.train.outcome import close, weights
from tests.train.tiny import make_corpus
from tests.train.world import Training, World
from train.config.datasets import Dataset

if TYPE_CHECKING:
    from torch import Tensor

pytestmark = pytest.mark.torch


LAYOUTS = [((2, 2), "auto"), ((3,), "ddp")]
OTHERS = [((3,), "auto"), ((2,), "auto"), ((4,), "fsdp"), ((2, 1), "auto")]


@pytest.mark.parametrize("others", [LAYOUTS, pytest.param(OTHERS, marks=pytest.mark.soak)])
def test_losses_do_not_depend_on_ranks_or_layout(
    world: World, usual: Callable[..., Training], others: list[tuple[tuple[int, ...], str]]
) -> None:
    alone = usual(eval_steps=3)
    assert len(alone.losses()) == 6
    assert alone.losses()[6] < alone.losses()[1] - 0.1, "it learns"
    right = alone.evaluations("eval_accuracy")
    assert 0 < right[0] < 1, "of the base: what is learned in six steps may hit nothing"
    for nodes, layout in others:
        other = world.run(nodes=nodes, parallel=layout, eval_steps=3)
        assert close(alone.losses(), other.losses()), (nodes, layout)
        assert close(alone.evaluations(), other.evaluations()), (nodes, layout)
        assert other.evaluations("eval_accuracy") == pytest.approx(right, abs=0.01)


@pytest.mark.soak  # test_independent_loop.py compares micro-batches with samples one by one
def test_the_split_of_a_batch_does_not_change_what_a_step_is(world: World) -> None:
    large = world.run(nodes=(2,), per_device_train_batch_size=6)
    small = world.run(per_device_train_batch_size=1, activation_checkpointing=True)
    assert close(large.losses(), small.losses())


def forgets_graphs(_rank: int) -> None:
    """Refuse to begin a micro-batch while the graph of the one before it is held."""
    from train.model.model import Loss, Model

    real = Model.loss
    held: list[weakref.ref[Callable[[Tensor], None]]] = []

    def loss(self: Model, *batch: Any) -> Loss:
        assert all(graph() is None for graph in held), "a graph outlived its micro-batch"
        found = real(self, *batch)
        if found.total.requires_grad:

            def part_of_it(_gradient: Tensor) -> None: ...

            found.total.register_hook(part_of_it)  # type: ignore[no-untyped-call]
            held.append(weakref.ref(part_of_it))
        return found

    Model.loss = loss  # type: ignore[method-assign,assignment]


def test_no_graph_outlives_its_micro_batch(world: World) -> None:
    run = world.run(nodes=(2,), max_steps=2, before=forgets_graphs)
    assert len(run.losses()) == 2


def test_an_evaluation_of_fewer_samples_than_ranks_is_the_same(world: World, tiny: Path) -> None:
    few = world.folder / "few.jsonl"
    few.write_text("".join((tiny / "eval.jsonl").read_text().splitlines(keepends=True)[:1]))
    how: dict[str, Any] = {"eval_dataset_path": str(few), "eval_steps": 1, "max_steps": 1}
    alone = world.run(nodes=(1,), **how)
    assert set(alone.evaluations()) == {0, 1}
    assert close(alone.evaluations(), world.run(nodes=(1, 1), **how).evaluations())


@pytest.mark.soak  # test_packed_loss.py and, with folders of their own, test_save.py
def test_nodes_with_samples_of_their_own_train_together(world: World) -> None:
    run = world.run(
        nodes=(2, 1),
        node_data="strided",
        apart=world.folder / "apart",
        cache_dir="tokens",
        deterministic=True,
        eval_steps=3,
    )
    assert len(run.losses()) == 6
    assert run.losses()[6] < run.losses()[1]


FULL = {"method": "full", "learning_rate": 1e-3}


@pytest.mark.parametrize(
    ("changes", "others"),
    [
        (FULL, [{"nodes": (2,)}, {"nodes": (2,), "parallel": "ddp"}]),
        pytest.param({}, [{"nodes": (2,)}], marks=pytest.mark.soak),  # the tied weights are frozen
        pytest.param({}, [{"nodes": (2,), "parallel": "ddp"}], marks=pytest.mark.soak),
        pytest.param({}, [{"nodes": (2, 2)}], marks=pytest.mark.soak),
        pytest.param(FULL, [{"nodes": (2, 2)}], marks=pytest.mark.soak),
    ],
)
def test_tied_models_are_equal_too(
    world: World, tiny: Path, changes: dict[str, Any], others: list[dict[str, Any]]
) -> None:
    changes = changes | {"name_or_path": str(tiny / "tied")}
    alone = world.run(**changes)
    for other in others:
        assert close(alone.losses(), world.run(**changes, **other).losses())


def test_a_run_that_was_stopped_goes_on_bit_for_bit(world: World) -> None:
    how: dict[str, Any] = {"nodes": (2,), "lora_dropout": 0.2, "save_steps": 2, "eval_steps": 2}
    whole = world.run(**how)
    first = world.start(**how)
    first.wait_for("Step 3/6")
    first.send(signal.SIGTERM, 1)
    assert set(first.wait()) == {0}
    state = first.status()
    assert state["state"] == "preempted"
    assert state["reason"] == "SIGTERM"
    assert 3 <= state["step"] < 6
    second = world.run(**how, output_dir=str(first.output), resume_from_checkpoint="latest")
    assert second.losses() == whole.losses()
    assert second.evaluations() == whole.evaluations()
    assert weights(second) == weights(whole)
    assert second.status()["state"] == "done"


def test_an_evaluation_follows_each_epoch(world: World) -> None:
    how: dict[str, Any] = {
        "dataset_path": str(make_corpus(world.folder / "few.jsonl", 20)),
        "eval_epochs": 1, "max_steps": None, "num_train_epochs": 3, "save_epochs": 1,
        "save_total_limit": 9, "per_device_train_batch_size": 6,
    }  # fmt: skip
    run = world.run(nodes=(2,), **how)
    ends = [int(p.name[5:]) for p in sorted(run.output.glob("step-*"))]
    assert len(ends) == 3
    assert sorted(run.evaluations()) == [0, *ends]
    every_other = world.run(**how | {"eval_epochs": 2})
    assert sorted(every_other.evaluations()) == [0, *ends[1:]], "the last one ends the training"
    assert every_other.evaluations()[ends[1]] == pytest.approx(run.evaluations()[ends[1]], 1e-5)
    again = world.run(**how, resume_from_checkpoint=str(run.output / f"step-{ends[0]:06}"))
    assert sorted(again.evaluations()) == ends[1:]


def test_weighted_data_sets_go_on_bit_for_bit(world: World, tiny: Path) -> None:
    more = str(make_corpus(world.folder / "more.jsonl", 20, seed=2))
    half = Dataset(path=str(tiny / "train.jsonl"), weight=0.5)
    how: dict[str, Any] = {
        "dataset_path": (half, Dataset(path=more, weight=2.0)),
        "global_batch_size": 24,
        "max_steps": 7,
    }
    whole = world.run(save_steps=6, **how)
    checkpoint = whole.output / "step-000006"
    assert json.loads((checkpoint / "state.json").read_text())["position"]["epoch"] == 1
    again = world.run(resume_from_checkpoint=str(checkpoint), **how)
    assert again.losses()[7] == whole.losses()[7]
    assert weights(again) == weights(whole)
    assert "the data changed" not in again.said()
    shares = re.findall(r" ([\d.]+)% of the tokens of an epoch: (\S+), weight (\S+),", whole.said())
    assert [found[1:] for found in shares] == [(half.path, "0.5"), (more, "2")]
    assert sum(float(found[0]) for found in shares) == pytest.approx(100, abs=0.2)


def shows_its_seed(_rank: int) -> None:
    """Print the seed of the random numbers that a checkpoint leaves a rank."""
    import torch

    from train.checkpoint import resume

    real = resume.load

    def load(*what: Any) -> Any:
        found = real(*what)
        print("seed", torch.initial_seed())
        return found

    resume.load = load  # type: ignore[assignment]


@pytest.mark.parametrize(
    "nodes",
    [(3,), *(pytest.param(nodes, marks=pytest.mark.soak) for nodes in ((1,), (2, 2)))],
    ids=["3", "1", "2x2"],
)
def test_a_run_goes_on_on_another_number_of_ranks(
    world: World, usual: Callable[..., Training], nodes: tuple[int, ...]
) -> None:
    whole = usual(nodes=(2,), save_steps=3, save_total_limit=9, eval_steps=6)
    checkpoint = str(whole.output / "step-000003")
    again = world.run(
        nodes=nodes, resume_from_checkpoint=checkpoint, before=shows_its_seed, eval_steps=6
    )
    seeds = {again.said(rank).partition("seed ")[2].split()[0] for rank in range(sum(nodes))}
    assert len(seeds) == sum(nodes), "ranks of one stream drop the same weights"
    assert close({s: v for s, v in whole.losses().items() if s > 3}, again.losses())
    assert close({6: whole.evaluations()[6]}, again.evaluations())
    assert "2 ranks wrote it" in again.said()
