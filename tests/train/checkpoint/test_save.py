"""Checkpoints survive what machines do: power cuts in the middle, flipped bits, lost folders."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.train.outcome import close, copied, steps_of, weights
from tests.train.world import Training, World
from train import files
from train.checkpoint import manifest
from train.errors import ConfigError

pytestmark = pytest.mark.torch


def flip(path: Path, bit: int) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, base: Any) -> Training:
    """Return a training of two ranks that kept the checkpoints of steps 2, 4 and 6."""
    world = World(tmp_path_factory.mktemp("written"), base)
    return world.run(nodes=(2,), save_steps=2)


KILLED: dict[str, Any] = {
    "nodes": (2,), "max_steps": 10, "save_steps": 1, "lora_dropout": 0.1,
}  # fmt: skip


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory, base: Any) -> Training:
    """Return the training that killed ones must end like."""
    return World(tmp_path_factory.mktemp("unharmed"), base).run(**KILLED)


@pytest.mark.soak  # test_loss_scale.py kills one of two ranks, and resumes bit for bit
@pytest.mark.parametrize("number", range(103))
def test_a_killed_run_ends_in_the_same_weights(
    world: World, unharmed: Training, number: int
) -> None:
    dice = random.Random(number)
    how = KILLED | {"async_save": dice.random() < 0.5}
    killed = world.start(**how)
    killed.wait_for("Step 1/10")
    time.sleep(dice.uniform(0, 1.2))
    if dice.random() < 0.5:
        killed.kill()
    else:
        # One machine loses power; the other's ranks must notice and end by themselves.
        killed.send(signal.SIGKILL, dice.randrange(2))
        killed.wait()
    again = world.run(**how, output_dir=str(killed.output), resume_from_checkpoint="latest")
    assert weights(again) == weights(unharmed)
    assert again.losses() == unharmed.losses()
    assert not list(again.output.glob("*.tmp-*"))


@pytest.mark.parametrize(
    "number", [*range(20), *(pytest.param(n, marks=pytest.mark.soak) for n in range(20, 220))]
)
def test_a_flipped_bit_is_refused_and_the_older_one_taken(
    written: Training, tmp_path: Path, number: int
) -> None:
    from train.checkpoint.resume import newest

    dice = random.Random(number)
    output = copied(written, tmp_path)
    files = sorted((output / "step-000006").iterdir())
    file = dice.choice(files)
    flip(file, dice.randrange(file.stat().st_size * 8))
    found = newest(output)
    assert found.step == 4
    assert len(found.refused) == 1
    assert "step-000006" in found.refused[0]


def test_a_run_falls_back_from_a_damaged_checkpoint_and_says_so(
    world: World, written: Training, tmp_path: Path
) -> None:
    output = copied(written, tmp_path)
    flip(output / "step-000006" / "__1_0.distcp", 12345)
    again = world.run(
        nodes=(2,), save_steps=2, output_dir=str(output), resume_from_checkpoint="latest"
    )
    assert "resume: skipped" in again.said()
    assert "__1_0.distcp: expected SHA-256" in again.said()
    assert "step 4" in again.said()
    assert again.losses() == written.losses()
    assert weights(again) == weights(written)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "__0_0.distcp").unlink(), "__0_0.distcp is missing"),
        (lambda folder: (folder / "COMPLETE").unlink(), "COMPLETE is missing"),
        (lambda folder: (folder / "state.json").write_text("{}"), "state.json: expected"),
        (shutil.rmtree, "there is no such folder"),
    ],
)
def test_a_path_that_is_not_whole_is_refused_and_the_newest_named(
    world: World, written: Training, tmp_path: Path, damage: Any, words: str
) -> None:
    output = copied(written, tmp_path)
    damage(output / "step-000004")
    again = world.start(
        nodes=(2,), output_dir=str(output), resume_from_checkpoint=str(output / "step-000004")
    )
    assert again.wait() == [4, 4]
    assert words in again.said()
    hint = f"hint: --resume-from-checkpoint {output / 'step-000006'}, the newest whole one (as "
    assert hint in again.said()
    assert again.status()["state"] == "failed"
    assert steps_of(output)[-1] == 6, "nothing is lost by asking"


def test_a_runs_folder_is_told_its_newest_checkpoint(
    world: World, written: Training, tmp_path: Path
) -> None:
    output = copied(written, tmp_path)
    again = world.start(resume_from_checkpoint=str(output))
    assert again.wait() == [4]
    hint = f"--resume-from-checkpoint {output / 'step-000006'}"
    assert f"hint: {hint}, the newest whole one\n" in again.said()
    taken = world.run(resume_from_checkpoint=hint.split()[1], max_steps=7)
    assert "step 6" in taken.said()


def test_a_word_that_is_no_folder_is_told_the_one_that_is_meant(world: World) -> None:
    run = world.start(resume_from_checkpoint="newest")
    assert run.wait() == [4]
    assert "hint: --resume-from-checkpoint latest takes the newest" in run.said()


def test_only_so_many_are_kept_and_nothing_half_written(world: World) -> None:
    how: dict[str, Any] = {"save_steps": 1, "save_total_limit": 2, "async_save": True}
    run = world.run(nodes=(2,), max_steps=4, **how)
    assert steps_of(run.output) == [3, 4]
    assert not list(run.output.glob("*.tmp-*"))
    for step in (3, 4):
        manifest.verify(run.output / manifest.folder_name(step))


def test_a_new_run_keeps_the_old_ones_checkpoints_apart(
    world: World, written: Training, tmp_path: Path
) -> None:
    output = copied(written, tmp_path)
    how: dict[str, Any] = {"output_dir": str(output), "max_steps": 2}
    second = world.run(save_steps=2, **how)
    assert steps_of(output) == [2]
    assert len(list(output.glob("step-*.aside-*"))) == 3
    assert "set aside" in second.said()
    third = world.start(resume_from_checkpoint="latest", **how)
    third.wait()
    assert "step-000002, step 2" in third.said()


def exported(output: Path) -> dict[str, bytes]:
    """Return the files of a run's exports, aside or not, by the place that they were written to."""
    return {
        f"{re.sub('[.]aside-.*', '', folder.name)}/{file.name}": file.read_bytes()
        for folder in (*output.glob("adapter*"), *output.glob("model*"))
        for file in folder.iterdir()
    }


