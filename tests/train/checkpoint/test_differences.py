"""What changed since a checkpoint: told, or refused if an epoch would not have each sample once."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.train.world import Training, World
from train.config.config import Config

pytestmark = pytest.mark.torch

ABOUT: dict[str, Any] = {
    "base": "b",
    "code": "c",
    "corpus": "d",
    "train_corpus": "t",
    "position": {"consumed": 0},
    "world_size": 1,
    "config": {
        "method": "lora", "lora_r": 8, "lora_alpha": 16, "lora_target_modules": ["q_proj"],
        "learning_rate": 1e-4,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("method", "full"),
        ("lora_r", 16),
        ("lora_alpha", 32),
        ("lora_target_modules", ["q_proj", "v_proj"]),
    ],
)
def test_weights_of_another_shape_are_refused_before_any_is_loaded(key: str, value: object) -> None:
    from train.checkpoint.differences import differences
    from train.errors import CheckpointError

    now = {**ABOUT, "config": {**ABOUT["config"], key: value, "learning_rate": 2e-4}}
    with pytest.raises(CheckpointError, match=f"{key}: expected .* as in the checkpoint"):
        differences(ABOUT, now)
    del now["config"][key]
    assert differences(ABOUT, now) == ("learning_rate was 0.0001, is 0.0002",)


def test_the_files_of_the_base_that_changed_are_named() -> None:
    from train.checkpoint.differences import differences
    from train.errors import CheckpointError

    files = {"tokenizer.json": "1", "config.json": "2"}
    then = ABOUT | {"config": {"name_or_path": "demo/model"}, "base_files": files}
    now = then | {"base": "other", "base_files": files | {"tokenizer.json": "3"}}
    said = r"found that it was trained on b \(tokenizer\.json changed since\)\nhint: set name_or_"
    with pytest.raises(CheckpointError, match=said):
        differences(then, now)
    del then["base_files"]  # (a checkpoint of an earlier version)
    with pytest.raises(CheckpointError, match=r"trained on b\nhint: "):
        differences(then, now)


@pytest.mark.parametrize(
    ("train", "remark"),
    [
        ("t", "the evaluation data changed since, the training data did not"),
        ("u", "the data changed since: the position counts samples of the new data"),
    ],
)
def test_an_evaluation_set_that_changed_is_not_called_the_data(train: str, remark: str) -> None:
    from train.checkpoint.differences import differences

    assert differences(ABOUT, ABOUT | {"corpus": "e", "train_corpus": train}) == (remark,)
    then = {key: value for key, value in ABOUT.items() if key != "train_corpus"}
    assert differences(then, ABOUT) == ()


def test_rows_that_another_version_packed_are_not_counted_on() -> None:
    """A position within an epoch counts rows; checkpoints without a version are of the first."""
    from train.checkpoint.differences import differences
    from train.errors import CheckpointError

    packed = {**ABOUT, "config": {**ABOUT["config"], "batching": "packed"}, "packing": 2}
    first = {key: value for key, value in packed.items() if key != "packing"}
    within = {"position": {"consumed": 4}}
    assert differences(packed | within, packed) == ()
    with pytest.raises(CheckpointError, match="packed by version 2, found 1 in the checkpoint"):
        differences(first | within, packed)
    assert differences(first, packed) == ("samples are packed in other rows since",)
    assert differences(ABOUT | within, {**ABOUT, "packing": 2}) == ()


@pytest.mark.parametrize(
    ("key", "was", "found"),
    [("eval_split", 0.5, 0.1), ("overlong", "cut", "drop"), ("seq_len", 128, 256)],
)
def test_keys_that_give_an_epoch_other_rows_stay_within_it(
    key: str, was: object, found: object
) -> None:
    from train.checkpoint.differences import differences
    from train.errors import CheckpointError

    packed = {"batching": "packed", "seed": 1}
    then, now = (
        {**ABOUT, "packing": 2, "config": {**ABOUT["config"], **packed, key: value}}
        for value in (was, found)
    )
    flag = f"--{key.replace('_', '-')} {was} "
    with pytest.raises(CheckpointError, match=f"{key}: expected {was} as in .*\nhint: add {flag}"):
        differences(then | {"position": {"consumed": 4}}, now)
    assert differences(then, now) == (f"{key} was {was}, is {found}",)


def keeps_samples(file: Path, _rank: int) -> None:
    """Write down the tokens of each sample that is trained on."""
    import numpy as np

    from train.trainer import Trainer

    real = Trainer.update

    def update(self: Any, number: int, step: Any) -> Any:
        with file.open("a") as lines:
            for batch in step.micro_batches:
                for row, ids in enumerate(batch.input_ids):
                    ends = [len(ids)]
                    if batch.position_ids is not None:
                        ends = [*np.flatnonzero(batch.position_ids[row] == 0)[1:], len(ids)]
                    for begin, end in itertools.pairwise([0, *ends]):
                        lines.write(json.dumps(np.trim_zeros(ids[begin:end], "b").tolist()) + "\n")
        return real(self, number, step)

    patch.object(Trainer, "update", update).start()


def samples(file: Path) -> Counter[str]:
    """Return how often each sample was trained on; padding alone is none."""
    return Counter(line for line in file.read_text().splitlines() if line != "[]")


EPOCH: dict[str, Any] = {
    "max_steps": None, "num_train_epochs": 1, "global_batch_size": 8,
    "lr_scheduler_type": "constant", "per_device_train_batch_size": 4,
}  # fmt: skip
BATCHINGS = ("balanced", "packed", "plain")


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory, base: Config) -> dict[str, Training]:
    """Return trainings that stopped in the middle of an epoch, one of each batching."""
    folder = tmp_path_factory.mktemp("half")
    world, made = World(folder, base), {}
    for name in BATCHINGS:
        keep = functools.partial(keeps_samples, folder / name)
        made[name] = world.run(**EPOCH | {"max_steps": 2}, batching=name, before=keep)
    return made


def resumed(world: World, half: Training, **changes: Any) -> tuple[Training, Counter[str]]:
    """Resume in another folder; return the training, and what both saw of their epoch."""
    file = half.output.parent / half.config.batching
    mine = world.folder / "samples"
    mine.write_bytes(file.read_bytes())
    run = world.start(
        **EPOCH | {"batching": half.config.batching} | changes,
        before=functools.partial(keeps_samples, mine),
        resume_from_checkpoint=str(half.output / "step-000002"),
    )
    run.wait()
    return run, samples(mine)


QUICK = {
    ("balanced", "plain"), ("plain", "balanced"), ("packed", "packed"), ("balanced", "packed"),
    ("packed", "plain"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("was", "found"),
    [
        pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.soak)
        for pair in itertools.product(BATCHINGS, BATCHINGS)
    ],
)
def test_each_sample_comes_once_whatever_the_batching(
    world: World, half: dict[str, Training], was: str, found: str
) -> None:
    run, seen = resumed(world, half[was], batching=found)
    if (was == "packed") != (found == "packed"):
        assert run.processes[0].exitcode == 4
        assert f"batching: expected {was} as in the checkpoint, found {found}" in run.said()
        assert f"hint: add --batching {was} to the command" in run.said()
        assert "Traceback" not in run.said()
    else:
        assert run.status()["state"] == "done", run.said()
        assert len(seen) > 60
        assert set(seen.values()) == {1}


@pytest.mark.parametrize(
    "batching",
    ["packed", *(pytest.param(n, marks=pytest.mark.soak) for n in ("balanced", "plain"))],
)
def test_another_order_is_refused_until_the_epoch_ends(
    world: World, half: dict[str, Training], batching: str
) -> None:
    run, _ = resumed(world, half[batching], seed=7)
    assert run.processes[0].exitcode == 4
    assert "seed: expected 42 as in the checkpoint, found 7: in the middle" in run.said()
    assert "hint: add --seed 42 to the command" in run.said()
    hinted = re.search(r"--seed (\d+)", run.said())
    assert hinted
    run, seen = resumed(world, half[batching], seed=int(hinted[1]), save_epochs=1)
    assert set(seen.values()) == {1}
    (end,) = run.output.glob("step-*")
    other = "plain" if batching == "packed" else "packed"
    again = world.run(
        **EPOCH | {"num_train_epochs": 2}, seed=7, batching=other, resume_from_checkpoint=str(end),
        before=functools.partial(keeps_samples, world.folder / "second"),
    )  # fmt: skip
    assert samples(world.folder / "second") == seen
    assert "resume: seed was 42, is 7" in again.said()
    assert f"resume: batching was {batching}, is {other}" in again.said()
