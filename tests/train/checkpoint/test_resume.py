"""Going on with what changed in between: refused where the mathematics would be another's."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from tests.train.families import make_family
from tests.train.outcome import copied, steps_of, weights
from tests.train.tiny import make_corpus
from tests.train.world import Training, World
from train.files import measure

pytestmark = pytest.mark.torch

SHORT: dict[str, Any] = {"max_steps": 2, "seed": 20261120}


def killed(_rank: int) -> None:
    """Be killed while the data is made ready."""
    from train.data import dataset

    patch.object(dataset, "prepare", lambda *_, **_how: signal.raise_signal(signal.SIGKILL)).start()


def test_a_date_is_a_good_seed_on_any_number_of_ranks(world: World) -> None:
    first = world.run(nodes=(2,), **SHORT)
    again = world.run(
        **SHORT | {"max_steps": 3}, output_dir=str(first.output), resume_from_checkpoint="latest"
    )
    assert sorted(again.losses()) == [1, 2, 3]


@pytest.mark.parametrize("reshards", [pytest.param(True, marks=pytest.mark.soak), False])
def test_gathered_weights_do_not_hide_a_checkpoints(world: World, *, reshards: bool) -> None:
    how: dict[str, Any] = {
        "nodes": (2,), "reshard_after_forward": reshards,
    }  # fmt: skip
    whole = world.run(**how, max_steps=4, save_steps=2, save_total_limit=9)
    again = world.run(**how, max_steps=4, resume_from_checkpoint=str(whole.output / "step-000002"))
    assert again.losses() == {step: whole.losses()[step] for step in (3, 4)}


def test_another_batch_goes_on_for_as_many_epochs(world: World) -> None:
    how: dict[str, Any] = {"max_steps": None, "num_train_epochs": 2}
    how["per_device_train_batch_size"] = 16
    how["dataset_path"] = str(make_corpus(world.folder / "few.jsonl", 30))
    whole = world.run(**how, global_batch_size=16, save_steps=1, save_total_limit=99)
    rows = (whole.output / "metrics.jsonl").read_text().splitlines()
    dataset = {row["step"]: row["tokens"] for row in map(json.loads, rows)}
    first = str(whole.output / "step-000001")
    again = world.run(**how, global_batch_size=8, resume_from_checkpoint=first)
    lines = (again.output / "metrics.jsonl").read_text().splitlines()
    seen = sum(json.loads(line)["tokens"] for line in lines)
    assert seen == sum(dataset.values()) - dataset[1]
    assert world.run(**how, global_batch_size=16, resume_from_checkpoint=first).losses() == {
        step: loss for step, loss in whole.losses().items() if step > 1
    }


def test_seeds_differ_by_rank_and_step() -> None:
    from train.checkpoint.resume import seed_of

    assert len({seed_of(2**70, step, rank) for step in range(5) for rank in range(5)}) == 25


@pytest.fixture
def first(usual: Callable[..., Training], tmp_path: Path) -> Path:
    """Return a copy of what a short training has written."""
    return copied(usual(**SHORT), tmp_path)


def test_fewer_steps_than_were_done_are_done(world: World, first: Path) -> None:
    again = world.run(
        **SHORT | {"max_steps": 1}, output_dir=str(first), resume_from_checkpoint="latest"
    )
    assert again.status()["state"] == "done"
    assert steps_of(again.output) == [2]


def test_another_scale_of_the_adapters_is_refused(world: World, first: Path) -> None:
    again = world.start(
        **SHORT, lora_alpha=64, output_dir=str(first), resume_from_checkpoint="latest"
    )
    assert again.wait() == [4]
    assert "lora_alpha: expected" in again.said()


def test_nodes_that_see_different_checkpoints_in_one_folder_do_not_go_on(tmp_path: Path) -> None:
    """As a storage does that is shared in name only, or whose caches are stale."""
    from train.checkpoint import manifest
    from train.checkpoint.resume import Found, choose
    from train.errors import CheckpointError

    folder = tmp_path / "step-000007"
    folder.mkdir()
    (folder / "state.json").write_text("{}")
    manifest.seal(folder, 7, {"state.json": measure(folder / "state.json")})
    seal = manifest.verify(folder)
    checkpoints: Any = SimpleNamespace(writes=True, shared=True, output=tmp_path)
    for there, differs in ((seal, False), ("f" * 64, True)):
        others = Found(folder=folder, step=8, seal=there, refused=())
        ranks: Any = SimpleNamespace(
            hosts=("a", "b"),
            is_leader=True,
            storage=None,
            gather=lambda mine, _group, others=others: [
                mine, others if isinstance(mine, Found) else ""
            ],
        )  # fmt: skip
        if differs:
            with pytest.raises(CheckpointError, match="the same checkpoint on every node") as bad:
                choose(checkpoints, ranks, "latest")
            assert f"a: sealed {seal[:12]}, not ffffffffffff" in str(bad.value)
        else:
            chosen = choose(checkpoints, ranks, "latest")
            assert chosen is not None
            assert chosen.folder == folder


def test_data_that_shrank_begins_its_next_epoch(world: World, tiny: Path) -> None:
    lines = (tiny / "train.jsonl").read_text().splitlines(keepends=True)
    data = world.folder / "data.jsonl"
    data.write_text("".join(lines))
    how = SHORT | {"dataset_path": str(data), "max_steps": 3}
    first = world.run(**how)  # 36 samples are consumed
    data.write_text("".join(lines[:15]))
    again = world.run(
        **how | {"max_steps": 4}, output_dir=str(first.output), resume_from_checkpoint="latest"
    )
    assert "the data changed since" in again.said()
    assert "resume: expected sample 36 of epoch 0, found " in again.said()
    assert again.losses()[4] > 0, "no step of nothing"
    state = json.loads((again.output / "step-000004/state.json").read_text())
    assert state["position"] == {"epoch": 1, "consumed": 12}


def test_another_kind_of_numbers_is_said(world: World, first: Path) -> None:
    again = world.run(
        **SHORT | {"max_steps": 3}, dtype="bfloat16", output_dir=str(first),
        resume_from_checkpoint="latest",
    )  # fmt: skip
    assert "resume: dtype was auto, is bfloat16" in again.said()


@pytest.mark.parametrize("wanted", ["latest", "path"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 2}, "state.json: expected schema 1, found 2"),
        ({"position": None}, "state.json: expected schema 1, found one without position"),
    ],
)
def test_a_state_of_another_version_is_refused(
    world: World, first: Path, change: dict[str, Any], words: str, wanted: str
) -> None:
    from train.checkpoint import manifest

    folder = first / "step-000002"
    state = json.loads((folder / "state.json").read_text()) | change
    kept = {key: value for key, value in state.items() if value is not None}
    (folder / "state.json").write_text(json.dumps(kept))
    _, files = manifest.sealed(folder)
    manifest.seal(folder, 2, files | {"state.json": measure(folder / "state.json")})
    again = world.start(
        **SHORT, output_dir=str(first),
        resume_from_checkpoint="latest" if wanted == "latest" else str(folder),
    )  # fmt: skip
    assert again.wait() == [4]
    assert words in again.said()
    assert "Traceback" not in again.said()


def saves_no_buffers(_rank: int) -> None:
    """Write checkpoints as versions did that kept trained weights only."""
    from train.model import model

    patch.object(model, "_untrained", lambda _: {}).start()


def test_a_checkpoint_from_before_buffers_were_saved_is_refused(world: World, tiny: Path) -> None:
    folder = make_family(world.folder / "glm4_moe", "glm4_moe", tiny / "model")
    how: dict[str, Any] = {
        "name_or_path": str(folder), "method": "full", "max_steps": 1,
    }  # fmt: skip
    first = world.run(**how, before=saves_no_buffers)
    again = world.start(**how, output_dir=str(first.output), resume_from_checkpoint="latest")
    assert again.wait() == [4]
    bias = "model.model.layers.1.mlp.gate.e_score_correction_bias"
    assert f"expected {bias} (and 1 others) in the checkpoint, found it missing" in again.said()
    assert "hint: an earlier version of train/ wrote it" in again.said()
    assert "Traceback" not in again.said()


def test_what_a_later_torch_wrote_is_refused_with_its_version(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    from train.checkpoint.resume import refuse_missing
    from train.errors import CheckpointError

    (tmp_path / ".metadata").write_bytes(b"cpathlib._nowhere\nPosixPath\n.")
    then = {"versions": {"torch": "2.99.0", "python": "3.99.0"}}
    with pytest.raises(CheckpointError, match=r"found one of torch 2\.99\.0 on Python 3\.99\.0"):
        refuse_missing(tmp_path, then, FileSystemReader(tmp_path), {})


def not_finite_at_step_3(rank: int) -> None:
    """Have rank 1's gradient be no number in the third step."""
    from train.model.optimizer import Optimizer

    real, calls = Optimizer.squared_norm_here, iter(range(9))

    def squared_norm(self: Any) -> Any:
        return real(self) * (float("nan") if next(calls) == 2 and rank == 1 else 1.0)

    patch.object(Optimizer, "squared_norm_here", squared_norm).start()