HOW: dict[str, Any] = {"max_steps": 2}


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_second_run_overwrites_nothing_of_the_first(
    world: World, usual: Callable[..., Training], tmp_path: Path, method: str
) -> None:
    output = copied(usual(**HOW, method="full"), tmp_path)
    before = exported(output)
    metrics = (output / "metrics.jsonl").read_bytes()
    assert "model/model.safetensors" in before
    second = world.run(**HOW, method=method, seed=7, output_dir=str(output))
    (aside,) = output.glob("model.aside-*")
    assert {f"model/{file.name}": file.read_bytes() for file in aside.iterdir()} == before
    assert f"set aside: {aside} is not of this history" in second.said()
    assert (output / "model").exists() == (method == "full"), "no old model by an adapter"
    (records,) = output.glob("metrics.jsonl.aside-*")
    assert records.read_bytes() == metrics
    assert not list(output.glob("*.tmp-*"))


def test_a_base_in_the_place_of_an_export_is_refused(world: World) -> None:
    first = world.run(**HOW, method="full")
    base = first.output / "model"
    with pytest.raises(ConfigError, match="output_dir: expected a folder whose model/ is not the"):
        replace(first.config, name_or_path=str(base))
    adapter = world.run(**HOW, name_or_path=str(base), output_dir=str(first.output))
    assert (base / "model.safetensors").is_file(), "an adapter replaces no model"
    about = json.loads((first.output / "adapter" / "adapter_config.json").read_text())
    assert about["base_model_name_or_path"] == str(base)
    assert (first.output / "adapter" / "tokenizer.json").is_file()
    assert "model.aside" not in adapter.said()


def test_a_folder_that_is_no_export_is_neither_renamed_nor_replaced(world: World) -> None:
    output = world.folder / "mine"
    for name in ("model", "adapter"):
        (output / name).mkdir(parents=True)
        (output / name / "code.py").write_text("")
    run = world.start(**HOW, method="full", output_dir=str(output))
    assert run.wait() != [0]
    assert f"{output}/model, which no training has written" in run.said()
    assert "hint: choose another output_dir" in run.said()
    assert (output / "model" / "code.py").exists()
    assert (output / "adapter" / "code.py").exists()


def test_what_was_set_aside_is_counted_and_removed_as_said(
    world: World, usual: Callable[..., Training], tmp_path: Path
) -> None:
    output = copied(usual(**HOW), tmp_path)
    how = HOW | {"output_dir": str(output)}
    again = world.run(**how)
    size = sum(f.stat().st_size for a in output.glob("*.aside-*") for f in a.rglob("*"))
    size += sum(f.stat().st_size for f in output.glob("metrics*.aside-*"))
    line = f"set aside in {output} by now: 3 files and folders, {size / 2**20:.1f} MiB; to remove"
    assert line in again.said()
    (records,) = output.glob("metrics.jsonl.aside-*")
    assert f"set aside: {records} is not of this history" in again.said()
    third = world.run(**how)
    assert f"set aside in {output} by now: 6 files and folders, " in third.said()
    hint = re.search("to remove them: (.*)$", third.said(), re.MULTILINE)
    assert hint
    subprocess.run(["bash", "-c", hint[1]], check=True)
    assert not list(output.glob("*.aside-*"))
    assert steps_of(output) == [2]
    resumed = world.run(**how, resume_from_checkpoint="latest")
    assert "set aside" not in resumed.said()


def test_a_resumed_run_replaces_its_own_export(world: World) -> None:
    first = world.run(**HOW)
    more = world.run(
        **HOW | {"max_steps": 4}, output_dir=str(first.output), resume_from_checkpoint="latest"
    )
    assert "set aside" not in more.said()
    assert json.loads((first.output / "adapter/metadata.json").read_text())["step"] == 4
    assert not list(first.output.glob("*.aside-*"))
    # From an earlier step another history begins, and the later export is kept.
    before = exported(first.output)
    metrics = (first.output / "metrics.jsonl").read_bytes()
    earlier = str(first.output / "step-000002")
    world.run(
        **HOW | {"max_steps": 3}, output_dir=str(first.output), resume_from_checkpoint=earlier
    )
    (aside,) = first.output.glob("adapter.aside-*")
    assert {f"adapter/{file.name}": file.read_bytes() for file in aside.iterdir()} == before
    assert json.loads((first.output / "adapter/metadata.json").read_text())["step"] == 3
    (records,) = first.output.glob("metrics.jsonl.aside-*")
    assert records.read_bytes() == metrics
    assert sorted(more.losses()) == [1, 2, 3]
    # What was set aside can still be resumed from, by its name.
    (later,) = first.output.glob("step-000004.aside-*")
    world.run(**HOW | {"max_steps": 5}, resume_from_checkpoint=str(later))


def test_a_run_resumed_from_elsewhere_keeps_the_first_runs_files(world: World) -> None:
    first = world.run(**HOW | {"max_steps": 3}, save_steps=1)
    elsewhere = world.run(**HOW | {"max_steps": 3}, seed=7)
    again = world.run(
        **HOW | {"max_steps": 5}, seed=7, save_steps=1, save_total_limit=1,
        output_dir=str(first.output),
        resume_from_checkpoint=str(elsewhere.output / "step-000003"),
    )  # fmt: skip
    kept = sorted(re.sub("[.]aside-.*", "", p.name) for p in first.output.glob("*.aside-*"))
    assert kept == ["adapter", "metrics.jsonl", "step-000001", "step-000002", "step-000003"]
    assert steps_of(first.output) == [5]
    assert sorted(again.losses()) == [4, 5]


def test_latest_of_nothing_starts_anew(world: World) -> None:
    run = world.run(nodes=(1,), max_steps=1, resume_from_checkpoint="latest")
    assert "no checkpoint" in run.said()
    results = f"checkpoint in {run.output}/step-000001, exported to {run.output}/adapter"
    assert f"done at step 1: all steps are done; {results}\n" in run.said()
    assert run.status() | {"time": 0} == {
        "schema": 1, "state": "done", "step": 1, "reason": "all steps are done", "time": 0,
    }  # fmt: skip