# Without async_save, as most trainings here, nothing is still being written then.
@pytest.mark.parametrize("async_save", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_loss_that_is_not_a_number_loses_no_step(
    world: World, usual: Callable[..., Training], *, async_save: bool
) -> None:
    how: dict[str, Any] = {"nodes": (2,), "lora_dropout": 0.0}
    whole = usual(**how)
    how["async_save"] = async_save
    run = world.start(**how, before=not_finite_at_step_3)
    assert run.wait() == [5, 5]
    assert (run.status()["state"], run.status()["step"]) == ("failed", 2)
    assert steps_of(run.output) == [2]
    again = world.run(**how, output_dir=str(run.output), resume_from_checkpoint="latest")
    assert again.losses() == whole.losses()
    assert weights(again) == weights(whole)


def test_a_fresh_run_sets_the_numbers_of_the_last_one_aside(world: World, first: Path) -> None:
    numbers = (first / "metrics.jsonl").read_text()
    world.run(**SHORT, output_dir=str(first))
    (aside,) = first.glob("metrics.jsonl.aside-*")
    assert aside.read_text() == numbers


def test_a_run_that_never_began_does_not_show_the_last_ones_end(world: World) -> None:
    output = world.folder / "output"
    output.mkdir()
    (output / "status.json").write_text(json.dumps({"schema": 1, "state": "done", "step": 9}))
    run = world.start(**SHORT, before=killed, output_dir=str(output))
    run.wait()
    assert (run.status()["state"], run.status()["step"]) == ("starting", 0)


def test_a_killed_run_says_the_step_of_its_last_checkpoint(world: World) -> None:
    run = world.start(**SHORT | {"max_steps": 400}, save_steps=3)
    run.wait_for("Step 8/")
    run.kill()
    assert run.status()["state"] == "running"
    assert run.status()["step"] >= 6


def test_other_nodes_go_on_with_samples_of_their_own_from_the_end_of_an_epoch_only(
    world: World,
) -> None:
    data = str(make_corpus(world.folder / "few.jsonl", 12))
    strided: dict[str, Any] = {"node_data": "strided", "dataset_path": data}
    saves: dict[str, Any] = {"save_steps": 1, "save_total_limit": 9}
    first = world.run(**strided, **saves, nodes=(1, 1), num_train_epochs=1, max_steps=None)
    middle, *_, end = sorted(first.output.glob("step-*"))
    how = strided | {"max_steps": steps_of(first.output)[-1] + 1}
    refused = world.start(**how, resume_from_checkpoint=str(middle))
    assert refused.wait() == [4]
    assert "expected the nodes' shares as in the checkpoint" in refused.said()
    assert "(50%, 50%), found 100%" in refused.said()
    one = world.run(**how, resume_from_checkpoint=str(end))
    assert "the nodes' shares of the samples were 50%, 50%, are 100%" in one.said()
    same = world.run(**how, nodes=(1, 1), resume_from_checkpoint=str(middle))
    assert "shares" not in same.said()