def test_another_base_model_is_refused(world: World, written: Training, tiny: Path) -> None:
    run = world.start(
        nodes=(1,),
        name_or_path=str(tiny / "tied"),
        resume_from_checkpoint=str(written.output / "step-000006"),
    )
    assert run.wait() == [4]
    assert "expected base model" in run.said()


def small_is_large(_rank: int) -> None:
    """Let a checkpoint of a few KiB count as a large one."""
    from train.checkpoint import save

    patch.object(save, "LARGE", 1 << 10).start()


def test_nodes_that_send_each_other_large_checkpoints_are_warned(
    world: World, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"nodes": (1, 1), "before": small_is_large, "max_steps": 1}
    apart = world.run(apart=tmp_path / "apart", **how)
    # 16,384 weights of the adapters, each with two moments, of four bytes each.
    assert "every checkpoint sends 0.2 MiB to each node" in apart.said()
    assert "every checkpoint sends" not in world.run(**how).said()


def test_nodes_with_folders_of_their_own_each_have_all_and_other_nodes_go_on(
    world: World, usual: Callable[..., Training], tmp_path: Path
) -> None:
    apart = tmp_path / "apart"
    how: dict[str, Any] = {"save_steps": 3, "lr_scheduler_type": "constant", "lora_dropout": 0.0}
    how |= {"apart": apart}
    first = world.run(nodes=(2, 1), max_steps=3, **how)
    assert "every checkpoint sends" not in first.said(), "it is small"
    seals = {manifest.verify(apart / f"node-{n}/output/step-000003") for n in (0, 1)}
    assert len(seals) == 1
    assert close({1: first.losses()[1]}, {1: usual(max_steps=2).losses()[1]})
    # A node that was replaced and one more have nothing: they get the checkpoint from the other
    # one. Each has another number of ranks.
    shutil.rmtree(apart / "node-0/output/step-000003")
    again = world.run(nodes=(1, 2, 1), resume_from_checkpoint="latest", **how)
    assert "3 ranks wrote it, 4 resume" in again.said()
    assert f"copied from {socket.gethostname()}" in again.said()
    outputs = [apart / f"node-{node}/output" for node in range(3)]
    for output in outputs:
        assert steps_of(output) == [3, 6]
        assert (output / "adapter/adapter_config.json").exists()
    assert len({manifest.verify(output / "step-000006") for output in outputs}) == 1
    assert sorted(again.losses()) == [1, 2, 3, 4, 5, 6]


def test_a_checkpoint_of_another_program_is_passed_over(written: Training, tmp_path: Path) -> None:
    from train.checkpoint.resume import newest

    output = copied(written, tmp_path)
    foreign = output / "step-000006"
    (foreign / "MANIFEST.json").write_text("[]")
    digest = files.measure(foreign / "MANIFEST.json").sha256
    (foreign / "COMPLETE").write_text(f"{digest}\n")
    found = newest(output)
    assert found.step == 4
    (refused,) = found.refused
    assert "step-000006: MANIFEST.json is of another program" in refused


def no_setting_aside(rank: int) -> None:
    """Let rank 0 not rename an earlier run's checkpoints."""

    def refused(*_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    if rank == 0:
        patch.object(manifest, "set_aside", refused).start()


def test_checkpoints_that_cannot_be_set_aside_end_all_ranks(
    world: World, written: Training, tmp_path: Path
) -> None:
    output = copied(written, tmp_path)
    run = world.start(nodes=(2,), output_dir=str(output), before=no_setting_aside)
    assert run.wait() == [4, 4]
    assert "output_dir: expected to set another history's checkpoints aside, found " in run.said(1)
    assert "hint: choose another output_dir" in run.said()
    assert steps_of(output) == [2, 4, 6], "nothing is lost"


def test_the_checkpoint_says_what_it_is_of(written: Training) -> None:
    state = json.loads((written.output / "step-000004" / "state.json").read_text())
    assert (state["step"], state["world_size"], state["schema"]) == (4, 2, 1)
    assert state["position"] == {"epoch": 0, "consumed": 48}
    assert len(state["base"]) == len(state["corpus"]) == len(state["code"]) == 64
    assert state["config"]["lora_r"] == 16
